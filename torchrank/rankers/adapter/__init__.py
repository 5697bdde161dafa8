"""A linear map of vectors that people already have, learned from a few judged queries."""
