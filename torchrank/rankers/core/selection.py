"""Lists with fewer entries, a drawn share of the lowest documents or the nearest neighbours of the query; or with fewer
features."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrank.data.batch import Batch, make_batch
from torchrank.data.sparse import SparseRows
from torchrank.data.training import TrainingLists
from torchrank.data.weights import at
from torchrank.functional.arrays import to_offsets
from torchrank.functional.ragged import dominating, list_ids, positions_within, ranks, segment_sum
from torchrank.solvers.metric_scores import metric_scores

IMPOSTORS = 3  # for each relevant neighbour


def keep_negatives(
    batch: Batch, share: float, seed: int, *, lowest: float | None = None, grades: Tensor | None = None
) -> Batch:
    """The batch with a share of the documents at the lowest label of each list: max(1, round(share * number)) of them,
    drawn without replacement; all others stay. The draw depends on the seed and on the list's position in its set, not
    on how lists are split into batches. `lowest` is the lowest label of all lists, if lists are compared with each
    other; `grades` (N,) replace the labels of the batch."""
    grades = batch.labels if grades is None else grades
    above = dominating(grades, batch.offsets) if lowest is None else grades > lowest
    ids = list_ids(batch.offsets, len(batch.labels))
    number = segment_sum((~above).double(), batch.offsets)
    wanted = torch.where(number > 0, (share * number).round().clamp(min=1), 0)
    keys = _mixed(batch.query[ids] * 2**32 + positions_within(batch.offsets, len(ids)) + seed * 2**16)
    keys = torch.where(above, torch.iinfo(torch.int64).max, keys)  # the lowest documents come first, in random order
    kept = above | (ranks(keys, batch.offsets, descending=False) <= wanted[ids])
    return narrow(batch, kept)


def keep_nearest(batch: Batch, neighbours: int, threshold: float) -> Batch:
    """Keep only the nearest entries of each query: `neighbours` relevant ones (label >= threshold) and three times as
    many others, by the Euclidean distance of the (transformed) rows; among equal distances, the first. Follows LMNN's
    target neighbours and impostors (Weinberger & Saul 2009): pairs far from the query, which no metric can order, are
    removed.
    """
    scores = metric_scores(batch, torch.ones(batch.x.shape[1], dtype=torch.float64, device=batch.device))
    relevant = batch.labels >= threshold

    def among(these: Tensor) -> Tensor:
        return ranks(torch.where(these, scores, -torch.inf), batch.offsets)

    near = relevant & (among(relevant) <= neighbours)
    return narrow(batch, near | (~relevant & (among(~relevant) <= IMPOSTORS * neighbours)))


def narrow(batch: Batch, kept: Tensor) -> Batch:
    """The batch with only the entries `kept` (N,); a list that loses all of its entries stays, as an empty one."""
    offsets = to_offsets(segment_sum(kept.long(), batch.offsets))
    rows = kept.nonzero().flatten()
    return make_batch(
        batch.x if batch.index is not None else batch.x[rows],
        batch.labels[rows],
        offsets,
        query=batch.query,
        index=None if batch.index is None else batch.index[rows],
        queries=batch.queries,
        num_grades=batch.num_grades,
        weights=at(batch.weights, rows),
        positions=at(batch.positions, rows),
    )


def take_features(lists: TrainingLists, features: Tensor) -> TrainingLists:
    """The lists with only these features; a shared corpus stays shared."""
    corpus = None if lists.corpus is None else take_columns(lists.corpus, features)
    return lists.changed(lambda batch: batch._replace(x=take_columns(batch.x, features) if corpus is None else corpus))


def take_columns(x: Tensor | SparseRows, features: Tensor) -> Any:
    """The rows with only these features."""
    if not isinstance(x, SparseRows):
        return x[:, features]
    place = torch.full((x.num_features,), -1, device=x.device, dtype=x.columns.dtype)
    place[features] = torch.arange(len(features), device=x.device, dtype=x.columns.dtype)
    values, columns, lengths = [x.values[:0]], [x.columns[:0]], [x.row_offsets[:0]]
    for _, block in x.blocks():  # little memory beside what is kept
        places = place[block.columns]
        inside = places >= 0
        values.append(block.values[inside])
        columns.append(places[inside])
        lengths.append(pad(inside.cumsum(0), (1, 0))[block.row_offsets].diff())
    return SparseRows(torch.cat(values), torch.cat(columns), to_offsets(torch.cat(lengths)), len(features))


def _mixed(numbers: Tensor) -> Tensor:
    """Map each integer to another one that looks random (splitmix64)."""
    numbers = numbers * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        numbers = (numbers ^ ((numbers >> shift) & (2 ** (64 - shift) - 1))) * factor
    return numbers ^ ((numbers >> 31) & (2**33 - 1))
