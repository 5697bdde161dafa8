"""Figures of sweeps, fits and metrics."""
