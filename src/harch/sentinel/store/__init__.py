"""Where are samples kept? Newest ones in memory behind a log on disk (`head`, `wal`), older ones in `blocks`."""
