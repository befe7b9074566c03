"""How are spans kept and found?"""
