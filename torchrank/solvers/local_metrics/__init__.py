"""Local metrics of L-GMML: closed form, the lists they are learned from, sampled WARP."""
