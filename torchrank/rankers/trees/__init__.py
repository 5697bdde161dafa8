"""Gradient boosted trees: a file for the ranker, one for each engine, and one for the check of each engine's text."""
