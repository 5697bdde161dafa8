"""`MEASURES`: a measure that enters the table is everywhere."""

import importlib.util
import inspect
import math
import sys
import types

import pytest
import torch

import torchrank.metrics
from tests.docs.pages import DOCS
from torchrank import RankingMetrics
from torchrank import functional as F
from torchrank.functional.conventions import NAMES, canonical, defines, why_nan

SCRATCH = '''
"""A measure in a module of its own."""
import math
from typing import Unpack
import torch
from torch import Tensor
from torchrank.functional.arrays import Array, wide
from torchrank.functional.conventions import GRADED, OPTIONAL, in_table
from torchrank.functional.lists import Weighted, measure
from torchrank.functional.ranking import rank


def top_grade_of(ranking, k, *, empty):
    inside = ranking.ranks <= (k or 1)
    value = ranking.lists.max(torch.where(inside, wide(ranking.labels), 0.0))
    return torch.where(value > -1, value, empty)


def soft_top_grade(lists, *, k=1):
    return lists.sum(lists.top(wide(lists.labels), k))


@in_table(
    "top_grade", "best_at", of=top_grade_of, cut=OPTIONAL, needs=GRADED, from_ranks=True, metric="TopGrade",
    highest=None, soft=soft_top_grade,
)
@measure
def top_grade_at(
    scores: Array, labels: Array, offsets: Array = None, *, k: int | None = None, empty: float = math.nan,
    **given: Unpack[Weighted],
) -> Tensor:
    """The highest grade in the top k.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the number of ranks that count.
        empty: the value of a list without entries.
        list_weights: importance of each list, `(Q,)`.

    Returns:
        The grade of each list, `(Q,)`.

    Example:
        >>> top_grade_at(torch.tensor([2.0, 1.0]), torch.tensor([1, 3]), torch.tensor([0, 2]), k=2)
        tensor([3.])
    """
    return top_grade_of(rank(scores, labels, offsets, k), k, empty=empty)
'''
LISTS = torch.tensor([3.0, 2.0, 1.0, 5.0, 4.0]), torch.tensor([0, 1, 3, 2, 4]), torch.tensor([0, 3, 5])


@pytest.fixture
def scratch(monkeypatch):
    monkeypatch.setattr(sys, "modules", sys.modules | {"scratch": types.ModuleType("scratch")})
    rows, names = dict(F.MEASURES), dict(NAMES)
    exec(SCRATCH, vars(sys.modules["scratch"]))
    yield sys.modules["scratch"]
    for table, before in ((F.MEASURES, rows), (NAMES, names)):
        table.clear()
        table.update(before)
    vars(torchrank.metrics).pop("TopGrade", None)


def site_hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks/site.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks


def test_a_measure_in_one_place_is_everywhere(scratch):
    assert F.top_grade_at is scratch.top_grade_at
    assert F.top_grade_at(*LISTS, k=2).tolist() == [1, 4]
    assert canonical("Best_At@2") == canonical("top_grade_at@2") == "top_grade@2" and defines("default", "top_grade")
    assert "top_grade" in F.CONVENTIONS["default"].measures and not defines("letor", "top_grade")
    values = F.evaluate(*LISTS, measures=["top_grade@2", "map", "best_at"])
    assert list(values) == ["top_grade@2", "map", "top_grade"] and values["top_grade"].tolist() == [0, 2]
    ranks = F.evaluate_ranks([1, 2, 3, 1, 2], *LISTS[1:], num_documents=9, measures=["top_grade@2"])
    assert ranks["top_grade@2"].tolist() == [1, 4]
    assert why_nan("top_grade", 1, lists=2) == "none of the 2 lists has a relevant document (a label above 0)"
    loss = F.as_loss("top_grade@2", temperature=1e-3)
    assert loss(*LISTS).tolist() == pytest.approx([-1, -6])
    assert RankingMetrics(["top_grade@2"])(*LISTS)["top_grade@2"] == 2.5
    metric = torchrank.metrics.TopGrade(k=2)
    assert metric(*LISTS) == 2.5 and metric.higher_is_better and metric.plot_upper_bound is None
    assert list(inspect.signature(torchrank.metrics.TopGrade).parameters) == ["k", "kwargs"]
    assert ">>> metric = TopGrade(k=2)" in torchrank.metrics.TopGrade.__doc__
    page = site_hooks().on_page_markdown((DOCS / "metrics.md").read_text())
    assert "| `top_grade@k`, `top_grade` | `top_grade_at`, `best_at` | `TopGrade(k)` | The highest grade in" in page
    assert "`arp`, `top_grade`" in page or "`top_grade`\n" in page or ", `top_grade`" in page


def test_and_gone_afterwards():
    assert "top_grade" not in F.MEASURES and not hasattr(F, "top_grade_at")
    assert not hasattr(torchrank.metrics, "TopGrade")


def test_every_row_is_exported():
    for row in F.MEASURES.values():
        assert row.function.__name__ in F.__all__ and getattr(F, row.function.__name__) is row.function
        assert row.metric is None or torchrank.EXPORTS[row.metric] == "torchrank.metrics"
        assert row.better in ("higher", "lower") and row.cut in ("optional", "required", "none")
        assert ("k" in inspect.signature(row.function).parameters) == (row.cut != "none")


@pytest.mark.parametrize("name", F.MEASURES)
def test_rows_tell_which_way_is_better(name):
    """Of a perfect and of a reversed ranking."""
    row, labels, lists = F.MEASURES[name], torch.tensor([3, 2, 0, 0]), [0, 4]
    if "classes" in row.options:
        return
    measure = f"{name}@2" if row.cut == "required" else name
    perfect, worst = (
        F.evaluate(scores, labels, lists, measures=[measure], max_label=3)[measure].item()
        for scores in (torch.tensor([4.0, 3, 2, 1]), torch.tensor([1.0, 2, 3, 4]))
    )
    assert not math.isnan(perfect)
    if name not in ("hits", "hit"):  # which count the whole list
        assert perfect > worst if row.better == "higher" else perfect < worst


@pytest.mark.parametrize("name", F.MEASURES)
def test_why_nan_names_what_is_missing(name):
    """A list that has what the message asks for has a value, and one without it has none."""
    row = F.MEASURES[name]
    if "classes" in row.options:
        return
    measure, options = (f"{name}@2" if row.cut == "required" else name), {"max_label": 3}
    without = {"above 0": [0, 0], "or more) and others": [1, 1], "or more)": [0, 0], "different labels": [1, 1]}
    labels = next(labels for text, labels in without.items() if text in why_nan(measure, 1, lists=1))
    for given, expected in ((labels, True), ([0, 2], False)):
        assert F.evaluate([2.0, 1.0], given, [0, 2], measures=[measure], **options)[measure].isnan().item() is expected
