"""Two replicas on a formation of pg_auto_failover whose primary fails. See `make ha`.

pg_auto_failover decides who is the primary; the service only finds it. So each outage is measured
twice: from outside, by a probe that writes to every node, and by creations over HTTP. The second
must not be much longer than the first.
"""
