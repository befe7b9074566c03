"""What does a hub write into its audit chain, and how does it show it? The chain itself is `sovereignty.audit`."""
