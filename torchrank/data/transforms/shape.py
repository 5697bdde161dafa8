"""The rule of `transform=auto`: what a sample of whole training lists looks like decides."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchrank.data.rows import Chunks
from torchrank.data.sparse import SparseRows
from torchrank.functional.ragged import list_ids, subsample

ROWS = 4096  # of the sample
FEW = 50  # rows tell no shape
NORMALISED = 0.9  # share of the columns of lists that run from 0 to 1
STRAIGHT = 0.97  # correlation of a column with its normal scores
MOST = 0.9  # of the columns
REASONS = {  # of the choice, in the order in which checkpoints number them
    "sparse": ("none", "sparse rows stay as they are"),
    "shared": ("standard", "the lists share rows or have query vectors"),
    "few": ("standard", f"fewer than {FEW} rows"),
    "normalised": ("standard", "the features are normalised by query"),
    "bell": ("standard", "the features are nearly bell-shaped or have two values"),
    "skewed": ("quantile", "the features are neither normalised by query nor bell-shaped"),
}


@torch.no_grad()
def reason_of(chunks: Chunks, vectors: bool = False) -> str:
    """The key of `REASONS` that holds for these rows; the same on every process, since all draw the same sample.

    >>> skewed = torch.linspace(-4, 4, 200)[:, None].exp()
    >>> reason_of(Chunks(skewed, torch.tensor([0, 100, 200]), "cpu", 1))
    'skewed'
    """
    if isinstance(chunks.x, SparseRows):
        return "sparse"
    if vectors or chunks.offsets is None:
        return "shared"
    rows, offsets = _sample(chunks)
    if len(rows) < FEW or not rows.isfinite().all():  # what is not finite is refused by the transform, with its place
        return "few"
    rows = rows[:, rows.amax(0) > rows.amin(0)]
    if rows.shape[1] == 0 or (offsets is not None and _normalised(rows, offsets) >= NORMALISED):
        return "normalised"
    return "bell" if (_straightness(rows) >= STRAIGHT).double().mean() >= MOST else "skewed"


def _sample(chunks: Chunks) -> tuple[Tensor, Tensor | None]:
    """About `ROWS` rows: whole lists, drawn by a seed; or without offsets single rows, where lists are longer."""
    lengths = np.diff(chunks.bounds)
    order = np.random.default_rng(0).permutation(len(lengths))
    lists = np.sort(order[np.cumsum(lengths[order]) <= ROWS])
    count = int(lengths[lists].sum())
    if count < min(ROWS // 4, chunks.num_rows):
        places, offsets = subsample(chunks.num_rows, ROWS, 0).numpy(), None
    else:
        starts = chunks.bounds[lists] - np.concatenate(([0], np.cumsum(lengths[lists])[:-1]))
        places = np.repeat(starts, lengths[lists]) + np.arange(count)
        offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths[lists])))).to(chunks.device)
    rows = chunks.x[torch.from_numpy(places).to(chunks.x.device)].to(device=chunks.device, dtype=torch.float64)
    for step in chunks.steps:
        rows = step(rows, torch.tensor([0, len(rows)], device=rows.device) if offsets is None else offsets)
    return rows, offsets  # type: ignore[return-value]


def _normalised(rows: Tensor, offsets: Tensor) -> float:
    """The share of the columns of lists, among those with different values, that run from 0 to 1."""
    places = list_ids(offsets, len(rows))[:, None].expand_as(rows)
    start = rows.new_full((len(offsets) - 1, rows.shape[1]), torch.inf)
    low, high = start.scatter_reduce(0, places, rows, "amin"), (-start).scatter_reduce(0, places, rows, "amax")
    found = ((low.abs() < 1e-3) & ((high - 1).abs() < 1e-3))[high > low]
    return float(found.double().mean()) if len(found) else 1.0


def _straightness(rows: Tensor) -> Tensor:
    """The correlation (D,) of each column with its normal scores, as in Shapiro and Francia's test of normality."""
    columns = rows.T.contiguous()
    ordered = columns.sort(1).values
    ranks = torch.searchsorted(ordered, columns) + torch.searchsorted(ordered, columns, right=True)
    scores = torch.special.ndtri(ranks.double() / (2 * len(rows)))
    first, second = (each - each.mean(1, keepdim=True) for each in (columns / columns.abs().amax(1)[:, None], scores))
    return (first * second).sum(1) / (first.square().sum(1) * second.square().sum(1)).sqrt().clamp(min=1e-300)
