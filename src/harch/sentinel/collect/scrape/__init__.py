"""Who is asked for metrics, how often, and what becomes of the answer?"""
