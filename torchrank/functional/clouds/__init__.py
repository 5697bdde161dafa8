"""Clouds: the rows of a list seen as a set of points, without labels."""
