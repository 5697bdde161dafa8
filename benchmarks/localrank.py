"""The systems of the LocalRank paper against plain forms of them.

RankBoost: lists in the shape of MQ2008 (46 features, 3 grades). A round against numpy with an explicit list of pairs:
naive, trying every rule of every feature (256 bins) on all pairs; and, for scale, with the list of pairs summed into
potentials and all values presorted, feature by feature. All find the same rules. Then a round on longer lists with 136
features, where the list of pairs dominates the cost.

Clouds: principal directions of clouds of about 120 x 136 float32 numbers against a loop of scikit-learn's PCA over the
queries, which computes in float32; the exact route computes in float64. Standard deviations fall linearly to 0, on
different axes for every cloud. Similarities of all pairs of these clouds with 5 directions against the bare products.
"""

import itertools
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.suite import Row, Setting, peer
from torchrank import RankBoost, RankingSet
from torchrank.functional import cloud_pca, cloud_similarity, nearest_clouds

BINS = 256
COMPONENTS, FEATURES = 5, 136


def rows(setting: Setting) -> Iterator[Row]:
    yield from rankboost(setting)
    yield from long_lists(setting)
    yield from pca(setting)
    yield from similarity(setting)


def make_lists(queries, length, features, seed=0):
    """Lists of length / 2 to 3 length / 2 documents with 3 grades; a third of the features has few values."""
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], random.integers(length // 2, 3 * length // 2 + 1, queries).cumsum()])
    x = random.random((offsets[-1], features)).astype(np.float32)
    x[:, ::3] = np.round(8 * x[:, ::3]) / 8
    signal = x[:, :8] @ random.normal(size=8) + random.normal(size=len(x))
    labels = np.digitize(signal, np.quantile(signal, [0.8, 0.93])).astype(np.float32)
    return RankingSet(torch.from_numpy(x), torch.from_numpy(labels), torch.from_numpy(offsets))


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


def sklearn_loop(PCA, x, offsets):
    found, each = x.numpy(), itertools.pairwise(offsets.tolist())
    return [PCA(n_components=COMPONENTS).fit(found[first:last]) for first, last in each]


def cosines(u, others):
    """|cos| of the first and of the last direction: mean and smallest over the clouds."""
    found = (u * others).sum(2).abs()[:, [0, -1]]
    return ", ".join(
        f"u_{p} mean {c.mean():.6f} smallest {c.min():.3f}" for p, c in zip((1, COMPONENTS), found.T, strict=True)
    )


def pca(setting: Setting) -> Iterator[Row]:
    PCA = peer("sklearn.decomposition", "dev").PCA
    x, offsets = make_clouds(setting.size(6000, 60))
    directions = partial(cloud_pca, x, offsets, COMPONENTS)
    theirs, ours = setting.race(partial(sklearn_loop, PCA, x, offsets), directions, repeats=3)
    some, u = min(len(offsets) - 1, 200), directions()[0]
    peers = torch.tensor(np.stack([one.components_ for one in sklearn_loop(PCA, x, offsets[: some + 1])]))
    name = f"principal directions of {len(offsets) - 1:,} clouds"
    note = f"|cos| with theirs: {cosines(u[:some], peers)}"
    yield Row(name, ours, peer="scikit-learn, a loop", theirs=theirs, bar=1 / 2.5, note=note)


def similarity(setting: Setting) -> Iterator[Row]:
    """Different tensors on both sides, so that all products are made; then the same on both, where half are."""
    u, _, _, ranks = cloud_pca(*make_clouds(setting.size(6000, 60)), COMPONENTS)
    v, ranks_v = u.clone(), ranks.clone()
    left, right = u.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
    out = u.new_empty(len(u), len(v))

    def products():
        for p in range(COMPONENTS):
            torch.mm(left[p], right[p].T, out=out)

    bare, full, half, nearest = setting.race(
        products,
        lambda: cloud_similarity(u, ranks, v, ranks_v),
        lambda: cloud_similarity(u, ranks, u, ranks),
        lambda: nearest_clouds(u, ranks, v, ranks_v),
        repeats=3,
    )
    name = f"similarities of {len(u):,} x {len(u):,} clouds"
    yield Row(name, full, peer="the bare products", theirs=bare, bar=2)
    yield Row(f"{name}, a set with itself", half, peer="the bare products", theirs=bare)
    yield Row(f"{name}, the nearest alone", nearest, peer="the bare products", theirs=bare)


# ---- RankBoost ------------------------------------------------------------------------------------------------------


class Timed(RankBoost):
    """RankBoost that records the seconds of its rounds."""

    def start(self, lists):
        self.seconds = []
        super().start(lists)

    def round(self, lists, number):
        start = time.process_time()
        found = super().round(lists, number)
        self.seconds.append(time.process_time() - start)
        return found


def boost(train, rounds, bins):
    """Rules (feature, threshold, alpha) of a fit, and the best round in seconds."""
    ranker = Timed(train.num_features, bins=bins, rounds=rounds)
    ranker.fit(train)
    rules = np.stack([ranker.feature.numpy(), ranker.threshold.numpy(), ranker.alpha.numpy()], 1)
    return rules, min(ranker.seconds)


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
        start = time.process_time()
        f, theta, r = rule(x, low, high, weights, known)
        alpha = np.arctanh(r)
        above = (x[:, f] > theta).astype(np.float64)
        weights = weights * np.exp(alpha * (above[low] - above[high]))
        weights /= weights.sum()
        seconds.append(time.process_time() - start)
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


def rankboost(setting: Setting) -> Iterator[Row]:
    train, rounds, few = make_lists(setting.size(470, 20), 20, 46), setting.size(50, 3), setting.size(3, 1)
    binned, binned_round = boost(train, rounds, BINS)
    exact, exact_round = boost(train, rounds, None)
    naive, naive_round, pairs = pair_boost(train, few, naive_rule, bin_edges(train))
    orders = [np.argsort(-column, kind="stable") for column in train.x.numpy().T]
    presorted, presorted_round, _ = pair_boost(train, rounds, presorted_rule, orders)
    name, note = f"a round of RankBoost, {pairs:,} pairs", same_rules(binned, naive)
    yield Row(f"{name}, 256 bins", binned_round, peer="numpy, all pairs", theirs=naive_round, bar=0.1, note=note)
    note = same_rules(exact, presorted)
    yield Row(f"{name}, exact", exact_round, peer="numpy, presorted", theirs=presorted_round, note=note)


def long_lists(setting: Setting) -> Iterator[Row]:
    train, few = make_lists(setting.size(470, 20), 120, 136), setting.size(3, 1)
    rounds = [boost(train, few + 2, bins)[1] for bins in (BINS, None)]
    orders = [np.argsort(-column, kind="stable") for column in train.x.numpy().T]
    _, theirs, pairs = pair_boost(train, few, presorted_rule, orders)
    for form, ours in zip(("256 bins", "exact"), rounds, strict=True):
        yield Row(f"a round of RankBoost, {pairs:,} pairs, {form}", ours, peer="numpy, presorted", theirs=theirs)
