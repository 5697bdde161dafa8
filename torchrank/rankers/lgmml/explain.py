"""Why one document is ranked above another: the score difference, split over metrics and features."""

import torch
from torch import Tensor

from torchrank.functional.ragged import list_ids


def explain_differences(terms: Tensor, rows: Tensor, factors: Tensor, shifts: Tensor, pairs: Tensor) -> Tensor:
    """Contributions (P, M, D) whose sum is the score difference of the entries `pairs (P, 2)`, first minus second.

    `terms (N, M)` add up to the scores. The difference of term r between documents a and b is split over the features
    in the proportions of (a - b)_j [F_r (F_r' (a + b) - 2 shift_r)]_j, which add up to the difference of the squared
    distances ||F_r' x - shift_r||^2; equally where that is 0. `shifts` are (M, k), or (P, M, k) where lists differ.
    """
    first, second = pairs.unbind(1)
    gap, both = rows[first] - rows[second], rows[first] + rows[second]
    image = torch.einsum("mdk,pmk->pmd", factors, torch.einsum("mdk,pd->pmk", factors, both) - 2 * shifts)
    form = gap[:, None] * image
    total = form.sum(-1, keepdim=True)
    share = torch.where(total == 0, 1 / form.shape[-1], form / torch.where(total == 0, 1.0, total))
    return (terms[first] - terms[second])[:, :, None] * share


def lists_of_pairs(pairs: Tensor, offsets: Tensor, num_entries: int) -> Tensor:
    """List (P,) of each pair of entries; a pair from two lists is refused."""
    lists = list_ids(offsets, num_entries)[pairs]
    if (lists[:, 0] != lists[:, 1]).any():
        pair = int((lists[:, 0] != lists[:, 1]).int().argmax())
        raise ValueError(f"scores of different lists are not compared: pair {pair} is of lists {lists[pair].tolist()}")
    return lists[:, 0]
