"""The dashboard of `monitoring/` with the answers of a real Prometheus, drawn. See `make dashboard`.

It draws what Grafana would: its grid, the panels' queries, units, stacks and legends. It is not Grafana,
of which no package for this machine is to be had; what only Grafana does (tooltips, zoom) is not shown.
"""
