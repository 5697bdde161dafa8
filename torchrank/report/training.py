"""What a fit has logged to its `log/metrics.csv`."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Curve = tuple[NDArray[np.int64], NDArray[np.float64]]


def read_curves(folder: str | Path) -> dict[str, Curve]:
    """Rounds, counted from 1, and values of everything that was logged in them, by name.

    The validation after the fit and the test are left out, and so are values that are no numbers.
    """
    path = Path(folder) / "log" / "metrics.csv"
    if not path.exists():
        raise ValueError(f"not found: {path}. Train with logger=csv, and pass the folder of a single run.")
    with path.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row.get("epoch")]
    trained = [
        int(row["epoch"]) for row in rows if any(name and text and name[:6] == "train/" for name, text in row.items())
    ]
    last = max(trained, default=float("inf"))
    rows = [row for row in rows if int(row["epoch"]) <= last]
    names = sorted({name for row in rows for name in row if name and name.partition("/")[0] in ("train", "val")})
    found = {name: [(int(row["epoch"]) + 1, float(row[name])) for row in rows if row.get(name)] for name in names}
    return {name: (np.array([x for x, _ in points]), np.array([y for _, y in points]))
            for name, points in found.items() if points}  # fmt: skip


def read_training(folder: str | Path, value: str) -> Curve:
    """Rounds and the value logged in each; see `read_curves`."""
    curves = read_curves(folder)
    if value not in curves:
        path = Path(folder) / "log" / "metrics.csv"
        raise ValueError(f"{path} has no value {value!r}: choose one of {', '.join(curves) or 'none'}")
    return curves[value]
