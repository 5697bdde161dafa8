"""The systems of the LocalRank paper against plain forms of them, in one run.

    python benchmarks/localrank.py [--parts pca similarity rankboost search] [--clouds 6000] [--queries 470] [--quick]

rankboost: lists in the shape of MQ2008 (46 features, 3 grades). A round against numpy with an explicit list of pairs:
naive, trying every rule of every feature (256 bins) on all pairs; and, for scale, with the list of pairs summed into
potentials and all values presorted, feature by feature. All find the same rules. Then a round on longer lists with 136
features, where the list of pairs dominates the cost.

pca: principal directions of clouds of about 120 x 136 float32 numbers against a loop of scikit-learn's PCA over the
queries, which computes in float32; the exact route computes in float64. Both on one thread and on all cores; the
verdict is that of all cores. Standard deviations fall linearly to 0, on different axes for every cloud. similarity: all
pairs of these clouds with 5 directions against the bare products, and the nearest cloud. --clouds 300 takes seconds.

search: LSH against exact search and memory with 30,000 queries, which is localrank_search.py with its own sizes.

Times are the best of all rounds.
"""

import argparse
import itertools
import os
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from quick import parse
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from torchrank import RankBoost, RankingSet
from torchrank.functional import cloud_pca, cloud_similarity, nearest_clouds

BINS = 256
COMPONENTS, FEATURES = 5, 136


def make_lists(queries, length, features, seed=0):
    """Lists of length / 2 to 3 length / 2 documents with 3 grades; a third of the features has few values."""
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], random.integers(length // 2, 3 * length // 2 + 1, queries).cumsum()])
    x = random.random((offsets[-1], features)).astype(np.float32)
    x[:, ::3] = np.round(8 * x[:, ::3]) / 8
    signal = x[:, :8] @ random.normal(size=8) + random.normal(size=len(x))
    labels = np.digitize(signal, np.quantile(signal, [0.8, 0.93])).astype(np.float32)
    return RankingSet(torch.from_numpy(x), torch.from_numpy(labels), torch.from_numpy(offsets))


def verdict(text, ratio, limit):
    print(f"  {text:58}{ratio:10.1f}x  (wanted: >= {limit}x) {'ok' if ratio >= limit else 'MISSED'}")


def best_of(repeats, *functions):
    """The shortest time of each function in seconds; they take turns, so that all see the same machine."""
    times = [[] for _ in functions]
    for _ in range(repeats):
        for function, found in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            found.append(time.perf_counter() - start)
    return [min(found) for found in times]


# ---- Clouds ---------------------------------------------------------------------------------------------------------


def make_clouds(count, seed=0):
    """Rows (N, 136) float32 and offsets of clouds of 60 to 180 documents."""
    random = np.random.default_rng(seed)
    lengths = random.integers(60, 181, count)
    x = random.standard_normal((lengths.sum(), FEATURES), dtype=np.float32)
    spreads = np.linspace(1, 0, FEATURES, endpoint=False, dtype=np.float32)
    offsets = np.concatenate([[0], lengths.cumsum()])
    for first, last in itertools.pairwise(offsets):
        mirror = random.standard_normal(FEATURES, dtype=np.float32)  # axes: a reflection of those of the features
        part = x[first:last] * spreads
        x[first:last] = part - np.outer(part @ mirror, 2 * mirror / (mirror @ mirror))
    return torch.from_numpy(x), torch.from_numpy(offsets)


def sklearn_loop(x, offsets):
    rows = x.numpy()
    return [PCA(n_components=COMPONENTS).fit(rows[first:last]) for first, last in itertools.pairwise(offsets.tolist())]


def cosines(u, others):
    """|cos| of the first and of the last direction: mean and smallest over the clouds."""
    found = (u * others).sum(2).abs()[:, [0, -1]]
    return ", ".join(
        f"u_{p} mean {c.mean():.6f} smallest {c.min():.3f}" for p, c in zip((1, COMPONENTS), found.T, strict=True)
    )


def pca(options):
    x, offsets = make_clouds(options.clouds)
    documents = f"{options.clouds} clouds of 60 to 180 documents, {len(x):,} x {FEATURES} float32"
    print(f"PCA, {documents}, {COMPONENTS} components")
    exact, subspace = (partial(cloud_pca, x, offsets, COMPONENTS, route=route) for route in ("exact", "subspace"))
    for threads in sorted({1, os.cpu_count()}):
        with threadpool_limits(threads):
            torch.set_num_threads(threads)
            times = best_of(options.repeats, lambda: sklearn_loop(x, offsets), exact, subspace)
        names = ("scikit-learn, a loop", "torchrank, exact", "torchrank, subspace")
        each = (f"{name} {t:.2f} s ({1e3 * t / options.clouds:.3f} ms)" for name, t in zip(names, times, strict=True))
        print(f"  {threads} thread(s): {', '.join(each)}")
        if threads < os.cpu_count():
            ratios = f"exact {times[0] / times[1]:.1f}x, subspace {times[0] / times[2]:.1f}x"
            print(f"  scikit-learn / torchrank on one thread, for scale: {ratios}")
    torch.set_num_threads(options.threads)
    some, u = min(options.clouds, 200), exact()[0]
    peers = torch.tensor(np.stack([one.components_ for one in sklearn_loop(x, offsets[: some + 1])]))
    print(f"  exact beside scikit-learn, |cos| of {some} clouds: {cosines(u[:some], peers)}")
    print(f"  subspace beside exact, |cos|: {cosines(subspace()[0], u)}")
    verdict("scikit-learn / torchrank, exact in float64, all cores", times[0] / times[1], 2.5)
    verdict("scikit-learn / torchrank, subspace, all cores", times[0] / times[2], 5)
    print()


def similarity(options):
    """Different tensors on both sides, so that all products are made; then the same on both, where half are."""
    u, _, _, ranks = cloud_pca(*make_clouds(options.clouds), COMPONENTS, route="subspace")
    v, ranks_v = u.clone(), ranks.clone()
    left, right = u.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    out = u.new_empty(len(u), len(v))

    def products():
        for p in range(COMPONENTS):
            torch.mm(left[p], right[p].T, out=out)

    bare, full, half, nearest = best_of(
        options.repeats,
        products,
        lambda: cloud_similarity(u, ranks, v, ranks_v),
        lambda: cloud_similarity(u, ranks, u, ranks),
        lambda: nearest_clouds(u, ranks, v, ranks_v),
    )
    print(f"similarity, {len(u)} x {len(u)} clouds, {COMPONENTS} directions of {FEATURES} features in float32")
    print(
        f"  bare products {bare:.2f} s, all pairs {full:.2f} s, a set with itself {half:.2f} s, nearest {nearest:.2f} s"
    )
    name, ratio = "all pairs / bare products", full / bare
    print(f"  {name:58}{ratio:10.1f}x  (wanted: <= 2x) {'ok' if ratio <= 2 else 'MISSED'}\n")


def search(options):
    """Run it in its own process, whose largest resident size it prints."""
    script = Path(__file__).with_name("localrank_search.py")
    chosen = ["--threads", str(options.threads), "--repeats", str(options.repeats)]
    chosen += ["--quick"] if options.quick else []
    subprocess.run([sys.executable, str(script), *chosen], check=True)


# ---- RankBoost ------------------------------------------------------------------------------------------------------


class Timed(RankBoost):
    """RankBoost that records the seconds of its rounds."""

    def start(self, lists):
        self.seconds = []
        super().start(lists)

    def round(self, lists, number):
        start = time.perf_counter()
        found = super().round(lists, number)
        self.seconds.append(time.perf_counter() - start)
        return found


def boost(train, rounds, bins):
    """Rules (feature, threshold, alpha) of a fit, the best round and the whole fit in seconds."""
    ranker = Timed(train.num_features, bins=bins, rounds=rounds)
    start = time.perf_counter()
    ranker.fit(train)
    whole = time.perf_counter() - start
    rules = np.stack([ranker.feature.numpy(), ranker.threshold.numpy(), ranker.alpha.numpy()], 1)
    return rules, min(ranker.seconds), whole


def all_pairs(train):
    """Loser and winner of every pair of documents of one list with different labels."""
    low, high = [], []
    labels, offsets = train.labels.numpy(), train.offsets.numpy()
    for first, last in itertools.pairwise(offsets):
        i, j = np.nonzero(labels[first:last, None] < labels[None, first:last])
        low.append(first + i)
        high.append(first + j)
    return np.concatenate(low), np.concatenate(high)


def naive_rule(x, low, high, weights, edges):
    """The rule with the largest |r|: every threshold of every feature on all pairs."""
    best = (0.0, 0, 0.0, 0.0)
    for f in range(x.shape[1]):
        for theta in edges[f][::-1]:
            above = (x[:, f] > theta).astype(np.float64)
            r = weights @ (above[high] - above[low])
            if abs(r) > best[0] + 1e-12:
                best = (abs(r), f, theta, r)
    return best[1:]


def presorted_rule(x, low, high, weights, orders):
    """The same from potentials, in the order of each feature; all of its values are thresholds."""
    potentials = np.bincount(high, weights, len(x)) - np.bincount(low, weights, len(x))
    best = (0.0, 0, 0.0, 0.0)
    for f, order in enumerate(orders):
        values, sums = x[order, f], potentials[order].cumsum()
        sums[:-1][values[1:] == values[:-1]] = 0.0
        place = int(np.argmax(np.abs(sums[:-1])))
        if abs(sums[place]) > best[0] + 1e-12:
            best = (abs(sums[place]), f, values[place + 1], sums[place])
    return best[1:]


def pair_boost(train, rounds, rule, known):
    """RankBoost in numpy over an explicit list of pairs: rules, and the best round in seconds."""
    x, (low, high) = train.x.numpy(), all_pairs(train)
    weights, rules, seconds = np.full(len(low), 1 / len(low)), [], []
    for _ in range(rounds):
        start = time.perf_counter()
        f, theta, r = rule(x, low, high, weights, known)
        alpha = np.arctanh(r)
        above = (x[:, f] > theta).astype(np.float64)
        weights = weights * np.exp(alpha * (above[low] - above[high]))
        weights /= weights.sum()
        seconds.append(time.perf_counter() - start)
        rules.append((f, theta, alpha))
    return np.array(rules), min(seconds), len(low)


def bin_edges(train):
    """Thresholds of the binned form: all different values, evenly thinned out (few rows: no sample is drawn)."""
    found = [np.unique(column) for column in train.x.numpy().T]
    return [e if len(e) < BINS else e[np.arange(BINS - 1) * len(e) // (BINS - 1)] for e in found]


def same_rules(ours, other):
    """Largest difference; rules count as different where feature or threshold are."""
    apart = np.abs(ours[: len(other)] - other).max()
    return f"rules differ by {apart:.0e}" + ("" if apart < 1e-12 else " MISSED")


def shape(train, pairs):
    return f"RankBoost, {len(train)} lists, {len(train.x):,} documents, {train.num_features} features, {pairs:,} pairs"


def rankboost(options):
    train = make_lists(options.queries, 20, 46)
    binned, binned_round, binned_fit = boost(train, options.rounds, BINS)
    exact, exact_round, exact_fit = boost(train, options.rounds, None)
    naive, naive_round, pairs = pair_boost(train, options.naive_rounds, naive_rule, bin_edges(train))
    orders = [np.argsort(-column, kind="stable") for column in train.x.numpy().T]
    presorted, presorted_round, _ = pair_boost(train, options.rounds, presorted_rule, orders)
    print(shape(train, pairs))
    for name, found, fitted in (("256 bins", binned_round, binned_fit), ("exact", exact_round, exact_fit)):
        print(f"  torchrank, {name}: {1e3 * found:.2f} ms a round, {fitted:.1f} s a fit of {options.rounds} rounds")
    print(f"  numpy pairs, 256 bins tried: {1e3 * naive_round:.0f} ms a round, {same_rules(binned, naive)}")
    print(f"  numpy pairs, presorted: {1e3 * presorted_round:.2f} ms a round, {same_rules(exact, presorted)}")
    verdict("naive pairs / torchrank, 256 bins", naive_round / binned_round, 10)
    print(f"  {'presorted pairs / torchrank, exact':58}{presorted_round / exact_round:10.1f}x")
    long_lists(options)


def long_lists(options):
    train = make_lists(options.queries, 120, 136)
    _, binned_round, _ = boost(train, options.naive_rounds + 2, BINS)
    _, exact_round, _ = boost(train, options.naive_rounds + 2, None)
    orders = [np.argsort(-column, kind="stable") for column in train.x.numpy().T]
    _, presorted_round, pairs = pair_boost(train, options.naive_rounds, presorted_rule, orders)
    print(
        f"\nRankBoost, {len(train)} lists, {len(train.x):,} documents, {train.num_features} features, {pairs:,} pairs"
    )
    print(f"  torchrank: 256 bins {1e3 * binned_round:.0f} ms, exact {1e3 * exact_round:.0f} ms a round; "
          f"numpy pairs, presorted: {1e3 * presorted_round:.0f} ms")  # fmt: skip
    print(f"  {'presorted pairs / torchrank, 256 bins':58}{presorted_round / binned_round:10.1f}x")


PARTS = {"pca": pca, "similarity": similarity, "rankboost": rankboost, "search": search}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--clouds", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3, help="of the timed calls on clouds")
    parser.add_argument("--queries", type=int, default=470)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--naive-rounds", type=int, default=3, help="that the plain forms are timed on and compared")
    parser.add_argument("--threads", type=int, default=1)
    small = {"clouds": 60, "repeats": 1, "queries": 20, "rounds": 3, "naive_rounds": 1}
    options = parse(parser, parts=["pca", "similarity", "rankboost"], **small)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    print(f"{options.threads} thread(s)\n")
    for part in options.parts:
        sys.stdout.flush()
        PARTS[part](options)


if __name__ == "__main__":
    main()
