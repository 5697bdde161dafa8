"""Several networks of one kind, trained side by side from different first weights; the ranker averages their scores."""

from typing import Any

import torch
from torch import Tensor, nn


class Members(nn.Module):
    """Networks that see the same rows.

    One after the other: their layers are matrix products that keep a processor busy by themselves, and `vmap` over
    stacked parameters takes the same time. The loss of all members is computed at once.
    """

    def __init__(self, networks: list[nn.Module]):
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *rows: Any, **lists: Any) -> Tensor:
        """What each network returns, (M, n) or (M, n, outputs)."""
        return torch.stack([network(*rows, **lists) for network in self.networks])


def networks_of(scorer: nn.Module) -> list[nn.Module]:
    """The networks of a ranker."""
    return list(scorer.networks) if isinstance(scorer, Members) else [scorer]


def ranking_scores(found: Tensor, ordinal: bool) -> Tensor:
    """The score (n,) by which documents are ranked, the mean over the members, from outputs (M, n) or (M, n, outputs).

    Of ordinal outputs it is the sum of the chances that the grade is above 0, 1, ..., which is the expected grade.

    >>> ranking_scores(torch.zeros(1, 3, 4), ordinal=True)
    tensor([2., 2., 2.])
    """
    each = found.sigmoid().sum(-1) if ordinal else found
    return each[0] if len(each) == 1 else each.mean(0)


def tiled(offsets: Tensor, num_entries: int, times: int) -> Tensor:
    """The offsets of lists that are laid end to end so many times.

    >>> tiled(torch.tensor([0, 2, 3]), 3, 2)
    tensor([0, 2, 3, 5, 6])
    """
    shifts = torch.arange(times, device=offsets.device) * num_entries
    return torch.cat((offsets[:1], (offsets[1:] + shifts[:, None]).flatten()))
