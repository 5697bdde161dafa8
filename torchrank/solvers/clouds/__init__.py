"""Clouds of documents: shapes to compare them by, clusters, and hashed search."""
