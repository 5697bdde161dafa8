"""Reads results files only: selection over a sweep, significance, tables. Imports no ranker."""
