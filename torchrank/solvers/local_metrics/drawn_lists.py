"""Which training lists and documents local metrics and their anchors are learned from."""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.errors import DataError, DataWarning
from torchrank.functional.arrays import to_offsets
from torchrank.functional.ragged import entries_of, positions_within, subsample


class ListTable(NamedTuple):
    """What the draws need to know about every training list, on the host."""

    highs: Tensor  # (Q,) number of high documents
    top: Tensor  # (Q,) largest label
    tops: Tensor  # (Q,) number of documents with it


def draw_sources(
    highs: Tensor, metrics: int, lists: int | None, generator: torch.Generator, classes: Tensor | None = None
) -> Tensor:
    """Training lists (M, `lists`) of every metric: all are drawn once before they are shuffled and drawn again.

    A list can be drawn when it has at least two high documents; `lists=None` takes every list that has one. Where
    queries have classes, every class comes once before any comes again, because the queries of a class have the same
    relevant documents.

    >>> draw_sources(torch.tensor([2, 1, 5, 0]), 2, 1, torch.Generator().manual_seed(0)).sort(0).values.tolist()
    [[0], [2]]
    """
    usable = (highs >= (1 if lists is None else 2)).nonzero().flatten()
    if len(usable) == 0:
        wanted = "one high document" if lists is None else "two high documents"
        raise DataError(
            f"none of the {len(highs)} training lists has {wanted} and a lower one, so no metric can be learned: check "
            "the labels, or try high=positive"
        )
    if lists is None:
        return usable.repeat(metrics, 1)
    count = min(lists, len(usable))
    if metrics > 1 and count == len(usable) and count > 1:
        warnings.warn(
            f"every metric is learned from the same {count} lists: lower queries_per_metric (now {lists})",
            DataWarning,
            stacklevel=2,
        )
    rows: list[list[int]] = []
    deck: list[int] = []
    for _ in range(metrics):
        row, deck = deck[:count], deck[count:]
        if missing := count - len(row):
            fresh, there = _shuffled(usable, generator, classes), set(row)
            fill = [position for position in fresh if position not in there][:missing]
            used = set(fill)
            row, deck = row + fill, [position for position in fresh if position not in used]
        rows.append(row)
    return torch.tensor(rows)


def _shuffled(usable: Tensor, generator: torch.Generator, classes: Tensor | None) -> list[int]:
    """The usable lists in random order, in which classes take turns."""
    deck = usable[torch.randperm(len(usable), generator=generator)]
    if classes is None:
        return deck.tolist()
    order = classes.cpu()[deck].argsort(stable=True)
    sizes = classes.cpu()[deck].bincount()
    turn = torch.empty_like(order).scatter(0, order, positions_within(to_offsets(sizes), len(order)))
    return deck[turn.argsort(stable=True)].tolist()


def draw_candidates(table: ListTable, sources: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Documents that may become the anchor of each metric: those with the largest label among its lists.

    They are given by their lists (M, C), -1 where there are fewer, and by their numbers (M, C) among the documents of
    the list that have that label. If there are more than `count`, a random choice is kept, in their order.
    """
    lists, numbers = torch.full((2, len(sources), count), -1)
    for metric, row in enumerate(sources):
        best = row[table.top[row] == table.top[row].max()]
        tops = table.tops[best].long()
        number = positions_within(to_offsets(tops), int(tops.sum()))
        kept = subsample(len(number), count, generator)
        lists[metric, : len(kept)] = best.repeat_interleave(tops)[kept]
        numbers[metric, : len(kept)] = number[kept]
    return lists, numbers


def found_in(batch: Batch, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where the training lists `positions (M, C)` are in this batch: list of the batch, row and column `(U,)` of each
    that is."""
    if batch.num_lists == 0:
        none = torch.zeros(0, dtype=torch.int64, device=batch.device)
        return none, none, none
    order = batch.query.argsort()
    slot = torch.searchsorted(batch.query[order], positions).clamp(max=batch.num_lists - 1)
    row, column = (batch.query[order][slot] == positions).nonzero(as_tuple=True)
    return order[slot[row, column]], row, column


def take_lists(batch: Batch, lists: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in float64, labels and offsets of these lists of a batch, in this order."""
    entries, offsets = entries_of(batch.offsets, lists)
    return own_rows(batch, entries), batch.labels[entries], offsets


def own_rows(batch: Batch, entries: Tensor) -> Tensor:
    """Rows of these entries in float64."""
    x: Any = batch.x
    rows: Tensor = x[entries if batch.index is None else batch.index[entries]].double()
    return rows
