"""Losses of Gumbel-perturbed scores: the mean over sampled rankings (Bruch, Han, Bendersky & Najork 2020)."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from torchrank.errors import check_integer, check_number
from torchrank.functional.arrays import Array, result_dtype, to_tensor
from torchrank.functional.lists import Lists, takes_arrays

# options with a number per entry or list; a margin may also be a matrix
REPEATED = frozenset(("weights", "list_weights", "tiebreak", "num_relevant", "margin"))


def gumbel(
    loss: Callable[..., Any], *, samples: int = 8, beta: float = 1.0, generator: torch.Generator | None = None
) -> Callable[..., Any]:
    """The mean of a loss over `samples` copies of the scores, each with its own Gumbel noise.

    Sorting perturbed scores samples a ranking from the Plackett-Luce model, so this is a loss of rankings that the
    scores make likely, in the manner of rax's `gumbel_t12n`. `gumbel(approx_ndcg_loss)` is GumbelApproxNDCG. The copies
    are lists end to end, so one call of the loss sees `samples` times as many lists.

    Args:
        loss: any loss or measure on lists, `loss(scores, labels, offsets, **options)`.
        samples: the number of copies.
        beta: the scale of the noise.
        generator: draws the noise; None takes torch's own. Each call draws new noise.

    Returns:
        A function with the arguments of `loss` that gives one value per list, `(Q,)`.

    Example:
        >>> from torchrank.functional import approx_ndcg_loss
        >>> loss = gumbel(approx_ndcg_loss, samples=100, generator=torch.Generator().manual_seed(0))
        >>> loss(torch.tensor([0.0, 1.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 2]), torch.tensor([0, 4]))
        tensor([-0.7187])
    """
    check_integer(">= 1", samples=samples)
    check_number(">= 0", beta=beta)

    @wraps(loss)
    def call(scores: Array, labels: Array, offsets: Array = None, **options: Any) -> Any:
        return _copied(scores, labels, offsets, loss=loss, samples=samples, beta=beta, generator=generator, **options)

    return call


@takes_arrays
def _copied(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    loss: Callable[..., Any],
    samples: int,
    beta: float,
    generator: torch.Generator | None,
    **options: Any,
) -> Any:
    lists: Lists = offsets
    ends = torch.nn.functional.pad(lists.offsets.diff().repeat(samples).cumsum(0), (1, 0))
    copies = Lists(ends, samples * lists.num_entries, longest=lists.bound, grades=lists.grades or None)
    for name in REPEATED & options.keys():
        options[name] = _repeated(options[name], name, samples)
    values = loss(_perturbed(scores, samples, beta, generator), labels.repeat(samples), copies, **options)
    return values.unflatten(0, (samples, -1)).mean(0)


def _repeated(option: Any, name: str, samples: int) -> Any:
    """The option for all copies. Only vectors are repeated; others belong to the whole batch, as the margin of WARP."""
    if option is None or isinstance(option, int | float):
        return option
    numbers = to_tensor(option, name)
    return numbers.repeat(samples) if numbers.ndim == 1 else option


def _perturbed(scores: Tensor, samples: int, beta: float, generator: torch.Generator | None) -> Tensor:
    """The copies of the scores end to end, `(samples * N, ...)`, in the dtype of results."""
    copies = scores.to(result_dtype(scores)).repeat(samples, *[1] * (scores.ndim - 1))
    device = scores.device if generator is None else generator.device
    noise = torch.empty(copies.shape, dtype=copies.dtype, device=device).exponential_(generator=generator)
    return copies - beta * noise.log_().to(scores.device)  # minus the log of an exponential variable is a Gumbel one
