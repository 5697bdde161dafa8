"""Linear models: scores and gradients, L-BFGS, and many models at once."""
