"""Local metrics of L-GMML in closed form: of drawn lists, and of groups of similar queries."""
