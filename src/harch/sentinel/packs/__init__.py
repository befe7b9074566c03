"""Which alerts does HarchOS ship? Prometheus rule files that anybody can read, copy and change."""
