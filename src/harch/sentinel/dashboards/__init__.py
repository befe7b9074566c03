"""Which questions belong on one screen? Dashboards as files: YAML or JSON, shipped ones and your own."""
