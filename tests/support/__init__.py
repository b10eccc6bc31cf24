"""What more than one file of tests uses, by what it is about.

| a service under test | |
|---|---|
| `api_client` | a client of the contract; `api_for` serves a database in this process |
| `live_service` | a service whose sessions are under test, and whose tail reads when a test says so |
| `service_process` | a real `stretto serve` process |
| `environment` | the environment of the processes that tests start |
| `command_process` | the command `stretto`: its output, its errors and its exit code |
| `example_process` | an example, or a changed copy of one |
| `python_program` | a program of a host's, in a Python of its own |
| `killed_program` | an example that is killed again and again, and a wire that loses its last word |
| `landed` | the revision that the newest schema follows on, to run beside ours |
| `topology` | replicas, relays and members on one NATS, under load |

| the event loop | |
|---|---|
| `virtual_time` | a loop whose time goes on where nothing is left to do: no test waits |
| `call_time` | the time of a call of `StrettoClient`, which ends when a test says so |
| `loop_turns` | counts the turns of the event loop |
| `cancellations` | leaves one behind that is over, as a `TaskGroup` does |

| a browser | |
|---|---|
| `chromium` | the system's browser, and an origin with pages for it |

| a client that does not behave | |
|---|---|
| `raw_client` | sends bytes as they are |
| `counted_arrival` | what a service in this process counts of what its clients have sent |
| `reading_turns` | turns in which a service in this process reads its clients: they begin when a test says so |
| `ways` | requests by the way that each takes to its answer |
| `socket_client` | a client without transports or streams: makes no garbage of its own |

| what a service stands on or behind | |
|---|---|
| `changed_groups` | what a host's changes leave: a group as it is, and the events that say so |
| `database` | a database of one test, what a test does to it, and what it sees there |
| `bus_trial` | a host's bus that hangs, raises or does few things at once, in virtual time |
| `bus_again` | a host's bus of many kinds, and the store that relays over it share, in virtual time |
| `implicit_casts` | casts that the owner of a database has made implicit |
| `embedded_servers` | processes that own an embedded server, and quick settings |
| `nats_process` | a real nats-server, and a client of it |
| `nats_cluster` | three real nats-servers that replicate streams |
| `certificate` | a certificate for a server on 127.0.0.1 |
| `programs` | where a program is, of Debian or of `make clients` |
| `ports` | a port for a server that a test starts |
| `pgbouncer` | a real PgBouncer in transaction mode |
| `proxies` | real reverse proxies: haproxy and nginx, ordinary ones or from `deploy/` |
| `prometheus` | a real Prometheus with our alerts, at sixty times their pace; promtool |
| `runbook` | the commands that the runbook shows, by the test that runs them |
| `operator_shell` | the shell of an operator who runs them |
| `methods` | the methods of `docs/which-method.md`, and replicas that run their SQL |
| `commit_settings` | triggers that set something, and what of it holds as a commit begins |
| `standby_names` | the standby that a server's commits wait for, or none |
| `flooding_server` | a server that answers, and goes on sending for as long as it can |
| `frozen_server` | a connection to a server that can be frozen |
| `opened_connection` | a connection that can be cut, without a server |
| `webhook_receiver` | a webhook's endpoint |
| `webhook_instances` | instances with endpoints of their own on one database, which take turns |
| `issuer` | an issuer that publishes its keys, and tokens signed with them |
| `full_service` | a service whose mailbox is full of one owner's creations |
| `full_pipe` | a pipe that has no room left |

| stores | |
|---|---|
| `memory_store` | the protocol's stores over an in-memory database |
| `both_stores` | one view of the stores in memory and of PostgreSQL's |
| `hooked_stores` | writers' stores whose leads run a hook |
| `leaving_veto` | a host's veto that ends the process of whoever reads it |
| `memory_log` | the log of events in memory: commits in any order, crashes, promotions |
| `log_events` | events and places of a log for tests of its readers |
| `owned_events` | events of owners' groups, as far as a relay over a host's bus looks into them |
| `retention` | sweeps as of days to come |
| `routines` | the routines of the schema, with a guard taken out |
| `scripted_store` | a relay's store in memory, whose reads fail as a test says |

| time, log and waiting | |
|---|---|
| `clock` | a clock that stands still unless a test sets it |
| `virtual_time` | an event loop whose time jumps to the next timer |
| `costly_writes` | writers whose store takes the time of a `clock`, and fails some owners |
| `logged_events` | what a service's log says of an observation |
| `traces` | spans that are kept in memory; a collector of traces |
| `waiting` | bounded waits for what nothing signals |
"""
