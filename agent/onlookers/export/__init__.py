"""The numbers of runs for other programs: for Prometheus as they are now, as tables of all steps that are recorded.

prometheus  frames as samples, over HTTP or in a file
tables      steps and collectives as Parquet or CSV

`dashboard.json` is a dashboard for Grafana, `rules.yml` has rules for alerts.
"""
