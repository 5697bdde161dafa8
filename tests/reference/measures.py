"""Measures typed again, plainly: one list at a time, Python floats, loops, every tie order enumerated.

Nothing here is meant to be fast or clever; it is the second opinion against which `torchrank.functional` is compared.
Each measure takes the scores and labels of ONE list (sequences of floats); `per_list` runs one over a flat batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

NAN = float("nan")
List = Sequence[float]


def blocks(offsets: Sequence[int]) -> list[slice]:
    return [slice(int(first), int(last)) for first, last in itertools.pairwise(offsets)]


def tensors(scores, labels, offsets, dtype=torch.float64):
    return torch.tensor(scores, dtype=dtype), torch.tensor(labels, dtype=dtype), torch.tensor(offsets)


def per_list(function: Callable[..., float], scores, labels, offsets, **options) -> np.ndarray:
    """The value of every list of a flat batch (of arrays or tensors)."""
    lists = [([float(s) for s in scores[block]], [float(y) for y in labels[block]]) for block in blocks(offsets)]
    return np.array([function(s, y, **options) for s, y in lists], dtype=np.float64)


# --- order ---


def stable_order(scores: List) -> list[int]:
    """Positions best first by insertion; equal scores (0.0 and -0.0 are equal) keep the order of the list."""
    order: list[int] = []
    for i in range(len(scores)):
        place = len(order)
        while place > 0 and scores[order[place - 1]] < scores[i]:
            place -= 1
        order.insert(place, i)
    return order


def tie_orders(scores: List) -> Iterator[list[int]]:
    """Every order that sorts the scores descending: all permutations inside each group of equal scores."""
    groups = [[i for i, s in enumerate(scores) if s == value] for value in sorted(set(scores), reverse=True)]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [i for part in parts for i in part]


def over_ties(value: Callable[[list[int]], float], scores: List, ties: str) -> float:
    """`value` of the stable order, its mean over all tie orders, or its smallest one."""
    orders = [stable_order(scores)] if ties == "stable" else list(tie_orders(scores))
    values = [value(order) for order in orders]
    return {"stable": values[0], "average": math.fsum(values) / len(values), "worst": min(values)}[ties]


def ordered_pairs(labels: List) -> list[tuple[int, int]]:
    """All (i, j) with labels[i] > labels[j]."""
    size = range(len(labels))
    return [(i, j) for i in size for j in size if labels[i] > labels[j]]


# --- gains and discounts ---


def gain_of(label: float, gain) -> float:
    if gain == "exp2":
        return 2.0**label - 1.0
    if gain == "linear":
        return label
    return float(gain(label))


def discount_of(rank: int, discount) -> float:
    """`letor`: 1 at ranks 1 and 2, then 1/log2(rank)."""
    if discount == "log2p1":
        return 1.0 / math.log2(1 + rank)
    if discount == "letor":
        return 1.0 if rank <= 2 else 1.0 / math.log2(rank)
    return float(discount(rank))


def dcg(ranked_labels: List, k: int | None = None, gain="exp2", discount="log2p1") -> float:
    total = 0.0
    for rank, label in enumerate(ranked_labels, start=1):
        if k is None or rank <= k:
            total += gain_of(label, gain) * discount_of(rank, discount)
    return total


def ideal_dcg(labels: List, k: int | None = None, gain="exp2", discount="log2p1") -> float:
    return dcg(sorted(labels, key=lambda label: gain_of(label, gain), reverse=True), k, gain, discount)


# --- measures ---


def ndcg(scores, labels, *, k=None, gain="exp2", discount="log2p1", ties="stable", empty=NAN, short="pad") -> float:
    """DCG over the ideal DCG at the same cut; `average` is the mean over all tie orders, `worst` the smallest."""
    if short == "zero" and k is not None and len(labels) < k:
        return 0.0
    ideal = ideal_dcg(labels, k, gain, discount)
    if ideal <= 0:
        return empty
    return over_ties(lambda order: dcg([labels[i] for i in order], k, gain, discount) / ideal, scores, ties)


def mean_ndcg(scores, labels, *, gain="exp2", discount="log2p1", ties="stable", empty=NAN) -> float:
    if not any(gain_of(y, gain) > 0 for y in labels):
        return empty
    cuts = range(1, len(labels) + 1)
    return math.fsum(ndcg(scores, labels, k=r, gain=gain, discount=discount, ties=ties) for r in cuts) / len(cuts)


def ranked_relevance(scores, labels, threshold) -> list[bool]:
    return [labels[i] >= threshold for i in stable_order(scores)]


def average_precision(scores, labels, *, k=None, threshold=1, ties="stable", empty=NAN) -> float:
    """Mean over ALL relevant entries of the precision at their rank; those below rank k add 0."""
    if not any(y >= threshold for y in labels):
        return empty

    def value(order):
        relevant = [labels[i] >= threshold for i in order]
        total = 0.0
        for rank in range(1, len(relevant) + 1):
            if relevant[rank - 1] and (k is None or rank <= k):
                total += sum(relevant[:rank]) / rank
        return total / sum(relevant)

    return over_ties(value, scores, ties)


def precision(scores, labels, *, k=None, threshold=1, empty=NAN) -> float:
    """Divides by k even when the list is shorter; without k by the length of the list."""
    relevant = ranked_relevance(scores, labels, threshold)
    if not any(relevant):
        return empty
    return sum(relevant) / len(relevant) if k is None else sum(relevant[:k]) / k


def recall(scores, labels, *, k=None, threshold=1, empty=NAN) -> float:
    relevant = ranked_relevance(scores, labels, threshold)
    return sum(relevant[:k]) / sum(relevant) if any(relevant) else empty


def reciprocal_rank(scores, labels, *, k=None, threshold=1, empty=NAN) -> float:
    relevant = ranked_relevance(scores, labels, threshold)
    if not any(relevant):
        return empty
    first = relevant.index(True) + 1
    return 1.0 / first if k is None or first <= k else 0.0


def err(scores, labels, *, max_label, k=None, empty=NAN) -> float:
    """The mean of 1/rank where a user stops who reads down and stops with probability (2^y - 1) / 2^max_label."""
    if not any(y > 0 for y in labels):
        return empty
    total, still_reading = 0.0, 1.0
    for rank, i in enumerate(stable_order(scores), start=1):
        stop = (2.0 ** labels[i] - 1.0) / 2.0**max_label
        if k is None or rank <= k:
            total += still_reading * stop / rank
        still_reading *= 1.0 - stop
    return total


def auc(scores, labels, *, threshold=1) -> float:
    """Share of (relevant, other) pairs in the right order, tied scores one half."""
    right, pairs = 0.0, 0
    for s, y in zip(scores, labels, strict=True):
        for t, z in zip(scores, labels, strict=True):
            if y >= threshold and z < threshold:
                pairs += 1
                right += 1.0 if s > t else 0.5 if s == t else 0.0
    return right / pairs if pairs else NAN


def domination_error(scores, labels, *, ties="correct") -> float:
    """Share of the entries with something below them (in label) that are beaten by at least one such entry."""
    beaten = dominating = 0
    for s, y in zip(scores, labels, strict=True):
        dominated = [t for t, z in zip(scores, labels, strict=True) if z < y]
        if dominated:
            dominating += 1
            beaten += any(t > s or (t == s and ties == "error") for t in dominated)
    return beaten / dominating if dominating else NAN


def all_pairs_error(scores, labels, *, ties="half") -> float:
    """Share of the pairs with different labels whose scores are the other way round."""
    tied = {"half": 0.5, "correct": 0.0, "error": 1.0}[ties]
    wrong, pairs = 0.0, 0
    for s, y in zip(scores, labels, strict=True):
        for t, z in zip(scores, labels, strict=True):
            if y > z:
                pairs += 1
                wrong += 1.0 if t > s else tied if t == s else 0.0
    return wrong / pairs if pairs else NAN


def hits(scores, labels, *, k=None, threshold=1, empty=NAN) -> float:
    relevant = ranked_relevance(scores, labels, threshold)
    return float(sum(relevant[:k])) if any(relevant) else empty


def r_precision(scores, labels, *, threshold=1, empty=NAN) -> float:
    relevant = ranked_relevance(scores, labels, threshold)
    return precision(scores, labels, k=sum(relevant), threshold=threshold) if any(relevant) else empty


def rbp(scores, labels, *, p=0.8, k=None, threshold=1, empty=NAN) -> float:
    """The share of the ranks that a reader sees who goes on with probability p, and that are relevant."""
    relevant, total, reading = ranked_relevance(scores, labels, threshold), 0.0, 1.0
    if not any(relevant):
        return empty
    for rank, is_relevant in enumerate(relevant, start=1):
        if k is None or rank <= k:
            total += (1 - p) * reading * is_relevant
        reading *= p
    return total


def arp(scores, labels, *, empty=NAN) -> float:
    total = math.fsum(labels)
    ranked = enumerate(stable_order(scores), start=1)
    return math.fsum(rank * labels[i] for rank, i in ranked) / total if total > 0 else empty


def opa(scores, labels) -> float:
    pairs = ordered_pairs(labels)
    return sum(scores[i] > scores[j] for i, j in pairs) / len(pairs) if pairs else NAN


def kendall_tau(scores, labels) -> float:
    """Over all pairs: the product of the two signs, over the root of the products of those that are not 0."""
    size = range(len(scores))
    signs = [
        (np.sign(scores[i] - scores[j]), np.sign(labels[i] - labels[j])) for i, j in itertools.combinations(size, 2)
    ]
    below = math.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
    return float(sum(a * b for a, b in signs)) / below if below else NAN


def rank_biased_overlap(scores, other, *, p=0.9, k=None) -> float:
    """Depth by depth, by sets."""
    depth = len(scores) if k is None else min(k, len(scores))
    one, two = stable_order(scores), stable_order(other)
    shares = [len(set(one[:d]) & set(two[:d])) / d for d in range(1, depth + 1)]
    if not shares:
        return NAN
    return (1 - p) / p * math.fsum(a * p**d for d, a in enumerate(shares, start=1)) + shares[-1] * p**depth


# --- batches to compare on ---


def random_batch(seed: int, *, lists: int = 60, longest: int = 12, real: bool = False):
    """A ragged batch with all that can go wrong: empty lists, one entry, none or all relevant, ties, -0.0.

    Labels are grades 0..4, or with `real` any numbers from 0 to 3 (with repetitions). Scores are multiples of 1/8 or
    random float32 numbers, so float32 and float64 hold the same values. Returns numpy `scores, labels, offsets`.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, lists)
    lengths[:4] = 0, 1, 1, longest
    scores, labels = [], []
    for q, n in enumerate(lengths):
        values = np.append(3 * rng.random(6).astype(np.float32), [0, 1]) if real else np.arange(5)
        mixed, binary, positive = rng.choice(values, n), rng.integers(0, 2, n), rng.integers(1, 4, n)
        labels.append([mixed, binary, np.zeros(n), mixed, np.full(n, 2.0), mixed, positive][q % 7])
        spread = rng.normal(size=n).astype(np.float32)
        few = rng.integers(-2, 3, n) / 8
        zeros = rng.choice([0.0, -0.0], n)
        mixture = np.where(rng.random(n) < 0.5, zeros, few)
        scores.append([spread, few, zeros, -np.abs(spread) - 1, mixture, 1e4 * spread][q % 6])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.concatenate(scores).astype(np.float64), np.concatenate(labels).astype(np.float64), offsets
