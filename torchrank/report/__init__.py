"""Reads results files: selection over a sweep, significance, tables; draws what it is given. Imports no ranker."""
