"""LocalRank: one model per cluster of queries."""
