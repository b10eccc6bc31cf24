"""Creating groups, once per owner and key. No SQL, no HTTP.

In the order of reading: what is decided (`attempt`), what is needed of others (`ports`); a
request's way to its answer (`creator`, `settings`, `age`, `authorization`, `laggards`, `outcomes`,
`flight`, `flights`, `limiter`, `follower`, `places`); what writes (`requests`, `writer`, `baton`,
`batch`, `leads`, `apart`, `halves`, `breakers`, `probes`, `proofs`, `suspects`, `blame`,
`contention`); the host's code (`hook_calls`, `host_errors`); reads (`lookup`, `reads`, `trail`) and
deletes (`deletion`).
"""
