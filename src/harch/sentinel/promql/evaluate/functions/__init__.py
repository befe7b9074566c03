"""What do functions of vectors and scalars give?"""
