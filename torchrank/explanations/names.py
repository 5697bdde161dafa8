"""The names of features, and how results print themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrank.screen import console, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table
    from rich.text import Text


def feature_names_of(num_features: int, *owners: Any) -> tuple[str, ...]:
    """The names that the first of these rankers and sets has; otherwise f1, f2, ..., as LETOR files count.

    >>> feature_names_of(2, None)
    ('f1', 'f2')
    """
    found = (getattr(owner, "feature_names", None) for owner in owners)
    given = next((names for names in found if names is not None and len(names) == num_features), None)
    return tuple(map(str, given)) if given is not None else tuple(f"f{number + 1}" for number in range(num_features))


def new_table(first: str, *numbers: str) -> Table:
    """A table with a column of names and columns of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(first, box=SIMPLE_HEAD)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def cell(name: str) -> Text:
    """A name as a cell that no console reads as markup."""
    from rich.text import Text

    return Text(visible(name))


def as_text(table: Table) -> str:
    """A table of rich as plain text."""
    screen = console(width=120, no_color=True, force_terminal=False)
    with screen.capture() as captured:
        screen.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def bars(
    names: Sequence[str],
    values: Sequence[float],
    *,
    errors: Sequence[float] | None,
    title: str,
    label: str,
    path: str | os.PathLike[str] | None,
) -> Figure:
    """Horizontal bars, the first name on top; blue for positive values, red for negative ones."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a plot needs matplotlib: pip install 'torchrank-ltr[plots]'") from error
    figure = Figure(figsize=(7, 1.2 + 0.28 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = [visible(name).replace("$", r"\$") for name in names]  # a dollar is no formula
    axes.barh(shown, values, xerr=errors, color=["#4477aa" if value >= 0 else "#cc6677" for value in values])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set(title=visible(title).replace("$", r"\$"), xlabel=label)
    axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        save(figure, Path(path))
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the suffix, whole or not at all."""
    from torchrank.files import write_atomically

    kinds = figure.canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    if kind not in kinds:
        raise ValueError(f"cannot plot to {path}: use one of the suffixes {', '.join(f'.{each}' for each in kinds)}")
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=150))
