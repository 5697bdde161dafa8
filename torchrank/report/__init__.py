"""Tables and figures from results files: selection over a sweep, paired tests. Needs no ranker and no torch."""
