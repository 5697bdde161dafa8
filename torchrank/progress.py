"""Progress bars for people at a terminal; logs and pipes stay free of them."""

import sys
from typing import Any

from tqdm import tqdm


def bar(*given: Any, shown: bool = True, **options: Any) -> Any:
    """A bar of tqdm that appears after two seconds and vanishes at its end.

    Args:
        given: what tqdm takes, such as an iterable.
        shown: False for none, as in all processes but the first.
        options: other options of tqdm.

    Returns:
        The bar. It is silent if stderr is not a terminal, or with TQDM_DISABLE=1.

    Example:
        >>> list(bar(range(3), desc="count"))
        [0, 1, 2]
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    hidden = {} if shown and terminal else {"disable": True}  # disable=False would overrule TQDM_DISABLE=1
    return tqdm(*given, **{"delay": 2, "leave": False} | options | hidden)
