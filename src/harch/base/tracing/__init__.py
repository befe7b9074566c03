"""How is one piece of work followed through processes and hubs? Spans by the OpenTelemetry API, told to SENTINEL."""
