"""Who is told what, and when? Alertmanager's work: grouping, muting, deduplication, notification."""
