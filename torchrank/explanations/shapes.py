"""The functions of single features of an additive ranker: the whole model, drawn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrank.data.sets import RankingSet
from torchrank.data.sparse import SparseRows
from torchrank.data.transforms import PCA, Quadratic
from torchrank.errors import DataError, check_integer
from torchrank.explanations.exact import terms_of
from torchrank.explanations.names import as_text, cell, feature_names_of, new_table, save
from torchrank.export.models import weights_of
from torchrank.export.rows import steps_of
from torchrank.functional.ragged import subsample
from torchrank.rankers.core.ranker import Ranker
from torchrank.screen import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True, eq=False)
class Shapes:
    """What each feature adds to the scores of some documents. `shape_functions` makes it.

    Args:
        names: of the features.
        values: (n, D) raw values, each column ascending.
        terms: (n, D) what the feature adds at these values; the mean of each column is 0.
        importance: (D,) standard deviation of the terms.

    Example:
        >>> terms = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
        >>> found = Shapes(("price", "age"), torch.tensor([[2.0, 0.0], [3.0, 0.0]]), terms, terms.std(0, correction=0))
        >>> found.order().tolist(), found.to_dict()["features"][0]["importance"]
        ([0, 1], 1.0)
    """

    names: tuple[str, ...]
    values: Tensor
    terms: Tensor
    importance: Tensor

    def order(self) -> Tensor:
        """The features (D,), most important first; equal ones in their order."""
        return self.importance.sort(descending=True, stable=True).indices

    def to_dict(self) -> dict[str, Any]:
        """Plain values, most important feature first."""
        rows = [
            {
                "name": self.names[place],
                "importance": float(self.importance[place]),
                "values": self.values[:, place].tolist(),
                "terms": self.terms[:, place].tolist(),
            }
            for place in self.order().tolist()
        ]
        return {"documents": len(self.values), "features": rows}

    def table(self, top: int | None = None) -> Table:
        """A table for `rich.print`, most important feature first: how far a feature moves scores, and where."""
        table = new_table("feature", "importance", "lowest at", "highest at")
        for place in self.order()[:top].tolist():
            values, terms = self.values[:, place], self.terms[:, place]
            ends = (f"{float(values[end]):.6g}" for end in (terms.argmin(), terms.argmax()))
            table.add_row(cell(self.names[place]), f"{float(self.importance[place]):.4f}", *ends)
        return table

    def __str__(self) -> str:
        title = f"Standard deviation of what each feature adds to the scores of {len(self.values)} documents"
        return f"{title}\n{as_text(self.table())}"

    def plot(self, path: str | os.PathLike[str] | None = None, *, top: int = 12) -> Figure:
        """A curve for each of the `top` features; also written to `path`, in the format of its suffix."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("a plot needs matplotlib: pip install 'torchrank-ltr[plots]'") from error
        shown = self.order()[:top].tolist()
        rows = -(-len(shown) // 4)
        figure = Figure(figsize=(10, 2.4 * max(rows, 1)), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Any = figure.subplots(max(rows, 1), 4, sharey=True, squeeze=False).flatten()
        for one, place in zip(axes, shown, strict=False):
            one.plot(self.values[:, place].tolist(), self.terms[:, place].tolist(), color="#4477aa")
            one.set_title(visible(self.names[place]).replace("$", r"\$"), fontsize=9)
            one.axhline(0, color="black", linewidth=0.5)
        for one in axes[len(shown) :]:
            one.set_axis_off()
        figure.supylabel("part of the score", fontsize=9)
        if path is not None:
            save(figure, Path(path))
        return figure


@torch.no_grad()
def shape_functions(ranker: Ranker, lists: RankingSet, documents: int = 2000, seed: int = 0) -> Shapes:
    """What each feature adds to the score, as a function of its raw value: for additive networks and linear rankers.

    Args:
        ranker: a fitted ranker with `scorer="gam"`, or a linear one. The transform must work column by column.
        lists: lists whose documents are the points of the curves.
        documents: at most so many of them, drawn at random.
        seed: draws the documents.

    Returns:
        Values and terms of each feature, and the standard deviation of its terms as its importance.

    Example:
        >>> from torchrank import NeuralRanker
        >>> x, offsets = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> found = shape_functions(NeuralRanker(2, scorer="gam", lr=0.05).fit(lists, epochs=20), lists)
        >>> found.names[found.order()[0]], bool(found.terms[-1, 0] > found.terms[0, 0])
        ('f1', True)
    """
    check_integer(">= 1", documents=documents)
    if any(isinstance(step, PCA | Quadratic) for step in steps_of(ranker.transform)):
        raise DataError("shape_functions needs a transform that works column by column, not pca or quadratic")
    batch = lists[:].to(ranker.device)
    inputs = ranker.inputs(batch.x, batch.offsets, index=batch.index, queries=batch.queries).flat()
    rows = inputs.x.dense() if isinstance(inputs.x, SparseRows) else inputs.x
    inputs = inputs._replace(x=rows.double())
    terms, weight = terms_of(ranker, inputs), weights_of(ranker)
    if weight is not None:
        terms = inputs.dense * weight.to(ranker.device)
    if terms is None:
        raise DataError(f"{type(ranker).__name__} has no function of each feature: use scorer=gam, or a linear ranker")
    return _shapes(ranker, lists, batch.flat().x, terms.cpu(), subsample(len(terms), documents, seed))


def _shapes(ranker: Ranker, lists: RankingSet, raw: Tensor | SparseRows, terms: Tensor, chosen: Tensor) -> Shapes:
    some: Any = raw[chosen.to(raw.device)]
    some = (some.dense() if isinstance(some, SparseRows) else some).double().cpu()
    values, order = some.sort(dim=0, stable=True)
    found = terms.double()[chosen].gather(0, order)
    names = feature_names_of(ranker.num_features, ranker, lists)
    return Shapes(names, values, found - found.mean(0), found.std(0, correction=0))
