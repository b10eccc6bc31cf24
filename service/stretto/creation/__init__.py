"""Creating groups, once per owner and key. No SQL, no HTTP.

In the order of reading: what is decided (`attempt`), what is needed of others (`ports`); a
request's way to its answer (`creator`, `outcomes`, `flight`, `flights`, `limiter`, `age`, `follower`);
what writes (`writer`, `baton`, `batch`, `leads`, `apart`, `breakers`, `contention`); what reads
(`lookup`, `reads`).
"""
