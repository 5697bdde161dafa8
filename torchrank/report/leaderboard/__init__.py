"""The leaderboard: its numbers, tables, figure and page."""
