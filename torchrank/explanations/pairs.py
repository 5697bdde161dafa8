"""Why one document is ranked above another: what each raw feature adds to the difference of their scores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrank.data.batch import Batch, unlabelled
from torchrank.data.sparse import SparseRows
from torchrank.errors import DataError
from torchrank.explanations.exact import Parts, parts_of, parts_of_raw
from torchrank.explanations.names import as_text, bars, cell, feature_names_of, new_table
from torchrank.explanations.shapley import shapley_parts
from torchrank.functional.arrays import Array, to_tensor
from torchrank.functional.ragged import entries_of, sort_within
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.lgmml.scorer import lists_of_pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, eq=False)
class Explanation:
    """What each feature adds to the difference of the scores of two documents. `explain` makes it.

    Args:
        names: of the features.
        pairs: (P, 2) entries, first and second.
        values: (P, 2, D) their raw rows.
        scores: (P, 2) their scores.
        parts: (P, D) what each feature adds to score[first] - score[second].
        method: how the parts were found.
        documents: names of the first and second document of each pair; None: their entries.

    Example:
        >>> rows, scores = torch.tensor([[[3.0, 1.0], [1.0, 1.0]]]), torch.tensor([[6.0, 2.0]])
        >>> found = Explanation(("clicks", "age"), torch.tensor([[0, 1]]), rows, scores, torch.tensor([[4.0, 0.0]]), "")
        >>> found.difference.tolist(), found.residual.tolist(), found.to_dict()["features"][0]["part"]
        ([4.0], [0.0], 4.0)
    """

    names: tuple[str, ...]
    pairs: Tensor
    values: Tensor
    scores: Tensor
    parts: Tensor
    method: str
    documents: tuple[tuple[str, str], ...] | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def difference(self) -> Tensor:
        """(P,) score[first] - score[second]."""
        return self.scores[:, 0] - self.scores[:, 1]

    @property
    def residual(self) -> Tensor:
        """(P,) what is left of the difference after all parts: 0, apart from rounding, where the parts are exact."""
        return self.difference - self.parts.sum(1)

    def order(self, pair: int = 0) -> Tensor:
        """The features (D,) of a pair, largest part first by its absolute value; equal ones in their order."""
        return self.parts[pair].abs().sort(descending=True, stable=True).indices

    def to_dict(self, pair: int = 0) -> dict[str, Any]:
        """One pair in plain values, largest part first."""
        order = self.order(pair)
        columns = (order, self.parts[pair][order], *self.values[pair][:, order])
        rows = [
            {"name": self.names[place], "part": part, "first": a, "second": b}
            for place, part, a, b in zip(*(column.tolist() for column in columns), strict=True)
        ]
        numbers = {"difference": float(self.difference[pair]), "residual": float(self.residual[pair])}
        known = {
            "pair": self.pairs[pair].tolist(),
            "documents": list(self.named(pair)),
            "scores": self.scores[pair].tolist(),
            "method": self.method,
        }
        return known | numbers | {"features": rows}

    def named(self, pair: int = 0) -> tuple[str, str]:
        """What the two documents of a pair are called."""
        first, second = self.pairs[pair].tolist()
        return (f"entry {first}", f"entry {second}") if self.documents is None else self.documents[pair]

    def title(self, pair: int = 0) -> str:
        """The difference in one line."""
        (first, second), (a, b) = self.named(pair), self.scores[pair].tolist()
        return f"Score {a:.6g} of {first} minus {b:.6g} of {second}: {a - b:+.6g} ({self.method})"

    def table(self, pair: int = 0, top: int | None = None) -> Table:
        """A table of one pair for `rich.print`: the `top` parts, largest first, the sum of the others, the residual."""
        table = new_table("feature", *self.named(pair), "part")
        order = self.order(pair)
        for place in order[:top].tolist():
            values = (f"{float(value):.6g}" for value in self.values[pair, :, place])
            table.add_row(cell(self.names[place]), *values, f"{float(self.parts[pair, place]):+.6g}")
        if top is not None and len(order) > top:
            rest = float(self.parts[pair, order[top:]].sum())
            table.add_row(f"{len(order) - top} others", "", "", f"{rest:+.6g}")
        table.add_row("residual", "", "", f"{float(self.residual[pair]):+.1e}", end_section=True)
        table.add_row("difference", "", "", f"{float(self.difference[pair]):+.6g}")
        return table

    def __str__(self) -> str:
        return "\n\n".join(f"{self.title(pair)}\n{as_text(self.table(pair))}" for pair in range(len(self)))

    def plot(self, path: str | os.PathLike[str] | None = None, *, pair: int = 0, top: int = 20) -> Figure:
        """Bars of the `top` parts of one pair; also written to `path`, in the format of its suffix."""
        order = self.order(pair)[:top]
        names = [self.names[place] for place in order.tolist()]
        title = "Score of {} minus score of {}: {:+.4g}".format(*self.named(pair), float(self.difference[pair]))
        label = "part of the difference"
        parts = self.parts[pair][order].tolist()
        return bars(names, parts, errors=None, title=title, label=label, path=path)


def explain(
    ranker: Ranker,
    x: Array,
    offsets: Array = None,
    pairs: Array = None,
    *,
    group: Array = None,
    qid: Array = None,
    index: Array = None,
    queries: Array = None,
    query: Array = None,
) -> Explanation:
    """Why one document of a list is ranked above another: what each raw feature adds to the difference of the scores.

    Parts are exact where the model has them: linear models, also in a list of their own (weight times difference),
    boosted rules, local metrics, distances, and trees (SHAP values). Networks have integrated gradients on the way from
    one document to the other, and every other ranker has Shapley values. The parts sum to the difference up to the
    `residual` of the result.

    Features keep their places in a transform that works column by column. The parts of principal components and of
    products are divided among their features in proportion to what each adds to the change.

    Args:
        ranker: a fitted ranker.
        x: (n, D) raw rows of whole lists, as for a call of the ranker.
        offsets: (Q + 1,) where each list begins and ends.
        pairs: (P, 2) entries, first and second, both of one list; or one pair (a, b). None: the best two of each list
            that has two.
        group: (Q,) number of entries of each list, in place of offsets.
        qid: (N,) query id of each entry, in place of offsets.
        index: (N,) the corpus row of each entry, where the lists share a corpus.
        queries: (Q, D) query vectors, for rankers that learned distances from them.
        query: (Q,) the topic of each list, for rankers with a model for each topic.

    Returns:
        The parts of each pair, with the names of the features: `ranker.feature_names`, or f1, f2, ... as LETOR files
        count.

    Example:
        >>> from torchrank import ListNet, RankingSet
        >>> x, offsets = torch.tensor([[0.0, 5.0], [2.0, 4.0], [1.0, 5.0]]), torch.tensor([0, 3])
        >>> ranker = ListNet(2).fit(RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets))
        >>> found = explain(ranker, x, offsets, (1, 0))
        >>> bool(found.parts[0, 0] > 0), bool(found.residual.abs().max() < 1e-6)
        (True, True)
    """
    given = {"index": index, "queries": queries, "query": query}
    rows, bounds, given = ranker._tensors(x, offsets, group, qid, given)
    was_training = ranker.training
    ranker.eval()
    try:
        raw = unlabelled(rows, bounds, **given)
        return _explained(ranker, raw, _best_pairs(ranker, raw, given) if pairs is None else _checked(pairs, raw))
    finally:
        ranker.train(was_training)


@torch.no_grad()
def _best_pairs(ranker: Ranker, raw: Batch, given: dict[str, Any]) -> Tensor:
    """The best and the second-best entry of each list that has two."""
    order, starts = sort_within(ranker(raw.x, raw.offsets, **given), raw.offsets), raw.offsets[:-1]
    starts = starts[raw.offsets.diff() > 1]
    return torch.stack((order[starts], order[starts + 1]), 1)


def _checked(pairs: Array, raw: Batch) -> Tensor:
    found = to_tensor(pairs, "pairs")
    found = found[None] if found.dim() == 1 else found
    if found.is_floating_point() or found.dtype == torch.bool or found.dim() != 2 or found.shape[1] != 2:
        kind = str(found.dtype).removeprefix("torch.")
        raise DataError(f"pairs must be integers (P, 2), or one pair (a, b), got {kind} of shape {tuple(found.shape)}")
    entries = len(raw.labels)
    if len(found) and (int(found.min()) < 0 or int(found.max()) >= entries):
        raise DataError(f"pairs run over {int(found.min())}..{int(found.max())}, but there are {entries} entries")
    return found.long().to(raw.device)


def _explained(ranker: Ranker, raw: Batch, pairs: Tensor) -> Explanation:
    lists, place = lists_of_pairs(pairs, raw.offsets, len(raw.labels)).unique(return_inverse=True)
    kept, entries = _lists_alone(raw, lists)
    own = torch.searchsorted(entries, pairs)
    topic = None if ranker.num_topics is None else kept.query
    batch = ranker.inputs(kept.x, kept.offsets, queries=kept.queries, query=topic)
    queries = None if batch.queries is None else batch.queries.double()
    batch = batch._replace(x=batch.dense.double(), queries=queries)
    with torch.no_grad():
        scores = ranker.score(batch).double()
        found = parts_of(ranker, batch, own)
    if found is None:
        found = Parts(*shapley_parts(ranker, kept, own, place))
    else:
        found = found._replace(values=parts_of_raw(ranker.transform, kept, own, found.values))
    names = feature_names_of(ranker.num_features, ranker)
    values = kept.dense[own].double().cpu()
    return Explanation(names, pairs.cpu(), values, scores[own].cpu(), found.values.cpu(), found.method)


def _lists_alone(raw: Batch, lists: Tensor) -> tuple[Batch, Tensor]:
    """These lists with a dense row for each entry, and the entries that they have in the batch."""
    entries, offsets = entries_of(raw.offsets, lists)
    rows = raw.x[entries if raw.index is None else raw.index[entries]]
    queries = None if raw.queries is None else raw.queries[lists]
    dense = rows.dense() if isinstance(rows, SparseRows) else rows
    return unlabelled(dense, offsets, queries=queries, query=raw.query[lists]), entries
