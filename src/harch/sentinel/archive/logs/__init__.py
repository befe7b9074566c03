"""How are log lines kept and found?"""
