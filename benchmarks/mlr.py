"""MLR: the oracles against plain loops and against numpy, list by list; average precision against its dense form; where
the time of a round on IsoLet goes.

    python benchmarks/mlr.py [--lists 1000] [--length 500] [--relevant 0.1] [--loop-lists 20] [--repeats 20]
                             [--threads 1] [--isolet FOLDER]

The loops are the published pseudo-code, entry by entry, and are timed on a few lists only: their time is scaled to all.
What the formulas write as a number of entries they count; for AUC and precision also, without a wanted ratio, in one
pass over the sorted entries (Joachims, ICML 2005).
The numpy forms take one list at a time, as fast as we could write them. All three must find rankings of equal value.
Each time is that of the processor, best of `repeats` rounds in which the forms take turns: what else the machine does
counts little. With two threads the time of both counts. The rounds on IsoLet (FOLDER has Isolet1.mat and so on, or
they lie in isolet/ or uci/isolet/ below it; 95% of the variance; AUC and MRR, C = 10) are timed by the clock.
"""

import argparse
import time

import numpy as np
import torch

from torchrank import MLR
from torchrank.data.points import load_points
from torchrank.functional import most_violated
from torchrank.functional.merged import merge
from torchrank.functional.placement import average_precision_places
from torchrank.solvers.cutting_plane import add_cut, gap, start
from torchrank.solvers.psi import add_metric_psi, metric_scores

MEASURES = [("auc", None), ("precision", 10), ("mrr", None), ("map", None), ("ndcg", 10), ("ndcg", None)]


def make_lists(lists, length, share, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(lists * length, generator=generator) < share).long()
    scores = torch.randn(len(labels), generator=generator, dtype=torch.float64) + labels
    return scores, labels, torch.arange(0, lists * length + 1, length)


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


TABLES = {}


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


def best_times(forms, repeats):
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(repeats):
        for name, run in forms.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best


def verdict(text, ratio, limit):
    print(f"  {text:44}{ratio:9.1f}x  (wanted: >= {limit}x) {'ok' if ratio >= limit else 'MISSED'}")


def hinges(found, scores):
    """loss - sum of coefficients * scores of each list; `found` may have fewer lists."""
    return np.array([loss - np.dot(c, s) for (c, loss), s in zip(found, scores, strict=False)])


def against_loops_and_numpy(options):
    lists, length = options.lists, options.length
    scores, labels, offsets = make_lists(lists, length, options.relevant)
    rows, relevant = scores.view(lists, length).numpy(), (labels.view(lists, length) > 0).numpy()
    TABLES[length] = make_table(length)
    some = [(list(map(float, s)), r.tolist()) for s, r in zip(rows, relevant, strict=True)][: options.loop_lists]
    print(f"{lists} lists of {length} entries, {options.relevant:.0%} relevant, loops on {len(some)} of them")
    for measure, k in MEASURES:
        forms = {
            "torchrank": lambda m=measure, k=k: most_violated(
                scores, labels, offsets, measure=m, k=k, max_length=length
            ),
            "numpy": lambda m=measure, k=k: [NUMPY[m](s, r, k) for s, r in zip(rows, relevant, strict=True)],
        }
        plain = {"loops": lambda m=measure, k=k: [by_loops(*one, m, k) for one in some]}
        if measure in ("auc", "precision"):
            plain["pass"] = lambda m=measure, k=k: [by_loops(*one, m, k, one_pass) for one in some]
        best = best_times(forms, options.repeats)
        best |= {name: value * lists / len(some) for name, value in best_times(plain, 3).items()}
        coefficients, loss = forms["torchrank"]()
        value = (loss - (coefficients * scores).view(lists, length).sum(1)).numpy()
        found = [hinges(run(), rows) for run in (forms["numpy"], *plain.values())]
        apart = max(np.abs(value[: len(other)] - other).max() for other in found)
        print(f"\n{measure if k is None else f'{measure}@{k}'}: "
              + ", ".join(f"{form} {1e3 * seconds:.1f} ms" for form, seconds in best.items())
              + f"; values differ by {apart:.0e}{'' if apart < 1e-10 else ' MISSED'}")  # fmt: skip
        verdict("loops / torchrank", best["loops"] / best["torchrank"], 20)
        verdict("numpy / torchrank", best["numpy"] / best["torchrank"], 1)
        if "pass" in best:
            print(f"  {'single pass / torchrank':44}{best['pass'] / best['torchrank']:9.1f}x")


def halving_against_dense(lists, length, share, repeats):
    scores, labels, offsets = make_lists(lists, length, share)
    merged = merge(scores, labels > 0, offsets, max_length=length)
    forms = {form: lambda form=form: average_precision_places(merged, form) for form in ("divide", "dense")}
    best = best_times(forms, max(1, repeats // 3))
    (a, loss), (b, other) = (run() for run in forms.values())
    value, other = (lost - (merged.scale * c * merged.scores).sum(1) for c, lost in ((a, loss), (b, other)))
    print(f"\naverage precision on {lists} lists of {length}: divide and conquer {1e3 * best['divide']:.1f} ms, "
          f"dense {1e3 * best['dense']:.1f} ms; values differ by {(value - other).abs().max():.0e}")  # fmt: skip
    verdict("dense / divide and conquer", best["dense"] / best["divide"], 5)


def rounds_on_isolet(folder, measure, rounds=6, lists_at_once=168):
    """Seconds of one round by its parts, mean of all but the first two."""
    train = load_points("isolet", root=folder, val_fraction=0)["train"]
    ranker = MLR(train.num_features, transform={"name": "pca", "variance": 0.95})
    ranker.transform.fit(train.x, None)
    train, width = train.to("cpu", ranker.transform), ranker.transform.num_outputs
    plane, seconds = start((width, width)), np.zeros((rounds, 4))
    for number in range(rounds):
        psi, loss = torch.zeros(width, width, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for first in range(0, len(train), lists_at_once):
            clock = [time.perf_counter()]
            batch = train[first : first + lists_at_once]
            scores = metric_scores(batch, plane.probe)
            clock.append(time.perf_counter())
            coefficients, losses = most_violated(
                scores, batch.labels, batch.offsets, measure=measure, max_length=batch.max_length
            )
            clock.append(time.perf_counter())
            add_metric_psi(batch, coefficients, psi)
            loss += losses.sum()
            clock.append(time.perf_counter())
            seconds[number, :3] += np.diff(clock)
        before = time.perf_counter()
        plane = add_cut(plane, psi / len(train), loss / len(train), C=10.0, eps=1e-2)
        seconds[number, 3] = time.perf_counter() - before
    parts = seconds[2:].mean(0)
    text = ", ".join(f"{name} {part:.2f} s ({part / parts.sum():.0%})" for name, part in zip(PARTS, parts, strict=True))
    print(f"\nround of {measure} on IsoLet, {len(train)} lists of {len(train) - 1} rows, {width} features: "
          f"{parts.sum():.2f} s = {text}; gap after {rounds} rounds {float(gap(plane)):.2f}")  # fmt: skip


PARTS = ("lists and scores", "oracle", "sums", "solve")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=1000)
    parser.add_argument("--length", type=int, default=500)
    parser.add_argument("--relevant", type=float, default=0.1, help="share of the entries")
    parser.add_argument("--loop-lists", type=int, default=20, help="lists that the plain loops are timed on")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isolet", help="folder of Isolet1.mat ... Isolet5.mat; without it this part is left out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"float64, {options.threads} thread(s), best of {options.repeats}\n")
    against_loops_and_numpy(options)
    halving_against_dense(64, 3000, options.relevant, options.repeats)
    for measure in ("auc", "mrr") if options.isolet else ():
        rounds_on_isolet(options.isolet, measure)


if __name__ == "__main__":
    main()
