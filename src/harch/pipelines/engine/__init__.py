"""Who carries the messages, and who may say what? NATS, configured from policy, supervised and audited."""
