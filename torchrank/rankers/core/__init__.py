"""What all rankers share: the base class, fits with and without Lightning, evaluation, checkpoints."""
