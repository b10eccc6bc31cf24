"""Creating groups, once per owner and key. No SQL, no HTTP.

In the order of reading: what is decided (`attempt`), what is needed of others (`ports`); a
request's way to its answer (`creator`, `age`, `authorization`, `outcomes`, `flight`, `flights`,
`limiter`, `follower`); what writes (`writer`, `baton`, `batch`, `leads`, `halves`, `apart`,
`blame`, `breakers`, `probes`, `suspects`, `contention`, `requests`); what the host's code does
meanwhile (`hook_calls`, `host_errors`); what reads (`lookup`, `reads`) and deletes (`deletion`).
"""
