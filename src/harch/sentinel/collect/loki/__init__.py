"""How do Promtail, Alloy and others push log lines? Loki's own protocol, as protobuf and as JSON."""
