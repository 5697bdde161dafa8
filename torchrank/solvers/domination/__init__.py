"""Solvers for the domination loss with l1 and l2: FISTA and L-BFGS steps, coordinate descent, feature induction."""
