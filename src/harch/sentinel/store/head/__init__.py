"""What came lately? Samples in memory, in chunks of one series each, until they are cut into a block."""
