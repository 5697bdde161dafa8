"""The oracles of MLR for one list at a time, by plain loops and by numpy as fast as we could write it. For mlr.py."""

import numpy as np


def letor(rank):
    return 1 / np.log2(np.maximum(rank, 2))


# Plain loops. Each takes the sorted scores of the relevant (p) and the irrelevant entries (n) and returns the b_i. What
# the formulas write as a number of entries is counted; `one_pass` uses that both classes are sorted.


def count_above(n, scores):
    counts = []
    for score in scores:
        count = 0
        for other in n:
            if other > score:
                count += 1
        counts.append(count)
    return counts


def one_pass(n, scores):
    counts, j = [], 0
    for score in scores:
        while j < len(n) and n[j] > score:
            j += 1
        counts.append(j)
    return counts


def running(n):
    sums = [0.0]
    for score in n:
        sums.append(sums[-1] + score)
    return sums


def loop_auc(p, n, k, count):
    return count(n, [score - 0.5 for score in p])


def loop_psi(p, n, b, sums):
    return sum((len(n) - 2 * bi) * s + 2 * sums[bi] - sums[-1] for s, bi in zip(p, b, strict=True)) / (len(p) * len(n))


def loop_precision(p, n, k, count):
    m, sums = count(n, p), running(n)
    best, found = -np.inf, None
    for a in range(max(0, k - len(n)), min(k, len(p)) + 1):
        beta = min(k - a, len(n))
        b = [min(mi, beta) if i < a else max(mi, beta) for i, mi in enumerate(m)]
        value = 1 - a / min(k, len(p)) + loop_psi(p, n, b, sums)
        if value > best:
            best, found = value, b
    return found


def loop_mrr(p, n, k, count):
    m, sums = count(n, p), running(n)
    best, found = -np.inf, None
    for beta in range(len(n) + 1):
        b = [beta] + [max(mi, beta) for mi in m[1:]]
        value = 1 - 1 / (1 + beta) + loop_psi(p, n, b, sums)
        if value > best:
            best, found = value, b
    return found


def loop_map(p, n, k, count):
    """Yue et al. 2007: for each irrelevant entry the best relevant entry to stand before."""
    b, size, others = [0] * len(p), len(p), len(n)
    for j in range(1, others + 1):
        best, place, value = 0.0, size + 1, 0.0
        for i in range(size, 0, -1):
            value += i / ((i + j) * (i + j - 1)) / size - 2 * (p[i - 1] - n[j - 1]) / (size * others)
            if value > best:
                best, place = value, i
        if place <= size:
            b[place - 1] += 1
    for i in range(1, size):
        b[i] += b[i - 1]
    return b


def loop_ndcg(p, n, k, count):
    """Chakrabarti et al. 2008: a table over (i, b), the first k places only if k is given."""
    k = len(p) + len(n) if k is None else k
    size, others = len(p), len(n)
    discounts = [0.0] + [float(letor(rank)) for rank in range(1, k + 1)] + [0.0] * (size + others)
    ideal = sum(discounts[1 : min(k, size) + 1])
    sums, table, before = running(n), [0.0] * (others + 1), []
    for i, score in enumerate(p, 1):
        row, argument, best, place = [], [], -np.inf, 0
        for b in range(others + 1):
            if table[b] > best:
                best, place = table[b], b
            gain = ((others - 2 * b) * score + 2 * sums[b] - sums[-1]) / (size * others)
            row.append(best + gain - discounts[i + b] / ideal)
            argument.append(place)
        table = row
        before.append(argument)
    b = [max(range(others + 1), key=table.__getitem__)]
    for argument in reversed(before[1:]):
        b.append(argument[b[-1]])
    return b[::-1]


LOOPS = {"auc": loop_auc, "precision": loop_precision, "mrr": loop_mrr, "map": loop_map, "ndcg": loop_ndcg}


def by_loops(scores, relevant, measure, k, count=count_above):
    """Coefficients and loss of one list: sorted, ranked and counted entry by entry."""
    mine = sorted((i for i in range(len(scores)) if relevant[i]), key=lambda i: -scores[i])
    others = sorted((i for i in range(len(scores)) if not relevant[i]), key=lambda i: -scores[i])
    b = LOOPS[measure]([scores[i] for i in mine], [scores[i] for i in others], k, count)
    pairs, coefficients, position = len(mine) * len(others), [0.0] * len(scores), 0
    for i, bi in zip(mine, b, strict=True):
        coefficients[i] = 2 * bi / pairs
    for j, entry in enumerate(others, 1):
        while position < len(b) and b[position] < j:
            position += 1
        coefficients[entry] = -2 * (len(b) - position) / pairs
    return coefficients, loss_of(np.array(b), len(others), measure, k)


def loss_of(b, others, measure, k):
    """Loss of the ranking b."""
    i = np.arange(1, len(b) + 1)
    if measure == "auc":
        return b.sum() / (len(b) * others)
    if measure == "precision":
        return 1 - np.count_nonzero(i + b <= k) / min(k, len(b))
    if measure == "mrr":
        return 1 - 1 / (1 + b[0])
    if measure == "map":
        return 1 - (i / (i + b)).sum() / len(b)
    k = len(b) + others if k is None else k
    return 1 - letor((i + b)[i + b <= k]).sum() / letor(i[:k]).sum()


# numpy, one list at a time


class Sorted:
    """One list in rank order, both classes together, with running counts and sums."""

    def __init__(self, scores, relevant):
        self.order = np.argsort(-scores)
        self.scores, self.relevant = scores[self.order], relevant[self.order]
        self.above = np.cumsum(self.relevant)
        self.below = RANKS[1 : len(scores) + 1] - self.above
        self.mine, self.others = np.flatnonzero(self.relevant), np.flatnonzero(~self.relevant)
        self.p, self.n, self.m = self.scores[self.mine], self.scores[self.others], self.below[self.mine]
        self.pairs = len(self.p) * len(self.n)

    def sums(self):
        """C(b), cp(i) and the running costs, from 0."""
        irrelevant, relevant = (np.concatenate([ZERO, values.cumsum()]) for values in (self.n, self.p))
        costs = np.concatenate([ZERO, (irrelevant[self.m] - self.m * self.p).cumsum()])
        return irrelevant, relevant, costs

    def answer(self, b, measure, k):
        inverted = np.empty(len(self.scores))
        inverted[self.order[self.mine]] = b
        ahead = np.bincount(b, minlength=len(self.n) + 1).cumsum()[: len(self.n)]  # of the j-th irrelevant entry
        inverted[self.order[self.others]] = ahead - len(b)
        return inverted * (2 / self.pairs), loss_of(b, len(self.n), measure, k)


ZERO, RANKS = np.zeros(1), np.arange(100_000)


def numpy_auc(scores, relevant, k):
    p, n = scores[relevant], scores[~relevant]
    b = len(n) - np.searchsorted(np.sort(n), p - 0.5, "right")
    inverted = np.empty(len(scores))
    inverted[relevant] = b
    inverted[~relevant] = -np.searchsorted(np.sort(p), n + 0.5)
    return inverted * (2 / (len(p) * len(n))), b.sum() / (len(p) * len(n))


def numpy_precision(scores, relevant, k):
    one = Sorted(scores, relevant)
    irrelevant, mine, costs = one.sums()
    a = RANKS[max(0, k - len(one.n)) : min(k, len(one.p)) + 1]
    beta = np.minimum(k - a, len(one.n))
    t = np.searchsorted(one.m, beta)
    change = costs[t] - costs[a] - (t - a) * irrelevant[beta] + beta * (mine[t] - mine[a])
    best = (1 - a / min(k, len(one.p)) - np.abs(change) * (2 / one.pairs)).argmax()
    a, beta = a[best], beta[best]
    b = np.concatenate([np.minimum(one.m[:a], beta), np.maximum(one.m[a:], beta)])
    return one.answer(b, "precision", k)


def numpy_mrr(scores, relevant, k):
    one = Sorted(scores, relevant)
    irrelevant, mine, costs = one.sums()
    beta = RANKS[: len(one.n) + 1]
    last = np.maximum(np.concatenate([[0], one.above[one.others]]), 1)
    cost = costs[last] - last * irrelevant + beta * mine[last]
    best = (beta / (beta + 1) - cost * (2 / one.pairs)).argmax()
    b = np.maximum(one.m, best)
    b[0] = best
    return one.answer(b, "mrr", k)


def numpy_placed(scores, relevant, measure, losses, weight):
    """Every irrelevant entry by itself, all places at once; `losses` is a table over (j - 1, a) for all lists."""
    one = Sorted(scores, relevant)
    size, others = len(one.p), len(one.n)
    sums = np.concatenate([ZERO, one.p.cumsum()])
    values = losses[:others, : size + 1] * (weight(size) * others / 2) + sums
    values -= one.n[:, None] * RANKS[: size + 1]
    a = np.maximum.accumulate(values.argmax(1))
    return one.answer(np.bincount(a, minlength=size + 1).cumsum()[:size], measure, None)


def make_table(length):
    """-(H(j + a) + (j - 1) / (j + a)) at (j - 1, a)."""
    harmonic = np.concatenate([ZERO, np.cumsum(1 / np.arange(1, 2 * length + 2))])
    j, a = np.arange(1, length + 1)[:, None], np.arange(length + 1)
    return -(harmonic[j + a] + (j - 1) / (j + a))


def numpy_map(scores, relevant, k):
    return numpy_placed(scores, relevant, "map", TABLES[len(scores)], lambda size: 1)


TABLES = {}  # by length, made before the clock starts


def numpy_ndcg(scores, relevant, k):
    """The table row by row, as wide as the places that are left: k of them, or the whole list."""
    one = Sorted(scores, relevant)
    size, others = len(one.p), len(one.n)
    k = size + others if k is None else min(k, size + others)
    irrelevant, mine, costs = one.sums()
    discounts = letor(RANKS[1 : k + 1])
    ideal, scale = discounts[: min(k, size)].sum(), 2 / one.pairs
    value, tops, tables = np.zeros(min(k, others) + 1), [0.0], []
    for i in range(1, min(k, size) + 1):
        width = min(k - i, others) + 1
        value = np.maximum.accumulate(value[:width])
        tables.append(value)
        cost = costs[i] - costs[i - 1] - irrelevant[:width] + RANKS[:width] * one.p[i - 1]
        value = value - scale * cost - discounts[i - 1 : i - 1 + width] / ideal
        tables.append(value)
        tops.append(value.max())
    a = RANKS[max(0, k - others) : min(k, size) + 1]
    beta = np.minimum(k - a, others)
    t = np.searchsorted(one.m, beta)
    change = costs[t] - costs[a] - (t - a) * irrelevant[beta] + beta * (mine[t] - mine[a])
    best = (np.array(tops)[a] - scale * np.maximum(change, 0)).argmax()
    a, beta = a[best], beta[best]
    b, last = np.maximum(one.m, beta), others
    for i in range(a, 0, -1):
        b[i - 1] = last = tables[2 * i - 1][: last + 1].argmax()
    return one.answer(b, "ndcg", None if k == size + others else k)


NUMPY = {"auc": numpy_auc, "precision": numpy_precision, "mrr": numpy_mrr, "map": numpy_map, "ndcg": numpy_ndcg}
