"""Lists in rank order: the one sort that all measures share, the checks of their input, and what ties mean."""

import math
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.errors import DataError, check_choice
from torchrank.functional.arrays import Array, to_integers, to_tensor
from torchrank.functional.gains import Gain, check_gains, gain_of
from torchrank.functional.operations import readable
from torchrank.functional.operations import result_dtype as result_dtype
from torchrank.functional.ragged import (
    lent,
    levels_within,
    list_ids,
    longest_list,
    measure_sum,
    read,
    runs,
    segment_sum,
    wide,
)
from torchrank.functional.sorting import sort_keys

MAX_GRADES = 64  # with larger integers labels count as real values: a table of (lists, grades) would be large


class Judged(NamedTuple):
    """All judged documents of each query, retrieved or not, in any order."""

    labels: Tensor  # (M,)
    offsets: Tensor  # (Q+1,)
    longest: int
    num_grades: int


class Ranking(NamedTuple):
    """Lists in rank order: what every measure is computed from."""

    order: Tensor  # (N,) entries best first, list by list
    unordered: Tensor  # (N,) scores in the given order
    labels: Tensor  # (N,) in rank order
    ids: Tensor  # (N,) list of each place
    offsets: Tensor  # (Q+1,)
    longest: int  # upper bound of the list lengths
    num_grades: int  # labels are 0..num_grades-1; 0 = real-valued or unknown
    judged: Judged | None = None  # None: every judged document was retrieved
    weights: Tensor | None = None  # (N,) in rank order, float64; None: all 1
    given: Tensor | None = None  # (N,) ranks where entries of label 0 are left out, without weights; None: 1, 2, 3, ...
    length: int | None = None  # entries of each list, with those that are left out

    @property
    def best(self) -> "Judged | Ranking":  # the documents of which the ideal order is made
        return self if self.judged is None else self.judged

    @property
    def scores(self) -> Tensor:  # (N,) in rank order; few measures need them
        return self.unordered[self.order]

    @property
    def lengths(self) -> Tensor:  # (Q,) entries of each list
        held = self.offsets.diff()
        return held if self.length is None else torch.full_like(held, self.length, dtype=torch.int64)

    @property
    def ranks(self) -> Tensor:  # (N,) rank in the list, from 1, float64; a new tensor
        if self.given is not None:
            return wide(self.given)
        starts = wide(self.offsets[:-1]).index_select(0, self.ids)
        return torch.arange(1, len(starts) + 1, dtype=starts.dtype, device=starts.device).sub_(starts)


def rank(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    tiebreak: Tensor | None = None,
    weights: Tensor | None = None,
    list_weights: Tensor | None = None,
    max_length: int | None = None,
    num_grades: int | None = None,
) -> Ranking:
    """The entries sorted by descending score, list by list; equal scores by ascending `tiebreak`, then stable.

    >>> rank(torch.tensor([1.0, 2.0]), torch.tensor([0, 3]), torch.tensor([0, 2])).labels.tolist()
    [3, 0]
    """
    check(scores, labels, offsets)
    check_weights(scores, offsets, weights, list_weights)
    sizes = {"max_length": max_length, "num_grades": num_grades}
    return rank_checked(scores, labels, offsets, tiebreak=tiebreak, weights=weights, **sizes)


def rank_checked(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    *,
    tiebreak: Tensor | None,
    max_length: int | None,
    num_grades: int | None,
    weights: Tensor | None = None,
) -> Ranking:
    """`rank` for a caller who has already called `check` and `check_weights`."""
    longest = longest_list(offsets, len(scores), max_length)
    scores, ids = scores.detach(), list_ids(offsets, len(scores))
    sort = partial(sort_keys, ids=ids, lists=len(offsets) - 1)
    if tiebreak is None:
        order = sort(scores)
    else:
        first = sort(tiebreak, descending=False)
        order = first[sort(scores[first])]
    num_grades = count_grades(labels, num_grades)
    ranked = labels.index_select(0, order)  # three times as fast as labels[order]
    weights = None if weights is None else wide(weights.detach()).index_select(0, order)
    return Ranking(order, scores, ranked, ids, offsets, longest, num_grades, weights=weights)


def weighted(ranking: Ranking, gain: Gain) -> tuple[Ranking, Gain]:
    """A ranking whose labels are gains times weights, and the gain that takes them as they are: `ranking` and `gain`
    where there are no weights."""
    if ranking.weights is None:
        return ranking, gain
    check_gains(ranking.labels, gain, ranking.num_grades)
    gains = gain_of(ranking.labels, gain) * ranking.weights
    return ranking._replace(labels=gains, num_grades=0, weights=None), "linear"


def count_grades(labels: Tensor, num_grades: int | None) -> int:
    """`num_grades`, or the number found in the labels if it is None; 0 stands for real-valued labels.

    Labels are read only on CPU, where that is free: there a wrong number is refused, elsewhere None gives 0.

    >>> count_grades(torch.tensor([0.0, 2.0]), None), count_grades(torch.tensor([0.5]), None)
    (3, 0)
    """
    if num_grades == 0 or not readable(labels) or len(labels) == 0:
        return num_grades or 0
    lowest, highest = bounds(labels)
    whole = not labels.is_floating_point() or read((labels.frac() == 0).all())
    if num_grades is None:
        return int(highest) + 1 if whole and 0 <= lowest <= highest < MAX_GRADES else 0
    if not whole or lowest < 0 or highest >= num_grades:
        found = f"labels from {lowest} to {highest}" if whole else "labels that are not integers"
        raise ValueError(f"num_grades={num_grades} needs labels 0..{num_grades - 1}, got {found}")
    return num_grades


def levels_of(labels: Tensor, offsets: Tensor, *, max_length: int | None, num_grades: int | None) -> tuple[Tensor, int]:
    """Labels as integers from 0 that keep their order, `(N,)`, and how many different ones there may be.

    >>> levels_of(torch.tensor([0.5, 7.0, 0.5]), torch.tensor([0, 3]), max_length=None, num_grades=None)
    (tensor([0, 1, 0]), 3)
    """
    if grades := count_grades(labels, num_grades):
        return labels.long(), grades
    longest = longest_list(offsets, len(labels), max_length)
    return levels_within(labels, offsets, max_length=longest), max(longest, 1)


def check(scores: Tensor, labels: Tensor, offsets: Tensor) -> None:
    """Refuses input that no measure can be computed from. Values are read only on CPU, where that is free."""
    check_lists(scores, labels, offsets)
    check_scores(scores)


def check_lists(scores: Tensor, labels: Tensor, offsets: Tensor) -> None:
    """Refuses input that has no loss: like `check`, but NaN scores pass and give a loss of NaN."""
    check_offsets(scores, labels, offsets)
    check_labels(labels)


def check_offsets(scores: Tensor, labels: Tensor, offsets: Tensor, *, name: str = "scores") -> None:
    """Refuses scores (or what else `name` says), labels and offsets that do not fit together."""
    if scores.ndim != 1 or scores.shape != labels.shape or offsets.ndim != 1 or len(offsets) == 0:
        column = scores.ndim == 2 and scores.shape[1] == 1
        hint = f"Use {name}[:, 0] of a column" if column else "For padded (B, L) tensors use unpad(values, mask)"
        raise ValueError(
            f"expected {name} (N,), labels (N,), offsets (Q+1,), got {tuple(scores.shape)}, {tuple(labels.shape)}, "
            f"{tuple(offsets.shape)}. {hint}."
        )
    if offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise ValueError(f"offsets must be integers, got {offsets.dtype}")
    if not readable(offsets):
        return
    known = lent(offsets)
    if known[0] != 0 or known[-1] != len(scores) or (known[1:] < known[:-1]).any():
        raise ValueError(f"offsets must rise from 0 to N = {len(scores)}, got {known[0]} to {known[-1]}")


def check_labels(labels: Tensor) -> None:
    """Refuses labels that are NaN, infinite or negative, such as those of padding or of documents without a judgement.

    They are read once, and only on CPU.

    >>> check_labels(torch.tensor([0.0, torch.inf]))
    Traceback (most recent call last):
    ValueError: label inf of entry 1: labels must be finite numbers
    """
    if not readable(labels) or len(labels) == 0:
        return
    if not labels.is_floating_point() and lent(labels).min() >= 0:
        return
    lowest, highest = bounds(labels)
    if lowest >= 0 and highest < math.inf:
        return
    if math.isnan(lowest):
        count = read(labels.isnan().sum())
        raise ValueError(f"{count} of {len(labels)} labels are NaN: remove entries without a label from the lists")
    wrong = read(((labels < 0) | labels.isinf()).nonzero()[0, 0])
    told = f"label {read(labels[wrong])} of entry {wrong}"
    if read(labels[wrong]) == math.inf:
        raise ValueError(f"{told}: labels must be finite numbers")
    raise ValueError(
        f"{told}: labels must be 0 or more. Leave out padding with unpad(values, mask), and give unjudged documents "
        "label 0 with labels.clamp(min=0)"
    )


def check_weights(scores: Tensor, offsets: Tensor, weights: Tensor | None, list_weights: Tensor | None) -> None:
    """Refuses weights of entries `(N,)` or of lists `(Q,)` that do not fit, are negative, NaN or infinite.

    They are read only on CPU. A caller has checked the lists before.

    >>> check_weights(torch.zeros(2), torch.tensor([0, 2]), torch.tensor([1.0, -1.0]), None)
    Traceback (most recent call last):
    ValueError: weights[1] is -1.0: weights must be finite and 0 or more
    """
    for name, given, count, each in (
        ("weights", weights, len(scores), "entry"),
        ("list_weights", list_weights, len(offsets) - 1, "list"),
    ):
        if given is None:
            continue
        if given.ndim != 1 or len(given) != count:
            raise ValueError(f"{name} must be ({count},), one per {each}, got {tuple(given.shape)}")
        if not readable(given) or len(given) == 0:
            continue
        lowest, highest = bounds(given)
        if not (lowest >= 0 and highest < math.inf):
            wrong = read((~((given >= 0) & (given < math.inf))).nonzero()[0, 0])
            raise ValueError(f"{name}[{wrong}] is {read(given[wrong])}: {name} must be finite and 0 or more")


def bounds(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest of some readable numbers; both are NaN if there is a NaN.

    >>> bounds(torch.tensor([3, 1])), bounds(torch.tensor([0.5, torch.nan]))
    ((1, 3), (nan, nan))
    """
    if values.is_floating_point():
        lowest, highest = values.aminmax()
        return read(lowest), read(highest)
    known = lent(values)  # numpy takes half of the time
    return read(known.min()), read(known.max())


def check_scores(scores: Tensor) -> None:
    """Refuses NaN scores. The second pass is needed only if the sum is NaN: inf may meet -inf."""
    if not readable(scores) or not scores.is_floating_point():
        return
    if math.isnan(read(scores.sum())) and (count := read(scores.isnan().sum())):
        raise ValueError(f"{count} of {len(scores)} scores are NaN and cannot be ranked. Did training diverge?")


def check_cutoff(k: int | None) -> None:
    if k is not None and (not isinstance(k, Integral) or k < 1):
        raise ValueError(f"k must be a positive integer or None (the whole list), got {k!r}")


def finish(values: Tensor, scores: Tensor, list_weights: Tensor | None = None) -> Tensor:
    """`values` times the weights of their lists, in the dtype of the result; nan if scores are NaN on a device where
    `check` does not read them."""
    if list_weights is not None:
        values = values * wide(list_weights)
    if not readable(scores) and scores.is_floating_point():
        values = torch.where(torch.isnan(scores).any(), math.nan, values)
    return values.to(result_dtype(scores))


def rank_with_ties(
    scores: Tensor,
    labels: Tensor,
    offsets: Tensor,
    ties: str,
    *,
    gain: Gain = "exp2",
    weights: Tensor | None = None,
    **options: Any,
) -> Ranking:
    """`rank` with the lower gains first among equal scores if ties="worst"."""
    check_choice(("stable", "average", "worst"), ties=ties)
    tiebreak = labels if ties == "worst" else None
    if tiebreak is not None and weights is not None:
        tiebreak = gain_of(labels, gain) * wide(weights)
    return rank(scores, labels, offsets, tiebreak=tiebreak, weights=weights, **options)


class Hits(NamedTuple):
    """Relevant entries in rank order. Everything is float64, exact up to 2^53 and ready for division."""

    relevant: Tensor  # (N,) 1 or 0
    so_far: Tensor  # (N,) relevant entries of the list up to and including this one
    found: Tensor  # (Q,) relevant entries of the list
    total: Tensor  # (Q,) relevant documents of the query, with those that were not retrieved
    first: Tensor  # (Q,) rank of the first relevant entry, where there is one
    gains: Tensor  # (N,) `relevant` times the weights
    mass: Tensor  # (Q,) `total`, or where there are weights their sum over the relevant entries


def hits(ranking: Ranking, threshold: float, num_relevant: Tensor | None = None) -> Hits:
    """Everything that measures of binary relevance need, from one running count over all lists.

    `num_relevant (Q,)` are the relevant documents of each query; None: as many as there are judged or in the list.
    """
    offsets, relevant = ranking.offsets, wide(ranking.labels >= threshold)
    count = relevant.new_empty(len(relevant) + 1)  # relevant entries before this one, over all lists
    count[:1] = 0
    torch.cumsum(relevant, 0, out=count[1:])
    before = count[offsets[:-1]]
    so_far = before.index_select(0, ranking.ids)
    torch.sub(count[1:], so_far, out=so_far)
    place = torch.searchsorted(count, before + 1)  # of the first one: `count` exceeds `before` right after it
    first = place - offsets[:-1] if ranking.given is None else torch.nn.functional.pad(ranking.given, (1, 1))[place]
    found = count[offsets[1:]] - before
    if num_relevant is None and ranking.judged is not None:
        num_relevant = segment_sum((ranking.judged.labels >= threshold).long(), ranking.judged.offsets)
    total, gains = _all_relevant(found, num_relevant), relevant
    mass = total
    if ranking.weights is not None:
        _refuse_unretrieved(num_relevant)
        gains = relevant * ranking.weights
        mass = measure_sum(gains, offsets)
    return Hits(relevant, so_far, found, total, wide(first), gains, mass)


def _refuse_unretrieved(given: object) -> None:
    if given is not None:
        raise ValueError(
            "weights are those of the entries of the lists: the weights of documents that were not retrieved "
            "(num_relevant, judged) are not known"
        )


def _all_relevant(found: Tensor, num_relevant: Tensor | None) -> Tensor:
    """`num_relevant (Q,)` in float64, at least as many as were found; None: what was found is all there is."""
    if num_relevant is None:
        return found
    if num_relevant.shape != found.shape:
        raise ValueError(f"num_relevant must be {tuple(found.shape)}, one per list, got {tuple(num_relevant.shape)}")
    total = wide(num_relevant)
    if readable(found) and read((wrong := ~(total >= found)).any()):
        place = int(wrong.nonzero()[0])
        told = f"{num_relevant[place].item()}, but the list has {int(found[place])} relevant entries"
        raise ValueError(f"num_relevant counts retrieved documents too: num_relevant[{place}] is {told}")
    return total


def to_judged(judged: tuple[Array, Array]) -> tuple[Tensor, Tensor]:
    """Labels `(M,)` and offsets `(Q + 1,)` of judged documents, given as any arrays."""
    if not isinstance(judged, tuple | list) or len(judged) != 2:
        raise DataError(f"judged must be (labels, offsets) of all judged documents, got {type(judged).__name__}")
    return to_tensor(judged[0], "judged labels"), to_integers(judged[1], "judged offsets")


def with_judged(ranking: Ranking, num_relevant: Tensor | None, judged: tuple[Tensor, Tensor] | None) -> Ranking:
    """The ranking with what the ideal order is made of, if not of the list alone.

    The number of relevant documents says enough if labels are 0 and 1; graded ones have to be given themselves.
    """
    if judged is None and num_relevant is None:
        return ranking
    if ranking.weights is not None:
        _refuse_unretrieved(ranking.weights)
    if judged is None:
        if not read(((ranking.labels == 0) | (ranking.labels == 1)).all()):
            raise ValueError(
                "the best NDCG depends on the grades of documents that were not retrieved, which num_relevant does "
                "not tell: give judged=(labels, offsets), the labels of all judged documents of each query"
            )
        total = _all_relevant(hits(ranking, 1).found, num_relevant).long()
        judged = torch.ones(int(total.sum()), device=total.device), torch.nn.functional.pad(total.cumsum(0), (1, 0))
    labels, offsets = to_judged(judged)
    if len(offsets) != len(ranking.offsets):
        raise ValueError(f"judged has {len(offsets) - 1} lists of labels, but there are {len(ranking.offsets) - 1}")
    check_lists(labels, labels, offsets)
    grades = count_grades(labels, None)
    return ranking._replace(judged=Judged(labels, offsets, longest_list(offsets, len(labels), None), grades))


# ties="average": the mean over all orders of equal scores (McSherry & Najork 2008)


def average_gains(ranking: Ranking, gain: Gain) -> Tensor:
    """Gains in rank order, `(N,)`, each replaced by the mean over the entries of the list with the same score."""
    first, after = runs(ranking.scores, ranking.offsets)
    return _sum_of_run(gain_of(ranking.labels, gain), first) / (after - first)


def average_hits(ranking: Ranking, found: Hits) -> tuple[Tensor, Tensor]:
    """The probability that the entry at each rank is relevant, `(N,)`, and the mean number of relevant entries up to
    and including it when it is, `(N,)`.

    With n equal scores, r of them relevant, these are r/n and, at the i-th of their ranks, the number of relevant
    entries before them + 1 + (i - 1) (r - 1) / (n - 1).
    """
    first, after = runs(ranking.scores, ranking.offsets)
    relevant = _sum_of_run(found.relevant, first)
    before = (found.so_far - found.relevant)[first]
    place = torch.arange(len(first), device=first.device) - first
    among = place * (relevant - 1) / (after - first - 1).clamp(min=1)
    return relevant / (after - first), before + 1 + among


def _sum_of_run(values: Tensor, first: Tensor) -> Tensor:
    """For every entry the sum over the run of equal scores that starts at `first (N,)`."""
    return torch.zeros_like(values).index_add(0, first, values)[first]


def ratio(numerator: Tensor, denominator: Tensor, empty: float) -> Tensor:
    """numerator / denominator; `empty` where the denominator is not positive."""
    defined = denominator > 0
    return torch.where(defined, numerator / torch.where(defined, denominator, 1), empty)
