"""Nearest neighbours: search over a whole corpus of vectors, and votes of the top of a ranking."""
