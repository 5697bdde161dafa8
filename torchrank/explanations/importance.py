"""Permutation importance: how much of a measure is lost when the values of one feature are shuffled (Breiman 2001)."""

from __future__ import annotations

import os
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrank.data.sampler import ranges
from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.errors import DataError, check_integer
from torchrank.explanations.names import as_text, bars, cell, feature_names_of, new_table
from torchrank.functional.arrays import to_offsets
from torchrank.progress import bar
from torchrank.rankers.core.evaluation import SplitMeasures
from torchrank.rankers.core.ranker import Ranker
from torchrank.record import smaller_is_better

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

DOCUMENTS = 20_000  # scored at once


@dataclass(frozen=True, eq=False)
class Importance:
    """What each feature is worth to a ranker, in a measure. `permutation_importance` makes it.

    Args:
        names: of the features.
        values: (D,) how much worse the measure is when the feature is shuffled; the mean over the repeats.
        errors: (D,) standard errors of these means over the repeats; nan for one repeat.
        measure: its name.
        base: its value on the lists as they are.
        repeats: permutations.

    Example:
        >>> found = Importance(("price", "title"), torch.tensor([0.0, 0.25]), torch.tensor([0.0, 0.5]), "map", 0.7, 5)
        >>> found.order().tolist(), found.to_dict()["features"][0]
        ([1, 0], {'name': 'title', 'importance': 0.25, 'error': 0.5})
    """

    names: tuple[str, ...]
    values: Tensor
    errors: Tensor
    measure: str
    base: float
    repeats: int

    def order(self) -> Tensor:
        """The features (D,), most important first; equal ones in their order."""
        return self.values.sort(descending=True, stable=True).indices

    def to_dict(self) -> dict[str, Any]:
        """Plain values, most important feature first."""
        values: list[float] = self.values.tolist()
        errors: list[float | None] = self.errors.tolist() if self.repeats > 1 else [None] * len(values)
        rows = [
            {"name": self.names[place], "importance": values[place], "error": errors[place]}
            for place in self.order().tolist()
        ]
        return {"measure": self.measure, "value": self.base, "repeats": self.repeats, "features": rows}

    def table(self, top: int | None = None) -> Table:
        """A table for `rich.print`, most important feature first; `top` rows of it."""
        table = new_table("feature", "importance", "± error")
        for place in self.order()[:top].tolist():
            table.add_row(
                cell(self.names[place]), f"{float(self.values[place]):+.4f}", f"{float(self.errors[place]):.4f}"
            )
        return table

    @property
    def title(self) -> str:
        """What the numbers are, in one line."""
        return f"Loss of {self.measure} ({self.base:.4f}) when a feature is shuffled, mean of {self.repeats} repeats"

    def __str__(self) -> str:
        return f"{self.title}\n{as_text(self.table())}"

    def plot(self, path: str | os.PathLike[str] | None = None, *, top: int = 20) -> Figure:
        """Bars of the `top` features with their errors; also written to `path`, in the format of its suffix."""
        order = self.order()[:top]
        names, values = [self.names[place] for place in order.tolist()], self.values[order].tolist()
        errors = self.errors[order].nan_to_num().tolist()
        label = f"loss of {self.measure} (mean of {self.repeats} repeats ± standard error)"
        return bars(names, values, errors=errors, title="Permutation importance", label=label, path=path)


@torch.no_grad()
def permutation_importance(
    ranker: Ranker, lists: RankingSet, measure: str = "ndcg@10", repeats: int = 5, seed: int = 0
) -> Importance:
    """How much of a measure is lost when the raw values of one feature are shuffled over all documents of the set.

    The values of a column change places among all rows of the set, not within each list: a feature that is the same
    for all documents of a query is shuffled too. All features are shuffled by the same `repeats` permutations. Query
    vectors stay as they are. Two features that say the same share their importance, or hide it from each other.

    Args:
        ranker: a fitted ranker.
        lists: labelled lists, best those of a validation or test set; dense or sparse rows, own or of a corpus.
        measure: a measure by name. Of an error measure the importance is how much it grows.
        repeats: permutations; the standard error is that over them.
        seed: draws the permutations.

    Returns:
        The importance of each feature with its standard error, in units of the measure.

    Example:
        >>> from torchrank import ListNet
        >>> x, offsets = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 1.0], [3.0, 1.0]]), torch.tensor([0, 2, 4])
        >>> lists = RankingSet(x, torch.tensor([0.0, 1.0, 0.0, 1.0]), offsets)
        >>> found = permutation_importance(ListNet(2).fit(lists), lists, repeats=20)
        >>> found.names[found.order()[0]], bool(found.values[0] > 0), float(found.values[1])
        ('f1', True, 0.0)
    """
    if not isinstance(lists, RankingSet):
        raise DataError(f"permutation_importance measures a RankingSet, got {type(lists).__name__}: make one of it")
    check_integer(">= 1", repeats=repeats)
    ranker.check_set(lists)
    was_training = ranker.training
    base = _measured(ranker.eval(), lists, measure)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(lists.x), generator=generator).to(lists.device) for _ in range(repeats)]
    losses, varying = torch.zeros(repeats, lists.num_features, dtype=torch.float64), _varying(lists.x)
    for feature in bar(varying, desc="features"):
        for repeat, order in enumerate(orders):
            losses[repeat, feature] = base - _measured(ranker, _shuffled(lists, feature, order), measure)
    ranker.train(was_training)
    losses = -losses if smaller_is_better(measure) else losses
    errors = losses.std(0) / repeats**0.5 if repeats > 1 else torch.full_like(losses[0], torch.nan)
    names = feature_names_of(lists.num_features, ranker, lists)
    return Importance(names, losses.mean(0), errors, measure, base, repeats)


def _measured(ranker: Ranker, lists: RankingSet, measure: str) -> float:
    """The mean of the measure over the lists that have a value."""
    measures = SplitMeasures([measure], lists=lists)
    for first, last in ranges(lists.lengths, DOCUMENTS, 0, len(lists)):
        batch = lists[first:last].to(ranker.device)
        topic = batch.query if ranker.num_topics is not None else None
        scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries, query=topic)
        measures.update(scores, batch)
    value = float(measures.conclude()[0]["default"]["measures"][measure])
    if value != value:
        raise DataError(f"no list of the set '{lists.name}' has a value of {measure}: are there relevant documents?")
    return value


def _varying(x: Tensor | SparseRows) -> list[int]:
    """The columns with more than one value: to shuffle the others changes nothing."""
    if len(x) == 0:
        return []
    if not isinstance(x, SparseRows):
        return list(map(int, (x.amin(0) != x.amax(0)).nonzero()))
    return list(map(int, x.columns.unique()))


def _shuffled(lists: RankingSet, feature: int, order: Tensor) -> RankingSet:
    """The lists with the values of one column in another order."""
    changed = copy(lists)
    if isinstance(lists.x, SparseRows):
        changed.x = _moved(lists.x, feature, order)
    else:
        changed.x = lists.x.clone()
        changed.x[:, feature] = lists.x[order, feature]
    return changed


def _moved(x: SparseRows, feature: int, order: Tensor) -> SparseRows:
    """Row i gets the values that row `order[i]` has in this column."""
    rows = torch.where(x.columns == feature, order.argsort()[x.row_ids()], x.row_ids())
    place = rows.argsort(stable=True)
    counts = torch.bincount(rows, minlength=len(x))
    return SparseRows(x.values[place], x.columns[place], to_offsets(counts), x.num_features)
