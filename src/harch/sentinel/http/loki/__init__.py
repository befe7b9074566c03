"""What does SENTINEL answer in Loki's protocol?"""
