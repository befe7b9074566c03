"""What is in a text? Patterns, addresses, fields and templates, each compiled once and used on many lines."""
