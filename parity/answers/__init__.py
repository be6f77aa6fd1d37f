"""Sets of greedy answers of two paths, without goldens: does rounding explain where they part?"""
