"""What does SENTINEL answer in Prometheus' protocol?"""
