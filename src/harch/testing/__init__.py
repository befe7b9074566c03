"""What does a test of HarchOS need? Simulated time and small fleets. Shipped, so that users can test with them."""
