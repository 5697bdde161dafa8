"""A drawn share of the lowest documents of each list."""

import torch
from torch import Tensor

from torchrank.data.batch import Batch, make_batch
from torchrank.functional.ragged import dominating, list_ids, positions_within, ranks, segment_sum, to_offsets


def keep_negatives(
    batch: Batch, share: float, seed: int, *, lowest: float | None = None, grades: Tensor | None = None
) -> Batch:
    """The batch with a share of the documents at the lowest label of each list: max(1, round(share * number)) of them,
    drawn without replacement; all others stay. The draw depends on the seed and on the list's position in its set, not
    on how lists are cut into batches. `lowest` is the lowest label where lists are compared with each other, `grades`
    (N,) are the labels where those of the batch are not meant."""
    grades = batch.labels if grades is None else grades
    above = dominating(grades, batch.offsets) if lowest is None else grades > lowest
    ids = list_ids(batch.offsets, len(batch.labels))
    number = segment_sum((~above).double(), batch.offsets)
    wanted = torch.where(number > 0, (share * number).round().clamp(min=1), 0)
    keys = _mixed(batch.query[ids] * 2**32 + positions_within(batch.offsets, len(ids)) + seed * 2**16)
    keys = torch.where(above, torch.iinfo(torch.int64).max, keys)  # the lowest documents come first, in random order
    kept = above | (ranks(keys, batch.offsets, descending=False) <= wanted[ids])
    return narrow(batch, kept)


def narrow(batch: Batch, kept: Tensor) -> Batch:
    """The batch with these entries (N,) only; lists that lose all of theirs are empty."""
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
    )


def _mixed(numbers: Tensor) -> Tensor:
    """Each integer as another one that looks random (splitmix64)."""
    numbers = numbers * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        numbers = (numbers ^ ((numbers >> shift) & (2 ** (64 - shift) - 1))) * factor
    return numbers ^ ((numbers >> 31) & (2**33 - 1))
