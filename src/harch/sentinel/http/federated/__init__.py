"""How does one SENTINEL query those of other hubs, and answer them?"""
