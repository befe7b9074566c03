"""How does telemetry come in? Scraped texts, OTLP messages, and what HarchOS measures itself."""
