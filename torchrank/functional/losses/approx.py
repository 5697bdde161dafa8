"""Measures of soft ranks: smooth, so that minus their value is a loss (Qin, Liu & Li 2010; Bruch et al. 2019).

A measure is written as a function of the ranks of the entries, and `soft_ranks` take their place; a cut-off at k
becomes the share sigmoid((k + 1/2 - rank) / T). As the temperature T falls, the loss approaches minus the measure
wherever no scores are equal. Values are not positive: -1 is a perfect ranking for a measure that is at most 1.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.functional.arrays import takes_arrays
from torchrank.functional.conventions import parse_measure
from torchrank.functional.gains import Discount, Gain, check_gains, dcg, discount_of, gain_of
from torchrank.functional.losses.pairwise import soft_zero_one_loss
from torchrank.functional.losses.soft_ranks import read_longest, soft_counts
from torchrank.functional.operations import ListLoss, formula_loss, result_dtype
from torchrank.functional.ragged import has_pairs, per_entry, segment_max, segment_sum, sort_within, wide
from torchrank.functional.ranking import check_cutoff, check_lists, check_weights, count_grades, ratio


@takes_arrays
def approx_ndcg_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    k: int | None = None,
    temperature: float = 1.0,
    gain: Gain = "exp2",
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """ApproxNDCG: minus the NDCG of soft ranks, -sum of gain(y_i) / log2(1 + r_i) / ideal DCG (Qin, Liu & Li 2010).

    The value is that of rax, TF-Ranking and allRank, between -1 and 0. The temperature of rax and allRank is 1, that of
    TF-Ranking .1.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        k: the cut-off of NDCG: an entry counts sigmoid((k + 1/2 - r_i) / temperature); None counts the whole list.
        temperature: of the ranks r_i, see `soft_ranks`; the lower, the closer to NDCG and the flatter.
        gain: "exp2" (2^y - 1), "linear" (y), or a function of the labels.
        weights: importance of each entry, `(N,)`, which multiplies its gain, also in the ideal order; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades: labels are the integers 0..num_grades-1; 0: real-valued; None: find out where that is free (CPU).
        num_pairs: not needed by this loss.

    Returns:
        The loss of each list, `(Q,)`, 0 if all its labels are equal. It can be differentiated twice.

    Example:
        >>> approx_ndcg_loss(torch.tensor([0.0, 1.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 2]), torch.tensor([0, 4]))
        tensor([-0.7179])
    """
    return _loss(_NDCG, scores, labels, offsets, weights, list_weights, temperature=temperature, max_length=max_length,
                 num_grades=num_grades, k=k, gain=gain, discount="log2p1")  # fmt: skip


@takes_arrays
def approx_mrr_loss(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    temperature: float = 1.0,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
    num_pairs: int | None = None,
) -> Tensor:
    """ApproxMRR: minus the mean reciprocal soft rank, -sum of y_i / r_i over the sum of y_i, as in TF-Ranking.

    All relevant entries count, in proportion to their labels. The reciprocal rank of the first one alone, as in rax, is
    `as_loss("mrr")`.

    Args:
        scores: score of each entry, `(N,)`.
        labels: relevance label of each entry, `(N,)`.
        offsets: where the lists begin and end, `(Q + 1,)`.
        temperature: of the ranks r_i, see `soft_ranks`.
        weights: importance of each entry, `(N,)`, which multiplies its label; None is 1.
        list_weights: importance of each list, `(Q,)`, which multiplies its value; None is 1.
        max_length: an upper bound of the list lengths, which saves a synchronisation.
        num_grades, num_pairs: sizes of the batch, which this loss does not need.

    Returns:
        The loss of each list, `(Q,)`, 0 if all its labels are equal. It can be differentiated twice.

    Example:
        >>> approx_mrr_loss(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]), torch.tensor([0, 2]))
        tensor([-0.7881])
    """
    return _loss(_MRR, scores, labels, offsets, weights, list_weights, temperature=temperature, max_length=max_length,
                 num_grades=num_grades)  # fmt: skip


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
        `loss(scores, labels, offsets, *, weights=None, list_weights=None, max_length=None, num_grades=None,
        num_pairs=None)`, which gives the loss of each list, `(Q,)`, and can be differentiated twice. `weights (N,)`
        mean what they mean in the measure, `list_weights (Q,)` multiply the value of a list.

    Example:
        >>> loss = as_loss("mrr")
        >>> loss(torch.tensor([0.0, 1.0, 3.0, 2.0]), torch.tensor([0, 0, 1, 2]), torch.tensor([0, 4]))
        tensor([-0.6966])
    """
    family, k = _family(measure)
    known = inspect.signature(SOFT[family]).parameters
    given = {"k": k} | options if k is not None else options
    if k is not None and options.get("k", k) != k:
        raise ValueError(f"{measure!r} has the cut-off {k}, got k={options['k']} as well")
    if unknown := sorted(given.keys() - set(list(known)[1:])):
        raise ValueError(f"{family} has no option {unknown[0]}: choose among {', '.join(list(known)[1:]) or 'none'}")
    if missing := [n for n, each in known.items() if each.kind == each.KEYWORD_ONLY and each.default is each.empty
                   and given.get(n) is None]:  # fmt: skip
        raise ValueError(f"{family} of soft ranks needs {missing[0]}: as_loss({family!r}, {missing[0]}=...)")
    check_cutoff(given.get("k"))

    @takes_arrays
    def loss(
        scores: Tensor,
        labels: Tensor,
        offsets: Tensor,
        *,
        weights: Tensor | None = None,
        list_weights: Tensor | None = None,
        max_length: int | None = None,
        num_grades: int | None = None,
        num_pairs: int | None = None,
    ) -> Tensor:
        return _loss(
            _FORMULAS[family], scores, labels, offsets, weights, list_weights, temperature=temperature,
            max_length=max_length, num_grades=num_grades, **given,
        )  # fmt: skip

    loss.__name__ = loss.__qualname__ = f"soft_{family}_loss"
    return loss


def _family(measure: str | Callable[..., Any]) -> tuple[str, int | None]:
    if isinstance(measure, str):
        parsed = parse_measure(measure)
        family, k = parsed.family, parsed.k
    else:
        name = getattr(measure, "__name__", repr(measure))
        family, k = NAMES.get(name, name), None
    if family not in SOFT:
        raise ValueError(f"there is no soft form of {family}: choose among {', '.join(SOFT)}")
    return family, k


class Soft(NamedTuple):
    """Lists whose entries have soft ranks."""

    scores: Tensor  # (N,)
    ranks: Tensor  # (N,) float64
    labels: Tensor  # (N,)
    offsets: Tensor  # (Q+1,)
    weights: Tensor | None  # (N,)
    temperature: float
    longest: int

    def above(self, values: Tensor) -> Tensor:
        """The sum of the values of the entries that score higher, `(N,)`."""
        sizes = {"max_length": self.longest}
        return soft_counts(self.scores, self.offsets, values, temperature=self.temperature, **sizes)

    def top(self, k: int | None) -> Tensor | float:
        """To which share each entry is among the first k, `(N,)`."""
        return 1.0 if k is None else torch.sigmoid((k + 0.5 - self.ranks) / self.temperature)

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
        first = nearness == per_entry(segment_max(nearness, self.offsets), self.offsets, len(nearness))
        return segment_max(relevant * first * wide(self.weights), self.offsets)

    def total(self, values: Tensor) -> Tensor:
        return segment_sum(values, self.offsets)


def _soft_dcg(soft: Soft, *, k: int | None = None, gain: Gain = "exp2", discount: Discount = "log2p1") -> Tensor:
    return soft.total(soft.gains(gain) * discount_of(soft.ranks, discount) * soft.top(k))


def _soft_ndcg(soft: Soft, *, k: int | None = None, gain: Gain = "exp2", discount: Discount = "log2p1") -> Tensor:
    """The ideal order is that of the gains times the weights, and it is cut off exactly."""
    gains, offsets = soft.gains(gain), soft.offsets
    best = gains[sort_within(gains, offsets)]
    (ideal,) = dcg(best, offsets, cutoffs=[k], gain="linear", discount=discount, longest=soft.longest)
    return ratio(_soft_dcg(soft, k=k, gain=gain, discount=discount), ideal, 0.0)


def _soft_mrr(soft: Soft) -> Tensor:
    relevance = soft.gains("linear")
    return ratio(soft.total(relevance / soft.ranks), soft.total(relevance), 0.0)


def _soft_reciprocal_rank(soft: Soft, *, k: int | None = None, threshold: float = 1) -> Tensor:
    relevant = wide(soft.labels >= threshold)
    return segment_max(relevant * soft.top(k) / soft.ranks, soft.offsets) * soft.first_weight(relevant)


def _soft_precision(soft: Soft, *, k: int, threshold: float = 1) -> Tensor:
    return soft.total(soft.relevant(threshold) * soft.top(k)) / k


def _soft_recall(soft: Soft, *, k: int, threshold: float = 1) -> Tensor:
    relevant = soft.relevant(threshold)
    return ratio(soft.total(relevant * soft.top(k)), soft.total(relevant), 0.0)


def _soft_hit(soft: Soft, *, k: int, threshold: float = 1) -> Tensor:
    """1 - the product of the shares to which the relevant entries are not among the first k."""
    relevant = wide(soft.labels >= threshold)
    missed = torch.nn.functional.logsigmoid((soft.ranks - k - 0.5) / soft.temperature)
    return -torch.expm1(soft.total(relevant * missed)) * soft.first_weight(relevant)


def _soft_hits(soft: Soft, *, k: int, threshold: float = 1) -> Tensor:
    return soft.total(soft.relevant(threshold) * soft.top(k))


def _soft_r_precision(soft: Soft, *, threshold: float = 1) -> Tensor:
    """Recall at the number of relevant entries, which differs from list to list."""
    relevant, found = soft.relevant(threshold), soft.total(wide(soft.labels >= threshold))
    inside = torch.sigmoid((per_entry(found, soft.offsets, len(relevant)) + 0.5 - soft.ranks) / soft.temperature)
    return ratio(soft.total(relevant * inside), soft.total(relevant), 0.0)


def _soft_rbp(soft: Soft, *, p: float = 0.8, k: int | None = None, threshold: float = 1) -> Tensor:
    persistence = torch.exp((soft.ranks - 1) * soft.ranks.new_full((), p).log())  # p^(r - 1) in compiled graphs too
    return (1 - p) * soft.total(soft.relevant(threshold) * persistence * soft.top(k))


def _soft_arp(soft: Soft) -> Tensor:
    """Minus the mean rank, because smaller ranks are better."""
    relevance = soft.gains("linear")
    return -ratio(soft.total(relevance * soft.ranks), soft.total(relevance), 0.0)


def _soft_average_precision(soft: Soft, *, k: int | None = None, threshold: float = 1) -> Tensor:
    relevant, counted = soft.relevant(threshold), wide(soft.labels >= threshold)
    hits = counted + soft.above(counted)
    return ratio(soft.total(relevant * soft.top(k) * hits / soft.ranks), soft.total(relevant), 0.0)


def _soft_err(soft: Soft, *, max_label: float, k: int | None = None) -> Tensor:
    satisfied = gain_of(soft.labels) / 2.0**max_label
    unsatisfied = torch.log1p(-satisfied).clamp(min=-800.0)  # as in `err`
    return soft.total(soft.weighted(satisfied) * torch.exp(soft.above(unsatisfied)) * soft.top(k) / soft.ranks)


def _soft_auc(soft: Soft, *, threshold: float = 1) -> Tensor:
    relevant = soft.relevant(threshold)
    others = wide(soft.labels < threshold)
    wrong = ratio(soft.total(relevant * soft.above(others)), soft.total(relevant) * soft.total(others), 1.0)
    return 1 - wrong


def _soft_wrong_pairs(soft: Soft) -> Tensor:
    """The share of the pairs with different labels in the wrong order; where all scores are equal it is a half."""
    sizes = {"weights": soft.weights, "max_length": soft.longest}
    wrong, half = (
        soft_zero_one_loss(scores, soft.labels, soft.offsets, **sizes)
        for scores in (wide(soft.scores) / soft.temperature, torch.zeros_like(soft.ranks))
    )
    return ratio(wrong, 2 * half, 0.0)


def _soft_opa(soft: Soft) -> Tensor:
    return 1 - _soft_wrong_pairs(soft)


def _soft_all_pairs_error(soft: Soft) -> Tensor:
    """Minus the error, because smaller errors are better."""
    return -_soft_wrong_pairs(soft)


SOFT: dict[str, Callable[..., Tensor]] = {
    "ndcg": _soft_ndcg,
    "dcg": _soft_dcg,
    "map": _soft_average_precision,
    "mrr": _soft_reciprocal_rank,
    "p": _soft_precision,
    "recall": _soft_recall,
    "hit": _soft_hit,
    "hits": _soft_hits,
    "r_precision": _soft_r_precision,
    "rbp": _soft_rbp,
    "arp": _soft_arp,
    "err": _soft_err,
    "auc": _soft_auc,
    "opa": _soft_opa,
    "all_pairs_error": _soft_all_pairs_error,
}
NAMES = {"average_precision": "map", "reciprocal_rank": "mrr", "precision": "p"}  # functions of other names


def _loss(
    loss: ListLoss,
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    list_weights: Tensor | None,
    *,
    max_length: int | None,
    num_grades: int | None,
    **options: Any,
) -> Tensor:
    """The loss of each list after the checks that all of them share."""
    check_lists(scores, labels, offsets)
    check_weights(scores=scores, offsets=offsets, weights=weights, list_weights=list_weights)
    check_cutoff(options.get("k"))
    grades = count_grades(labels, num_grades)
    if "gain" in options or "max_label" in options:
        check_gains(labels, options.get("gain", "exp2"), grades)
    longest = read_longest(offsets, len(scores), max_length)
    floating = scores if scores.is_floating_point() else wide(scores)
    found = loss(floating, labels, offsets, weights, list_weights, longest=longest, **options)
    return found.to(result_dtype(scores))


def _formula(measure: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Minus the measure of soft ranks; the scores of lists without two different labels are taken for 0, so that
    their slopes are 0 whatever they are."""

    def formula(
        scores: Tensor,
        labels: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        *,
        temperature: float,
        longest: int,
        **options: Any,
    ) -> Tensor:
        several = has_pairs(labels, offsets)
        taught = torch.where(per_entry(several, offsets, len(scores)), scores, 0)
        ranks = 1 + soft_counts(taught, offsets, temperature=temperature, max_length=longest)
        soft = Soft(taught, ranks, labels, offsets, weights, temperature, longest)
        return torch.where(several, -measure(soft, **options), 0.0)

    return formula


_FORMULAS = {family: formula_loss(f"soft {family}", _formula(measure)) for family, measure in SOFT.items()}
_NDCG = formula_loss("approx_ndcg_loss", _formula(_soft_ndcg))
_MRR = formula_loss("approx_mrr_loss", _formula(_soft_mrr))
