"""Every measure and loss typed again, one list at a time, in plain Python and numpy. The second opinion."""

import itertools
import math

import numpy as np

GAIN = {"exp2": lambda y: 2.0**y - 1, "linear": float}
DISCOUNT = {"log2p1": lambda r: 1 / math.log2(1 + r), "letor": lambda r: 1.0 if r < 2 else 1 / math.log2(r)}


def order(scores):
    return sorted(range(len(scores)), key=lambda i: -scores[i])  # sorted() is stable


def dcg(ranked, k, gain, discount):
    return sum(gain(y) * discount(r) for r, y in enumerate(ranked[:k], start=1))


def tie_orders(scores):
    """Every order of the entries that sorts the scores."""
    groups = [[i for i in range(len(scores)) if scores[i] == value] for value in sorted(set(scores), reverse=True)]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [i for part in parts for i in part]


def ndcg(scores, labels, k=None, gain="exp2", discount="log2p1", ties="stable", empty=math.nan, short="pad"):
    k_, gain, discount = k or len(scores), GAIN.get(gain, gain), DISCOUNT.get(discount, discount)
    if short == "zero" and len(scores) < k_:
        return 0.0
    ideal = max([dcg(sorted(labels, key=gain, reverse=True), k_, gain, discount)], default=0)
    if ideal <= 0:
        return empty
    orders = [order(scores)] if ties == "stable" else tie_orders(scores)
    values = [dcg([labels[i] for i in one], k_, gain, discount) / ideal for one in orders]
    return min(values) if ties == "worst" else sum(values) / len(values)


def mean_ndcg(scores, labels, empty=math.nan, **options):
    if not any(y > 0 for y in labels):
        return empty
    return sum(ndcg(scores, labels, k=r, **options) for r in range(1, len(labels) + 1)) / len(labels)


def relevance(scores, labels, threshold):
    return [labels[i] >= threshold for i in order(scores)]


def average_precision(scores, labels, k=None, threshold=1, empty=math.nan):
    found = relevance(scores, labels, threshold)
    if not any(found):
        return empty
    top = range(min(k or len(found), len(found)))
    return sum(sum(found[: r + 1]) / (r + 1) for r in top if found[r]) / sum(found)


def precision(scores, labels, k=None, threshold=1, empty=math.nan):
    found = relevance(scores, labels, threshold)
    return sum(found[:k]) / (k or len(found)) if any(found) else empty


def recall(scores, labels, k=None, threshold=1, empty=math.nan):
    found = relevance(scores, labels, threshold)
    return sum(found[:k]) / sum(found) if any(found) else empty


def reciprocal_rank(scores, labels, k=None, threshold=1, empty=math.nan):
    found = relevance(scores, labels, threshold)
    if not any(found):
        return empty
    first = found.index(True) + 1
    return 1 / first if first <= (k or first) else 0.0


def err(scores, labels, max_label, k=None, empty=math.nan):
    if not any(y > 0 for y in labels):
        return empty
    total, go_on = 0.0, 1.0
    for r, i in enumerate(order(scores)[:k], start=1):
        stop = (2.0 ** labels[i] - 1) / 2.0**max_label
        total, go_on = total + go_on * stop / r, go_on * (1 - stop)
    return total


def pairs(labels):
    return [(i, j) for i in range(len(labels)) for j in range(len(labels)) if labels[i] > labels[j]]


def all_pairs_error(scores, labels, ties="half"):
    weight = {"half": 0.5, "correct": 0, "error": 1}[ties]
    found = [1 if scores[j] > scores[i] else weight * (scores[j] == scores[i]) for i, j in pairs(labels)]
    return sum(found) / len(found) if found else math.nan


def auc(scores, labels, threshold=1):
    return 1 - all_pairs_error(scores, [y >= threshold for y in labels])


def domination_error(scores, labels, ties="correct"):
    found = []
    for i in range(len(labels)):
        below = [scores[j] for j in range(len(labels)) if labels[j] < labels[i]]
        if below:
            found.append(max(below) > scores[i] or (ties == "error" and max(below) == scores[i]))
    return sum(found) / len(found) if found else math.nan


def listnet_loss(scores, labels):
    if len(set(labels)) < 2:
        return 0.0
    s, y = np.asarray(scores, dtype=np.longdouble), np.asarray(labels, dtype=np.longdouble)
    target = np.exp(y - y.max()) / np.exp(y - y.max()).sum()
    return float(-(target * (s - s.max() - np.log(np.exp(s - s.max()).sum()))).sum())


def ranknet_loss(scores, labels, weight=lambda i, j: 1.0):
    return float(sum(weight(i, j) * np.logaddexp(0, scores[j] - scores[i]) for i, j in pairs(labels)))


def lambdarank_loss(scores, labels, k=None):
    """The weight of a pair is the change of NDCG@k when the two really swap places in the ranked list."""
    one = order(scores)
    ideal = dcg(sorted(labels, reverse=True), k, GAIN["exp2"], DISCOUNT["log2p1"]) if len(labels) else 0

    def change(i, j):
        place = {i: j, j: i}
        swapped = [place.get(entry, entry) for entry in one]
        values = [dcg([labels[e] for e in ranked], k, GAIN["exp2"], DISCOUNT["log2p1"]) for ranked in (one, swapped)]
        return abs(values[0] - values[1]) / ideal if ideal > 0 else 0.0

    return ranknet_loss(scores, labels, change)


def warp_terms(scores, labels, margin=0.1, negatives="lower"):
    """(i, its violators, L(|V|) / |V| over the number of entries with a negative) for the entries that have one."""
    terms = []
    for i, y in enumerate(labels):
        below = [j for j, z in enumerate(labels) if z < y and (negatives == "lower" or z == 0)]
        if below:
            found = [j for j in below if margin + scores[j] > scores[i]]
            rank_weight = sum(1 / math.log2(r + 1) for r in range(1, len(found) + 1))
            terms.append((i, found, rank_weight / max(len(found), 1)))
    return [(i, found, weight / len(terms)) for i, found, weight in terms]


def warp_loss(scores, labels, **options):
    margin = options.get("margin", 0.1)
    return math.fsum(
        weight * (margin - scores[i] + scores[j])
        for i, found, weight in warp_terms(scores, labels, **options)
        for j in found
    )


def warp_gradient(scores, labels, **options):
    """The weights are constants, so every violator adds its weight to itself and takes it from i."""
    result = np.zeros(len(scores))
    for i, found, weight in warp_terms(scores, labels, **options):
        result[i] -= weight * len(found)
        result[found] += weight
    return result


def domination_loss(scores, labels, delta=lambda i, j: 0.0):
    """Sum over i of log(1 + sum of exp(f_j - f_i + delta(i, j)) over the j with smaller label), pair by pair."""
    total = np.longdouble(0)
    for terms in domination_terms(scores, labels, delta).values():
        top = max(0, *terms.values())
        total += top + np.log(np.exp(-top) + sum(np.exp(term - top) for term in terms.values()))
    return float(total)


def domination_gradient(scores, labels, delta=lambda i, j: 0.0):
    """The share of j in the sum of i goes up at j and down at i."""
    result = np.zeros(len(scores), dtype=np.longdouble)
    for i, terms in domination_terms(scores, labels, delta).items():
        top = max(0, *terms.values())
        whole = np.exp(-top) + sum(np.exp(term - top) for term in terms.values())
        for j, term in terms.items():
            share = np.exp(term - top) / whole
            result[j] += share
            result[i] -= share
    return result.astype(float)


def domination_terms(scores, labels, delta):
    """{i: {j: f_j - f_i + delta(i, j) for the j with smaller label}} for the i that have such a j."""
    s = [np.longdouble(score) for score in scores]
    terms: dict = {}
    for i, j in pairs(labels):
        terms.setdefault(i, {})[j] = s[j] - s[i] + np.longdouble(delta(i, j))
    return terms


def each(function, scores, labels, offsets, **options):
    """`function` on every list of a batch of tensors: a numpy array (Q,)."""
    s, y, o = scores.tolist(), labels.tolist(), offsets.tolist()
    return np.array([function(s[a:b], y[a:b], **options) for a, b in itertools.pairwise(o)], dtype=float)
