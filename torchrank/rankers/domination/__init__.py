"""Domination Rank."""
