"""How is one piece of work followed through processes and hubs? Spans by the OpenTelemetry API, exported to
SENTINEL."""
