"""Who is notified of what, and when? Alertmanager's work: grouping, muting, deduplication, notification."""
