"""What do operators give, between numbers, vectors and histograms?"""
