"""Rankers made of fitted rankers: weighted means of standardised scores, and students that learn from them."""
