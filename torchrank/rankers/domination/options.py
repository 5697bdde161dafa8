"""What DominationRank refuses at the door."""

import math
from typing import Any

from torchrank.solvers.domination.margins import check_margin


def check_options(ranker: Any, solver: str) -> None:
    """Refuse options that DominationRank does not know or that do not go together; `solver` as it was given."""
    chosen = {
        "solver": (solver, ("auto", "lbfgs", "fista", "cd", "blocked")),
        "order": (ranker.order, ("sequential", "random")),
        "bound": (ranker.bound, ("range", "square")),
        "grades": (ranker.grades, ("layered", "flat")),
        "group": (ranker.group, ("query", "pooled")),
    }
    for name, (value, choices) in chosen.items():
        if value not in choices:
            raise ValueError(f"unknown {name}={value!r}: choose one of {', '.join(choices)}")
    numbers = {
        "l1": (ranker.l1, 0 <= ranker.l1 < math.inf, "0 or a finite number above"),
        "l2": (ranker.l2, 0 <= ranker.l2 < math.inf, "0 or a finite number above"),
        "negatives": (ranker.negatives, 0 < ranker.negatives <= 1, "above 0, at most 1: the share that is kept"),
        "gain_tolerance": (ranker.gain_tolerance, 0 <= ranker.gain_tolerance < 1, "at least 0, below 1"),
        "path_ratio": (ranker.path_ratio, 0 < ranker.path_ratio < 1, "between 0 and 1: the last l1 over the first"),
        "tolerance": (ranker.tolerance, 0 < ranker.tolerance < math.inf, "above 0 and finite"),
        "induction": (ranker.induction, ranker.induction is None or ranker.induction >= 1, "1 at least"),
        "path": (ranker.path, ranker.path is None or ranker.path >= 1, "1 at least"),
        "block": (ranker.block, ranker.block >= 1, "1 at least"),
    }
    for name, (value, fine, what) in numbers.items():
        if not fine:
            raise ValueError(f"{name}={value} has to be {what}")
    check_margin(ranker.feedback.option)
    if ranker.solver == "lbfgs" and (ranker.l1 > 0 or ranker.path):
        raise ValueError("solver=lbfgs needs a smooth objective: use fista with l1 or a path")
    if ranker.group == "pooled" and ranker.solver in ("cd", "blocked"):
        raise ValueError(f"solver={ranker.solver} sums over lists, and group=pooled has one only: use fista or lbfgs")
    if ranker.group == "pooled" and ranker.per_topic:
        raise ValueError("group=pooled ranks all lists together, per_topic each by itself: choose one")
