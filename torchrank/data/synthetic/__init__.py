"""Synthetic data sets: drawn by a seed, of any size, without a download."""


def check_least(**options: tuple[float, float]) -> None:
    """Refuse options that are too small; each is given as (value, least value).

    Example:
        >>> check_least(queries=(3, 1), fold=(0, 1))
        Traceback (most recent call last):
        ValueError: data.fold must be >= 1, got 0
    """
    for name, (value, least) in options.items():
        if value < least:
            raise ValueError(f"data.{name} must be >= {least}, got {value}")
