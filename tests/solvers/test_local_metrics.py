"""Local metrics and anchors against pair loops, NDCG one list at a time and scipy's matrix functions; laws of the sums.

No ranker and no trainer: `total` is a plain sum over batches that the test cuts.
"""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch

from tests.functional import plain
from torchrank.data.sets import RankingSet
from torchrank.functional.ragged import segment_sum
from torchrank.solvers.local_metrics.closed_form import KAPPAS, MetricOptions, local_metrics, ridged
from torchrank.solvers.local_metrics.sources import high_and_low

OPTIONS = MetricOptions(metrics=4, queries_per_metric=3)
WIDTH = 5


def lists(seed=0, num_lists=14, grades=3, width=WIDTH) -> RankingSet:
    """Grades follow one feature; lists of 0..12 documents, some without a relevant one."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 13, num_lists)
    x = draw.normal(size=(lengths.sum(), width)) @ draw.normal(size=(width, width)) + 3
    labels = np.clip(np.round(x[:, 0] - 2.5 + draw.normal(size=len(x))), 0, grades - 1)
    offsets = torch.from_numpy(np.concatenate(([0], lengths.cumsum())))
    return RankingSet(torch.from_numpy(x), torch.from_numpy(labels).float(), offsets)


def over(ranking_set, cuts=None):
    """`total` over the lists cut at these positions."""
    cuts = [0, len(ranking_set)] if cuts is None else cuts

    def total(fn, into):
        for a, b in itertools.pairwise(cuts):
            fn(ranking_set[a:b], into)
        return into

    return total


def learn(ranking_set, options=OPTIONS, cuts=None, classes=None):
    return local_metrics(options, over(ranking_set, cuts), len(ranking_set), ranking_set.x[0], classes)


def metrics_of(found):
    return (found.factors @ found.factors.mT).numpy()


# ---- the second opinion ----------------------------------------------------------------------------------------------


def documents(ranking_set, position):
    """Rows, labels, high and low documents of one list."""
    batch = ranking_set[position].flat()
    high, low = (mask.numpy() for mask in high_and_low(batch.labels, batch.offsets, "half"))
    return batch.x.numpy(), batch.labels.numpy(), high, low


def pair_loop(ranking_set, positions):
    """Sums over pairs and numbers of pairs: of high documents, and of a high and a low one."""
    width = ranking_set.num_features
    similar, dissimilar, counts = np.zeros((width, width)), np.zeros((width, width)), [0, 0]
    for position in positions:
        rows, _, high, low = documents(ranking_set, position)
        for a, b in itertools.combinations(rows[high], 2):
            similar += np.outer(a - b, a - b)
            counts[0] += 1
        for a, b in itertools.product(rows[high], rows[low]):
            dissimilar += np.outer(a - b, a - b)
            counts[1] += 1
    return similar, dissimilar, counts


def by_powers(similar, dissimilar, t):
    """S^-1 #_t D by real powers of matrices."""
    root = scipy.linalg.sqrtm(similar).real
    inside = scipy.linalg.fractional_matrix_power(root @ dissimilar @ root, t).real
    return np.linalg.solve(root, np.linalg.solve(root, inside).T)


def plain_metric(ranking_set, positions, options):
    similar, dissimilar, counts = pair_loop(ranking_set, positions)
    if options.scatter == "mean":
        similar, dissimilar = similar / max(counts[0], 1), dissimilar / max(counts[1], 1)
    amounts = [options.ridge, options.ridge]
    if options.ridge_mode == "relative":
        amounts = [options.ridge * np.trace(part) / len(part) for part in (similar, dissimilar)]
    eye = np.eye(len(similar))
    metric = by_powers(similar + amounts[0] * eye, dissimilar + amounts[1] * eye, options.t)
    return metric if options.distance == "mahalanobis" else metric @ metric


def plain_virtual(ranking_set, positions, kappa):
    means = np.array(
        [
            (rows[high].mean(0), rows[low].mean(0))
            for rows, _, high, low in (documents(ranking_set, position) for position in positions)
        ]
    )
    high, low = means.mean(0)
    return high + kappa * (high - low)


def plain_anchor(ranking_set, positions, metric, options):
    """All documents of the largest label of the lists (then the virtual ones) by their mean NDCG@10, first wins."""
    parts = [documents(ranking_set, position) for position in positions]
    largest = max(labels.max() for _, labels, _, _ in parts)
    candidates = [
        (rows[i], (place, i)) for place, (rows, labels, _, _) in enumerate(parts)
        for i in range(len(rows)) if labels[i] == largest
    ]  # fmt: skip
    if options.anchor == "search":
        candidates += [(plain_virtual(ranking_set, positions, kappa), None) for kappa in KAPPAS]
    best, best_quality = None, -math.inf
    for candidate, own in candidates:
        qualities = []
        for place, (rows, labels, _, _) in enumerate(parts):
            kept = [i for i in range(len(rows)) if not (options.exclude_self and own == (place, i))]
            scores = [-float((row - candidate) @ metric @ (row - candidate)) for row in rows[kept]]
            qualities.append(plain.ndcg(scores, labels[kept].tolist(), k=10, empty=0.0))
        if np.mean(qualities) > best_quality + 1e-12:
            best, best_quality = candidate, np.mean(qualities)
    return best


CHANGES = [
    {},
    {"t": 0.0},
    {"t": 0.3},
    {"t": 1.0},
    {"scatter": "sum"},
    {"ridge_mode": "absolute"},
    {"ridge": 3.0},
    {"distance": "eq12"},
    {"queries_per_metric": 1},
    {"queries_per_metric": None, "metrics": 1},
    {"kappa": 0.0},
    {"solver": "svd"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_metrics_and_virtual_anchors(change):
    options, train = replace(OPTIONS, **change), lists()
    found = learn(train, options)
    for metric, anchor, positions in zip(metrics_of(found), found.anchors, found.sources.tolist(), strict=True):
        used = plain_metric(train, positions, options)
        np.testing.assert_allclose(metric, used, rtol=1e-8, atol=1e-9 * abs(used).max())
        np.testing.assert_allclose(anchor, plain_virtual(train, positions, options.kappa), rtol=1e-10)


@pytest.mark.parametrize("anchor", ["best", "search"])
@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_anchors_by_ndcg(anchor, exclude_self, seed):
    options = replace(OPTIONS, anchor=anchor, exclude_self=exclude_self, anchor_candidates=1000, metrics=5)
    train = lists(seed)
    found = learn(train, options, cuts=[0, 3, 4, 9, 14])
    for metric, chosen, positions in zip(metrics_of(found), found.anchors, found.sources.tolist(), strict=True):
        np.testing.assert_allclose(chosen, plain_anchor(train, positions, metric, options), rtol=1e-10)


def test_a_few_candidates_are_drawn_among_all():
    train = lists(1)
    found = learn(train, replace(OPTIONS, anchor="best", anchor_candidates=1))
    for anchor, positions in zip(found.anchors, found.sources.tolist(), strict=True):
        parts = [documents(train, position) for position in positions]
        largest = max(labels.max() for _, labels, _, _ in parts)
        tops = np.concatenate([rows[labels == largest] for rows, labels, _, _ in parts])
        assert (tops == anchor.numpy()).all(1).any()
    others = {float(learn(train, replace(OPTIONS, anchor="best", anchor_candidates=1, seed=s)).anchors.sum())
              for s in range(5)}  # fmt: skip
    assert len(others) > 1


def test_documents_that_have_the_same_quality_leave_it_to_the_first():
    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)  # mirror images
    train = RankingSet(rows, torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0, 4]))
    options = MetricOptions(metrics=1, queries_per_metric=1, anchor="best")
    assert learn(train, options).anchors.tolist() == [[1.0, 1.0]]


# ---- laws ------------------------------------------------------------------------------------------------------------

FORMS = [{}, {"anchor": "best"}, {"anchor": "search", "exclude_self": True}, {"queries_per_metric": None}]


def assert_same(one, other, tolerance=1e-11):
    np.testing.assert_allclose(metrics_of(one), metrics_of(other), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(one.anchors, other.anchors, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("cuts", [range(15), [0, 0, 5, 5, 5, 6, 14, 14], [0, 13, 14]], ids=["singles", "empty", "two"])
def test_the_sums_are_additive_over_lists(form, cuts):
    train, options = lists(2), replace(OPTIONS, **form)
    assert_same(learn(train, options), learn(train, options, cuts), 1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_lists_come_in_any_order_within_a_batch(form):
    """A batch says which lists it holds: neither their order nor the batch of a list matters."""
    train, options = lists(2), replace(OPTIONS, **form)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))

    def total(fn, into):
        for part in order.split(5):
            fn(train[part], into)
        return into

    assert_same(learn(train, options), local_metrics(options, total, 14, train.x[3]))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_shared_corpus_is_its_flat_copy(form):
    flat, options = lists(3), replace(OPTIONS, **form)
    order = torch.randperm(len(flat.x), generator=torch.Generator().manual_seed(0))
    corpus = RankingSet(flat.x[order], flat.labels, flat.offsets, index=order.argsort())
    assert_same(learn(flat, options), learn(corpus, options, cuts=[0, 4, 14]), 1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_order_of_the_documents_of_a_list_does_not_matter(form):
    train, options = lists(4), replace(OPTIONS, **form, anchor_candidates=1000)
    keys = torch.rand(len(train.x), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.argsort(torch.repeat_interleave(train.offsets.diff()) + keys)
    mixed = RankingSet(train.x[order], train.labels[order], train.offsets)
    one, other = learn(train, options), learn(mixed, options)
    np.testing.assert_allclose(metrics_of(one), metrics_of(other), rtol=1e-10, atol=1e-10)
    if options.anchor == "virtual":  # of equally good real documents the first is taken
        np.testing.assert_allclose(one.anchors, other.anchors, rtol=1e-10, atol=1e-10)


def test_the_order_of_the_lists_does_not_matter_where_all_are_used():
    train, options = lists(5), MetricOptions(metrics=1, queries_per_metric=None)
    mixed = train.subset(torch.randperm(14, generator=torch.Generator().manual_seed(0)))
    assert_same(learn(train, options), learn(mixed, options), 1e-10)


def test_a_common_shift_and_unit_of_the_features():
    train = lists(6)
    moved = RankingSet(train.x + 1e3, train.labels, train.offsets)
    scaled = RankingSet(train.x * 0.01, train.labels, train.offsets)
    one = learn(train)
    np.testing.assert_allclose(metrics_of(one), metrics_of(learn(moved)), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(metrics_of(one), metrics_of(learn(scaled)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(one.anchors * 0.01, learn(scaled).anchors, rtol=1e-10)


def test_scatter_in_float32_with_a_large_offset():
    train = lists(6)
    moved = RankingSet((train.x + 1e3).float(), train.labels, train.offsets)
    one, other = metrics_of(learn(train)), metrics_of(learn(moved))
    assert abs(one - other).max() < 1e-3 * abs(one).max()


@pytest.mark.parametrize("many", [False, True])
def test_solved_in_pieces(monkeypatch, many):
    """More lists than fit at once and more metrics than fit at once."""
    train, options = lists(7, num_lists=40), replace(OPTIONS, metrics=9)
    whole = learn(train, options)
    monkeypatch.setattr("torchrank.solvers.local_metrics.closed_form.AT_ONCE", 6 * 25 * 2 if many else 1)
    assert_same(whole, learn(train, options), 1e-12)


# ---- features that do not vary, singular scatter ---------------------------------------------------------------------


def test_dead_features_have_no_direction():
    train = lists(8)
    x = train.x.clone()
    x[:, 1] = 4.5
    found = learn(RankingSet(x, train.labels, train.offsets))
    assert found.factors.shape == (4, WIDTH, WIDTH - 1) and not found.factors[:, 1].any()
    without = learn(RankingSet(x[:, [0, 2, 3, 4]], train.labels, train.offsets))
    kept = metrics_of(found)[:, [0, 2, 3, 4]][:, :, [0, 2, 3, 4]]
    np.testing.assert_allclose(kept, metrics_of(without), rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="no feature varies"):
        learn(RankingSet(torch.ones_like(x), train.labels, train.offsets))


def test_features_of_the_query():
    """Constant in every list: with relative ridges M_jj = sqrt(lam_D / lam_S), or left out."""
    train = lists(9)
    x = train.x.clone()
    x[:, 2] = torch.repeat_interleave(torch.arange(14.0, dtype=torch.float64), train.offsets.diff())
    train = RankingSet(x, train.labels, train.offsets)
    kept, dropped = learn(train), learn(train, replace(OPTIONS, drop_query_constant=True))
    for metric, positions in zip(metrics_of(kept), kept.sources.tolist(), strict=True):
        similar, dissimilar, counts = pair_loop(train, positions)
        ratio = (np.trace(dissimilar) / counts[1]) / (np.trace(similar) / counts[0])
        assert metric[2, 2] == pytest.approx(math.sqrt(ratio), rel=1e-10)
    assert not dropped.factors[:, 2].any() and dropped.factors.shape[2] == WIDTH - 1
    assert_same(dropped, learn(train, replace(OPTIONS, drop_query_constant=True), cuts=range(15)), 1e-12)


def test_features_of_the_query_in_a_shared_corpus():
    train = lists(9)
    x = train.x.clone()
    x[:, 2] = torch.repeat_interleave(torch.arange(14.0, dtype=torch.float64), train.offsets.diff())
    options = replace(OPTIONS, drop_query_constant=True)
    flat = learn(RankingSet(x, train.labels, train.offsets), options)
    corpus = RankingSet(x, train.labels, train.offsets, index=torch.arange(len(x)))
    assert_same(flat, learn(corpus, options))


@pytest.mark.parametrize("scatter", ["mean", "sum"])
def test_without_a_ridge_a_singular_scatter_is_refused(scatter):
    train = lists(0)
    x = torch.cat((train.x, train.x[:, :1]), 1)  # a feature twice
    options = replace(OPTIONS, ridge=0.0, queries_per_metric=None, metrics=1, scatter=scatter)
    message = r"similar-pair scatter of metric 0 is singular: rank 5 of 6 from \d+ pairs. Raise ridge \(now 0.0\)"
    with pytest.raises(ValueError, match=message):
        learn(RankingSet(x, train.labels, train.offsets), options)
    few = replace(OPTIONS, ridge=0.0, queries_per_metric=1)
    with pytest.raises(ValueError, match=r"similar-pair scatter of metric \d is singular: rank \d of 5"):
        learn(train, few)
    assert metrics_of(learn(train, replace(options, ridge=0.1))).shape == (1, 5, 5)


def test_a_ridge_that_is_too_small_is_raised_with_a_warning():
    similar = torch.diag(torch.tensor([1.0, 1e16, 1.0], dtype=torch.float64))[None].clone()
    similar[0, 0, 2] = similar[0, 2, 0] = 1.5  # not positive definite until the ridge is above 0.5
    dissimilar = torch.eye(3, dtype=torch.float64)[None]
    options = MetricOptions(ridge=0.01, ridge_mode="absolute")
    with pytest.warns(UserWarning, match="scatter of metric 7 is singular: its ridge is raised 10 times"):
        found, other = ridged(similar, dissimilar, options, 7, torch.ones(1, 2))
    torch.testing.assert_close(found[0, 0, 0], torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(other, 2 * dissimilar)
    similar[0, 0, 2] = similar[0, 2, 0] = 1e15
    with warnings.catch_warnings(), pytest.raises(ValueError, match="similar-pair scatter of metric 7 is singular"):
        warnings.simplefilter("ignore")
        ridged(similar, dissimilar, options, 7, torch.ones(1, 2))


def test_fewer_documents_than_features():
    wide = lists(3, width=30)
    found = learn(wide, replace(OPTIONS, queries_per_metric=1))
    assert found.factors.isfinite().all() and found.anchors.isfinite().all()
    assert (torch.linalg.eigvalsh(found.factors @ found.factors.mT) > 0).all()


def test_classes_of_queries_take_turns():
    train = lists(10, num_lists=30)
    highs = segment_sum(high_and_low(train.labels, train.offsets, "half")[0].long(), train.offsets)
    classes = torch.arange(30) % 3
    usable = int((highs >= 2).sum())
    sources = learn(train, replace(OPTIONS, metrics=3, queries_per_metric=1), classes=classes).sources
    assert usable > 6 and sorted(classes[sources.flatten()].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"high": "top"}, "unknown high='top': choose one of half, max, positive"),
        ({"ridge_mode": "x"}, "unknown ridge_mode"),
        ({"scatter": "x"}, "unknown scatter"),
        ({"anchor": "x"}, "unknown anchor"),
        ({"distance": "x"}, "unknown distance"),
        ({"t": 1.5}, "t=1.5 is not between 0"),
        ({"metrics": 0}, "metrics=0 must be at least 1"),
        ({"queries_per_metric": 0}, "queries_per_metric=0"),
        ({"anchor_candidates": 0}, "anchor_candidates=0"),
        ({"ridge": -1.0}, "ridge=-1.0 must not be negative"),
    ],
)
def test_options_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        MetricOptions(**change)
