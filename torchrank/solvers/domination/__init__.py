"""Solvers for the domination loss with l1 and l2: FISTA, L-BFGS, coordinate descent, the choice of features."""
