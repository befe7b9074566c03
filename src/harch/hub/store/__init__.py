"""What is on disk? Acknowledged means stored: SQLite in WAL mode with synchronous FULL, one writer, group commit."""
