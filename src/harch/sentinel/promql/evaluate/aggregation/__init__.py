"""What do groups of series come to? Sums, means, ranks and counts over series."""
