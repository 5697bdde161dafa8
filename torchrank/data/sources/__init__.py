"""Data sets that are read from files of their own kind, and downloads."""
