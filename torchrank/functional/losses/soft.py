"""Measures of soft ranks: smooth, so that minus their value is a loss (Qin, Liu & Li 2010; Bruch et al. 2019).

A measure is written as a function of the ranks of the entries, and `soft_ranks` take their place; a cut-off at k
becomes the share sigmoid((k + 1/2 - rank) / T). As the temperature T falls, the loss approaches minus the measure
wherever no scores are equal. Values are not positive: -1 is a perfect ranking for a measure that is at most 1. Only
entries that can gain something have soft ranks.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Unpack

import torch
from torch import Tensor

from torchrank.errors import check_integer, check_number
from torchrank.functional.arrays import Array, host, narrow, result_dtype, to_tensor, wide
from torchrank.functional.autograd import OnceDifferentiable
from torchrank.functional.conventions import NAMES, parse_measure, soft
from torchrank.functional.lists import Given, Lists, Weighted, loss, per_entry, takes_arrays
from torchrank.functional.losses.pair_blocks import all_pair_sums, check_positive
from torchrank.functional.losses.pairs import soft_zero_one_loss
from torchrank.functional.measures import MEASURES
from torchrank.functional.ranking import (
    Discount,
    Gain,
    best_dcg,
    check_cutoff,
    check_gains,
    discount_of,
    gain_of,
    ratio,
)

# ---------------------------------------------------------------------------------------------------------- soft ranks


@per_entry
def soft_ranks(scores: Array, offsets: Array = None, *, temperature: float = 1.0, **given: Unpack[Given]) -> Tensor:
    """Differentiable ranks: 1 + the sum of sigmoid((s_j - s_i) / temperature) over the other entries of the list.

    As the temperature falls they approach the ranks; equal scores share the mean of their ranks. A list of L entries
    costs O(L^2) time and bounded memory.

    Args:
        scores: score of each entry, `(N,)`; higher scores come first.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        temperature: the difference of scores at which the better entry counts .73 of a rank.

    Returns:
        The soft rank of each entry, from 1, `(N,)`. Its gradient is in closed form.

    Example:
        >>> soft_ranks(torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([0, 3, 4]), temperature=0.1)
        tensor([3.0000, 1.0000, 2.0000, 1.0000])
    """
    check_positive(temperature=temperature)
    every = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    return 1 + soft_counts(scores, every, offsets, temperature=temperature)


def soft_counts(
    scores: Tensor, rows: Tensor, lists: Lists, values: Tensor | None = None, *, temperature: float
) -> Tensor:
    """A soft count of the other entries of the list that score higher than each entry of `rows (N,)`: each counts
    sigmoid((s_j - s_i) / T) times its value in `values (N,)`, or times 1: `(N,)` in float64, 0 outside of the rows.

    >>> soft_counts(torch.tensor([2.0, 2.0]), torch.tensor([True, False]), Lists.of([0, 2]), temperature=1.0)
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    floats = scores if scores.is_floating_point() else wide(scores)
    return _COUNTS(floats if temperature == 1 else narrow(floats) / temperature, rows, lists, values)


def _sums(scores: Tensor, rows: Tensor, lists: Lists, values: Tensor | None, order: int) -> tuple[Tensor, ...]:
    return all_pair_sums(scores, rows, lists, None, 0, pair="soft_zero_one", partners=values, by_row=True)


def _grad(upstream: Tensor, saved: Tensor, scores: Tensor, rows: Tensor, lists: Lists, values: Tensor | None) -> Tensor:
    return all_pair_sums(scores, rows, lists, upstream, 1, pair="soft_zero_one", partners=values)[1]


_COUNTS = OnceDifferentiable("soft_ranks", _sums, _grad)


# -------------------------------------------------------------------------------------------------------------- losses


@loss
def approx_ndcg_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    k: int | None = None,
    temperature: float = 1.0,
    gain: Gain = "exp2",
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """ApproxNDCG: minus the NDCG of soft ranks, -sum of gain(y_i) / log2(1 + r_i) / ideal DCG (Qin, Liu & Li 2010).

    The value is that of rax, TF-Ranking and allRank, between -1 and 0. The temperature of rax and allRank is 1, that of
    TF-Ranking .1.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        k: the cut-off of NDCG: an entry counts sigmoid((k + 1/2 - r_i) / temperature); None counts the whole list.
        temperature: of the ranks r_i, see `soft_ranks`; the lower, the closer to NDCG and the flatter.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, 0 if all its labels are equal. It can be differentiated once.

    Example:
        >>> approx_ndcg_loss(torch.tensor([0.0, 1.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 2]), torch.tensor([0, 4]))
        tensor([-0.7179])
    """
    return _loss(_soft_ndcg, scores, labels, offsets, weights, temperature, k=k, gain=gain)


@loss
def approx_mrr_loss(
    scores: Array,
    labels: Array,
    offsets: Array = None,
    *,
    temperature: float = 1.0,
    weights: Array = None,
    **given: Unpack[Weighted],
) -> Tensor:
    """ApproxMRR: minus the mean reciprocal soft rank, -sum of y_i / r_i over the sum of y_i, as in TF-Ranking.

    All relevant entries count, in proportion to their labels. The reciprocal rank of the first one alone, as in rax, is
    `as_loss("mrr")`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`, or a `Lists`.
        temperature: of the ranks r_i, see `soft_ranks`.
        weights: importance of each entry, `(N,)`, which multiplies its label; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.

    Returns:
        The loss of each list, `(Q,)`, 0 if all its labels are equal. It can be differentiated once.

    Example:
        >>> approx_mrr_loss(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]), torch.tensor([0, 2]))
        tensor([-0.7881])
    """
    return _loss(_soft_mrr, scores, labels, offsets, weights, temperature)


def as_loss(measure: str | Callable[..., Any], *, temperature: float = 1.0, **options: Any) -> Callable[..., Any]:
    """A differentiable loss from a measure: minus its value for soft ranks, in the manner of rax's `approx_t12n`.

    Lists whose labels are all equal are 0, as in all losses. Measures that need a cut-off to depend on the scores
    (precision, recall, hit) must have one.

    Args:
        measure: a name such as `"ndcg@10"`, `"map"`, `"mrr"`, `"p@5"`, `"recall@10"`, `"hit@3"`, `"hits@3"`, `"err"`,
            `"rbp"`, `"r_precision"`, `"auc"`, `"opa"`, `"all_pairs_error"` or `"arp"`, or the function (`ndcg`,
            `average_precision`, ...). Of `arp` and `all_pairs_error`, which are better when they are smaller, the loss
            is the value itself.
        temperature: of the ranks, see `soft_ranks`.
        options: of the measure: `k`, `gain`, `discount`, `threshold`, `max_label`, `p`.

    Returns:
        `loss(scores, labels, offsets, *, weights=None, list_weights=None)`, which gives the loss of each list, `(Q,)`,
        and can be differentiated once. `weights (N,)` have the same meaning as in the measure, `list_weights (Q,)`
        multiply the value of a list.

    Example:
        >>> loss = as_loss("mrr")
        >>> loss(torch.tensor([0.0, 1.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 2]), torch.tensor([0, 4]))
        tensor([-0.6966])
    """
    family, k, form = _soft_form(measure)
    parameters = dict(list(inspect.signature(form).parameters.items())[1:])
    settings = {"k": k} | options if k is not None else options
    if k is not None and options.get("k", k) != k:
        raise ValueError(f"{measure!r} has the cut-off {k}, got k={options['k']} as well")
    if unknown := sorted(settings.keys() - parameters.keys()):
        raise ValueError(f"{family} has no option {unknown[0]}: choose among {', '.join(parameters) or 'none'}")
    if missing := [n for n, each in parameters.items() if each.default is each.empty and settings.get(n) is None]:
        raise ValueError(f"{family} of soft ranks needs {missing[0]}: as_loss({family!r}, {missing[0]}=...)")
    check_cutoff(settings.get("k"))
    check_positive(temperature=temperature)

    @loss
    def soft_loss(
        scores: Array, labels: Array, offsets: Array = None, *, weights: Array = None, **lists: Unpack[Weighted]
    ) -> Tensor:
        return _loss(form, scores, labels, offsets, weights, temperature, **settings)

    soft_loss.__name__ = soft_loss.__qualname__ = f"soft_{family}_loss"
    return soft_loss


def _soft_form(measure: str | Callable[..., Any]) -> tuple[str, int | None, Callable[..., Tensor]]:
    """The name of a measure, its cut-off and its soft form."""
    if isinstance(measure, str):
        parsed = parse_measure(measure)
        family, k = parsed.family, parsed.k
    else:
        name = getattr(measure, "__name__", repr(measure))
        family, k = NAMES.get(name, name), None
    row = MEASURES.get(family)
    if row is None or row.soft is None:
        known = ", ".join(name for name, row in MEASURES.items() if row.soft is not None)
        raise ValueError(f"there is no soft form of {family}: choose among {known}")
    return family, k, row.soft


class Soft:
    """Lists whose entries have soft ranks: those of `rows (N,)` alone, all others are 1."""

    def __init__(
        self, scores: Tensor, labels: Tensor, lists: Lists, weights: Tensor | None, rows: Tensor, temperature: float
    ):
        self.scores, self.labels, self.lists, self.weights = scores, labels, lists, weights
        self.rows, self.temperature = rows, temperature
        self._ranks: Tensor | None = None
        self.sum, self.max, self.each = lists.sum, lists.max, lists.each

    @property
    def ranks(self) -> Tensor:
        """(N,) float64"""
        if self._ranks is None:
            self._ranks = 1 + soft_counts(self.scores, self.rows, self.lists, temperature=self.temperature)
        return self._ranks

    def above(self, values: Tensor) -> Tensor:
        """The sum of the values of the entries that score higher, `(N,)`."""
        return soft_counts(self.scores, self.rows, self.lists, values, temperature=self.temperature)

    def top(self, values: Tensor, k: int | None) -> Tensor:
        """The values times the share to which each entry is among the first k, `(N,)`."""
        return values if k is None else values * torch.sigmoid((k + 0.5 - self.ranks) / self.temperature)

    def gains(self, gain: Gain) -> Tensor:
        return self.weighted(gain_of(self.labels, gain))

    def relevant(self, threshold: float) -> Tensor:
        return self.weighted(wide(self.labels >= threshold))

    def weighted(self, values: Tensor) -> Tensor:
        return values if self.weights is None else values * wide(self.weights)

    def first_weight(self, relevant: Tensor) -> Tensor | float:
        """The weight of the relevant entry of each list that comes first, `(Q,)`."""
        if self.weights is None:
            return 1.0
        nearness = relevant / self.ranks
        first = nearness == self.each(self.max(nearness))
        return self.max(relevant * first * wide(self.weights))


@soft("dcg")
def _soft_dcg(lists: Soft, *, k: int | None = None, gain: Gain = "exp2", discount: Discount = "log2p1") -> Tensor:
    return lists.sum(lists.top(lists.gains(gain) * discount_of(lists.ranks, discount), k))


@soft("ndcg")
def _soft_ndcg(lists: Soft, *, k: int | None = None, gain: Gain = "exp2", discount: Discount = "log2p1") -> Tensor:
    """The ideal order is that of the gains times the weights, and it is cut off exactly."""
    sorts = isinstance(gain, str) and lists.weights is None
    ideal = best_dcg(lists.gains(gain), lists.lists, k, discount, labels=lists.labels if sorts else None)
    return ratio(_soft_dcg(lists, k=k, gain=gain, discount=discount), ideal, 0.0)


def _soft_mrr(lists: Soft) -> Tensor:
    relevance = lists.gains("linear")
    return ratio(lists.sum(relevance / lists.ranks), lists.sum(relevance), 0.0)


@soft("mrr")
def _soft_reciprocal_rank(lists: Soft, *, k: int | None = None, threshold: float = 1) -> Tensor:
    relevant = wide(lists.labels >= threshold)
    return lists.max(lists.top(relevant, k) / lists.ranks) * lists.first_weight(relevant)


@soft("p")
def _soft_precision(lists: Soft, *, k: int, threshold: float = 1) -> Tensor:
    return lists.sum(lists.top(lists.relevant(threshold), k)) / k


@soft("recall")
def _soft_recall(lists: Soft, *, k: int, threshold: float = 1) -> Tensor:
    relevant = lists.relevant(threshold)
    return ratio(lists.sum(lists.top(relevant, k)), lists.sum(relevant), 0.0)


@soft("hit")
def _soft_hit(lists: Soft, *, k: int, threshold: float = 1) -> Tensor:
    """1 - the product of the shares to which the relevant entries are not among the first k."""
    relevant = wide(lists.labels >= threshold)
    missed = torch.nn.functional.logsigmoid((lists.ranks - k - 0.5) / lists.temperature)
    return -torch.expm1(lists.sum(relevant * missed)) * lists.first_weight(relevant)


@soft("hits")
def _soft_hits(lists: Soft, *, k: int, threshold: float = 1) -> Tensor:
    return lists.sum(lists.top(lists.relevant(threshold), k))


@soft("r_precision")
def _soft_r_precision(lists: Soft, *, threshold: float = 1) -> Tensor:
    """Recall at the number of relevant entries, which differs from list to list."""
    relevant, count = lists.relevant(threshold), lists.sum(wide(lists.labels >= threshold))
    inside = torch.sigmoid((lists.each(count) + 0.5 - lists.ranks) / lists.temperature)
    return ratio(lists.sum(relevant * inside), lists.sum(relevant), 0.0)


@soft("rbp")
def _soft_rbp(lists: Soft, *, p: float = 0.8, k: int | None = None, threshold: float = 1) -> Tensor:
    persistence = torch.exp((lists.ranks - 1) * lists.ranks.new_full((), p).log())  # p^(r - 1) in compiled graphs too
    return (1 - p) * lists.sum(lists.top(lists.relevant(threshold) * persistence, k))


@soft("arp")
def _soft_arp(lists: Soft) -> Tensor:
    """Minus the mean rank, because smaller ranks are better."""
    relevance = lists.gains("linear")
    return -ratio(lists.sum(relevance * lists.ranks), lists.sum(relevance), 0.0)


@soft("map")
def _soft_average_precision(lists: Soft, *, k: int | None = None, threshold: float = 1) -> Tensor:
    relevant, counted = lists.relevant(threshold), wide(lists.labels >= threshold)
    hits = counted + lists.above(counted)
    return ratio(lists.sum(lists.top(relevant, k) * hits / lists.ranks), lists.sum(relevant), 0.0)


@soft("err")
def _soft_err(lists: Soft, *, max_label: float, k: int | None = None) -> Tensor:
    satisfied = gain_of(lists.labels) / 2.0**max_label
    unsatisfied = torch.log1p(-satisfied).clamp(min=-800.0)  # as in `err`
    return lists.sum(lists.top(lists.weighted(satisfied), k) * torch.exp(lists.above(unsatisfied)) / lists.ranks)


@soft("auc")
def _soft_auc(lists: Soft, *, threshold: float = 1) -> Tensor:
    relevant = lists.relevant(threshold)
    others = wide(lists.labels < threshold)
    wrong = ratio(lists.sum(relevant * lists.above(others)), lists.sum(relevant) * lists.sum(others), 1.0)
    return 1 - wrong


def _soft_wrong_pairs(lists: Soft) -> Tensor:
    """The share of the pairs with different labels in the wrong order; where all scores are equal it is a half."""
    floats = wide(lists.scores) / lists.temperature
    wrong, half = (
        soft_zero_one_loss(scores, lists.labels, lists.lists, weights=lists.weights)
        for scores in (floats, torch.zeros_like(floats))
    )
    return ratio(wrong, 2 * half, 0.0)


@soft("opa")
def _soft_opa(lists: Soft) -> Tensor:
    return 1 - _soft_wrong_pairs(lists)


@soft("all_pairs_error")
def _soft_all_pairs_error(lists: Soft) -> Tensor:
    """Minus the error, because smaller errors are better."""
    return -_soft_wrong_pairs(lists)


def _loss(
    measure: Callable[..., Tensor],
    scores: Tensor,
    labels: Tensor,
    lists: Lists,
    weights: Tensor | None,
    temperature: float,
    **options: Any,
) -> Tensor:
    """Minus the measure of soft ranks; the scores of lists without two different labels are replaced by 0, so that
    their gradient is 0."""
    check_cutoff(options.get("k"))
    check_positive(temperature=temperature)
    if "gain" in options or "max_label" in options:
        check_gains(labels, options.get("gain", "exp2"), lists.grades)
    several, floats = lists.several(labels), scores if scores.is_floating_point() else wide(scores)
    all_have_pairs = (known := host(several)) is not None and bool(known.all())
    floats = floats if all_have_pairs else torch.where(lists.each(several), floats, 0)
    if "threshold" in inspect.signature(measure).parameters:
        rows = labels >= options.get("threshold", 1)
    elif callable(options.get("gain")):
        rows = gain_of(labels.detach(), options["gain"]) != 0
    else:
        rows = labels > 0
    values = measure(Soft(floats, labels, lists, weights, rows, temperature), **options).neg()
    return values if all_have_pairs else torch.where(several, values, 0.0)


# ------------------------------------------------------------------------------------------------- samples of rankings

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
