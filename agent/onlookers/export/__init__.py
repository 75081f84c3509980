"""The numbers of runs for other programs: for Prometheus as they are now, as tables of all steps that are recorded.

samples  frames as samples of Prometheus
scrapes  where Prometheus gets them: over HTTP, or from a file
tables   steps and collectives as Parquet or CSV

`dashboard.json` is a dashboard for Grafana, `rules.yml` has rules for alerts.
"""
