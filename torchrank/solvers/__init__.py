"""Algorithms: state in, state out."""
