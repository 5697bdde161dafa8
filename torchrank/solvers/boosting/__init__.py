"""Boosting of threshold rules on pairs of documents."""
