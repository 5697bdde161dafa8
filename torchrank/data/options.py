"""Options of made-up data."""


def check_least(**options: tuple[float, float]) -> None:
    """Refuse options that are too small; each comes with the least that it can be.

    >>> check_least(queries=(3, 1), fold=(0, 1))
    Traceback (most recent call last):
    ValueError: data.fold=0 must be at least 1
    """
    for name, (value, least) in options.items():
        if value < least:
            raise ValueError(f"data.{name}={value} must be at least {least}")
