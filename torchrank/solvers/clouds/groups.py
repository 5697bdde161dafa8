"""Linear models of groups of lists, all measured on the same test lists: the raw material of clairvoyant diagnostics.

`LocalRank` fits and applies one model per cluster; here every model is applied to every test list, so that the best
one is known (`torchrank.report.clairvoyant`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torchrank.solvers.linear.many import Lists, solve_many_linear

BLOCK = 2**22  # scores made at once


def group_models(lists: Lists, labels: Tensor, **options: Any) -> Tensor:
    """Weights `(C, D)` of one linear model for each group of lists, `labels (Q,)` 0..C-1, or -1 for lists of none.

    `options` are those of `solve_many_linear`. A group without any list that has two different labels has the model of
    all lists.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
    >>> lists = Lists(x, torch.tensor([1, 0, 0, 1]), torch.tensor([0, 2, 4]), torch.arange(2), torch.tensor(2.0))
    >>> group_models(lists, torch.tensor([0, 1]), l2=1.0).round(decimals=2)
    tensor([[ 0.1500, -0.1500],
            [-0.1500,  0.1500]], dtype=torch.float64)
    """
    count = int(labels.max()) + 1
    members = pad_sequence([(labels == group).nonzero()[:, 0] for group in range(count)], True, padding_value=-1)
    found = solve_many_linear(lists, count, members=members, **options)
    if bool((found.used > 0).all()):
        return found.weight
    whole = solve_many_linear(lists, 1, **options).weight
    return torch.where(found.used[:, None] > 0, found.weight, whole)


def group_similarity(similarity: Tensor, labels: Tensor) -> Tensor:
    """Largest similarity `(T, C)` of each test list to a training list of each group, from similarities `(T, Q)`.

    The most similar group of a list is the group of its most similar training list, of those that are in a group.

    >>> group_similarity(torch.tensor([[0.1, 0.9, 0.4]]), torch.tensor([0, 1, 0]))
    tensor([[0.4000, 0.9000]])
    """
    inside = labels >= 0
    index = labels[inside].expand(len(similarity), -1)
    best = similarity.new_full((len(similarity), int(labels.max()) + 1), -torch.inf)
    return best.scatter_reduce(1, index, similarity[:, inside], "amax")


def measure_models(
    weight: Tensor, x: Tensor, labels: Tensor, offsets: Tensor, measure: Callable[..., Tensor], **options: Any
) -> Tensor:
    """A measure `(T, M)` of the lists of rows `x (N, D)` under each linear model of `weight (M, D)`.

    >>> from torchrank.functional import average_precision
    >>> x, labels, offsets = torch.eye(2), torch.tensor([1.0, 0.0]), torch.tensor([0, 2])
    >>> measure_models(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), x, labels, offsets, average_precision)
    tensor([[1.0000, 0.5000]])
    """
    found = []
    for models in weight.split(max(1, BLOCK // max(1, len(x)))):
        scores = models.to(x.dtype) @ x.T  # (B, N)
        bounds = torch.cat([offsets[:-1] + len(x) * place for place in range(len(models))])
        bounds = torch.cat([bounds, bounds.new_tensor([scores.numel()])])
        values = measure(scores.flatten(), labels.repeat(len(models)), bounds, **options)
        found.append(values.view(len(models), -1).T)
    return torch.cat(found, 1)
