"""Creating groups, once per owner and key. No SQL, no HTTP.

In the order of reading: what is decided (`attempt`), what is needed of others (`ports`); a request's
way to its answer (`creator`, `outcomes`, `limiter`, `flight`, `follower`); what writes (`writer`,
`batch`, `apart`, `contention`, `breakers`); what reads (`lookup`, `reads`).
"""
