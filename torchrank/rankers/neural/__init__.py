"""Rankers that learn by gradient: a file for each network, and the ranker that trains any of them with any loss."""
