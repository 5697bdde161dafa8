"""Studies of settings: search spaces, trials in worker processes, the winner's one test, and the leaderboard."""
