"""What would a crash take with it? Nothing that was acknowledged: every write is in the log first, synced."""
