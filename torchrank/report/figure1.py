"""The table of Figure 1 of the LocalRank paper: how well a model of q1 ranks q2 and q3, and which of them is nearer."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from torchrank.report.tables import Sheet

PUBLISHED = {  # Banerjee, Dubey, Machchhar & Chakrabarti 2009, Figure 1; its parameters are not published
    "AP": (1.000, 0.887), "pca": (0.177, 0.810), "jeffreys": (84.6, 48.0), "1 - K": (1.000, 0.917), "mean": (95.9, 1.1),
}  # fmt: skip


def figure1_sheet(precision: ArrayLike, distances: Mapping[str, ArrayLike]) -> Sheet:
    """From average precisions (worlds, 2) of the model of q1 on q2 and q3, and distances (worlds, 2) of q1 to both.

    The last row counts the worlds in which a column puts q2 first: ranked better, or nearer.

    >>> sheet = figure1_sheet([[0.9, 0.4], [0.8, 0.5]], {"pca": [[0.1, 0.7], [0.2, 0.8]], "mean": [[90, 1], [80, 2]]})
    >>> sheet.rows
    [['q2', '0.850', '0.150', '85.0'], ['q3', '0.450', '0.750', '1.500'], ['q2 first', '2 of 2', '2 of 2', '0 of 2']]
    """
    columns = {"AP": np.asarray(precision), **{name: np.asarray(values) for name, values in distances.items()}}
    worlds = len(columns["AP"])
    for name, values in columns.items():
        if values.shape != (worlds, 2):
            raise ValueError(f"{name} has shape {values.shape}: give ({worlds}, 2), a row for each world, q2 and q3")
    sheet = Sheet(f"q1's model on q2 and q3, and distances of q1 to both, means of {worlds} worlds", ["", *columns])
    for place, query in enumerate(("q2", "q3")):
        sheet.rows.append([query, *(_number(values[:, place].mean()) for values in columns.values())])
    first = [nearer(values if name == "AP" else -values) for name, values in columns.items()]
    sheet.rows.append(["q2 first", *(f"{count} of {worlds}" for count in first)])
    sheet.below = [
        "Last row: worlds in which q2 is ranked better than q3 (AP), in which it is the nearer one (distances)."
    ]
    known = [f"{name} {q2:g} and {q3:g}" for name, (q2, q3) in PUBLISHED.items() if name in columns]
    sheet.below.append(f"Published, of one world with other parameters, q2 and q3: {', '.join(known)}.")
    return sheet


def nearer(closeness: ArrayLike) -> int:
    """Rows (worlds, 2) whose first number is the larger one.

    >>> nearer([[0.9, 0.4], [0.5, 0.5]])
    1
    """
    values = np.asarray(closeness)
    return int((values[:, 0] > values[:, 1]).sum())


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
