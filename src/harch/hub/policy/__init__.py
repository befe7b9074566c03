"""Which policy is in force at this hub, what does it say, and what has it said?"""
