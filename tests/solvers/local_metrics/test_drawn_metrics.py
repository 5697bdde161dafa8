"""Local metrics and anchors against pair loops and NDCG one list at a time; sums over batches and processes.

There is no ranker: a `TrainingLists` is made of the lists as they are, without a transform.
"""

import math
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.reference import local_metrics as plain
from tests.reference.measures import blocks
from torchrank import DataError, NotPositiveDefinite, NumericalWarning
from torchrank.data.sets import RankingSet
from torchrank.data.training import TrainingLists
from torchrank.solvers.local_metrics.drawn_metrics import MetricOptions, local_metrics, ridged, solve_metrics
from torchrank.solvers.local_metrics.scatter import pair_sums

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


def learn(ranking_set, options=OPTIONS, budget=20_000):
    return local_metrics(TrainingLists(ranking_set, budget=budget), options, ranking_set.x[0])


def learn_in_processes(ranking_set, options, world, budget=20_000):
    """What each of `world` processes finds. They are threads: a sum is taken when all have come to it."""
    barrier, parts = threading.Barrier(world, timeout=60), [None] * world

    def process(rank):
        def reduce(tensor):
            parts[rank] = tensor
            barrier.wait()
            total = torch.stack(parts).sum(0)
            barrier.wait()  # nobody writes before all have read
            return total

        share = TrainingLists(ranking_set, budget=budget, rank=rank, world=world, reduce=reduce)
        return local_metrics(share, options, ranking_set.x[0])

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(process, range(world)))


def metrics_of(found):
    return (found.factors @ found.factors.mT).numpy()


def expected_of(ranking_set, sources, options):
    """The same metrics and anchors, from one pair of documents at a time."""
    names = ("high", "t", "ridge", "ridge_mode", "anchor", "kappa")
    return plain.fit(
        ranking_set.x.numpy(), ranking_set.labels.numpy(), ranking_set.offsets.numpy(), sources.numpy(),
        scatter_form=options.scatter, **{name: getattr(options, name) for name in names},
    )  # fmt: skip


# ---- metrics and anchors ---------------------------------------------------------------------------------------------

CHANGES = [
    {},
    {"t": 0.0},
    {"t": 0.3},
    {"t": 1.0},
    {"high": "max"},
    {"high": "positive"},
    {"scatter": "sum"},
    {"ridge_mode": "absolute"},
    {"ridge": 3.0},
    {"queries_per_metric": 1},
    {"queries_per_metric": None, "metrics": 1},
    {"kappa": 0.0},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_metrics_and_virtual_anchors(change):
    options, train = replace(OPTIONS, **change), lists()
    found = learn(train, options)
    expected = expected_of(train, found.sources, options)
    for metric, used in zip(metrics_of(found), expected.metrics, strict=True):
        np.testing.assert_allclose(metric, used, rtol=1e-8, atol=1e-9 * abs(used).max())
    np.testing.assert_allclose(found.anchors, expected.anchors, rtol=1e-10)


@pytest.mark.parametrize("anchor", ["best", "search"])
@pytest.mark.parametrize("seed", range(4))
def test_anchors_by_ndcg(anchor, seed):
    options, train = replace(OPTIONS, anchor=anchor, anchor_candidates=1000, metrics=5), lists(seed)
    found = learn(train, options, budget=25)
    np.testing.assert_allclose(found.anchors, expected_of(train, found.sources, options).anchors, rtol=1e-10)


def test_a_few_candidates_are_drawn_among_all():
    train = lists(1)
    x, labels = ([part[block].numpy() for block in blocks(train.offsets)] for part in (train.x, train.labels))
    found = learn(train, replace(OPTIONS, anchor="best", anchor_candidates=1))
    for anchor, positions in zip(found.anchors, found.sources.tolist(), strict=True):
        largest = max(labels[q].max() for q in positions)
        tops = np.concatenate([x[q][labels[q] == largest] for q in positions])
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

FORMS = [{}, {"anchor": "best"}, {"anchor": "search"}, {"queries_per_metric": None}]


def assert_same(one, other, tolerance=1e-11):
    assert torch.equal(one.sources, other.sources)
    np.testing.assert_allclose(metrics_of(one), metrics_of(other), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(one.anchors, other.anchors, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("budget", [1, 20, 60])
def test_the_sums_are_additive_over_batches(form, budget):
    train, options = lists(2), replace(OPTIONS, **form)
    assert len(list(TrainingLists(train, budget=budget))) == {1: 14, 20: 5, 60: 2}[budget]
    assert_same(learn(train, options), learn(train, options, budget), 1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("world", [2, 3, 20])
def test_the_sums_are_additive_over_processes(form, world):
    """Whose shares are uneven, or empty where there are more processes than lists."""
    train, options = lists(2), replace(OPTIONS, **form)
    whole = learn(train, options)
    for found in learn_in_processes(train, options, world, budget=20):
        assert_same(whole, found, 1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_corpus_that_processes_share_is_its_flat_copy(form):
    flat, options = lists(3), replace(OPTIONS, **form)
    order = torch.randperm(len(flat.x), generator=torch.Generator().manual_seed(0))
    corpus = RankingSet(flat.x[order], flat.labels, flat.offsets, index=order.argsort())
    whole = learn(flat, options)
    assert_same(whole, learn(corpus, options, budget=30), 1e-12)
    for found in learn_in_processes(corpus, options, 3, budget=20):
        assert_same(whole, found, 1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_lists_come_in_any_order_within_a_batch(form):
    """A batch says which lists it holds: neither their order nor the batch of a list matters."""
    train, options = lists(2), replace(OPTIONS, **form)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))

    class Mixed(TrainingLists):
        def __iter__(self):
            return (train[part] for part in order.split(5))

    assert_same(learn(train, options), local_metrics(Mixed(train), options, train.x[3]))


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
    one, other = (
        learn(part, options)
        for part in (train, train.subset(torch.randperm(14, generator=torch.Generator().manual_seed(0))))
    )
    np.testing.assert_allclose(metrics_of(one), metrics_of(other), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(one.anchors, other.anchors, rtol=1e-10, atol=1e-10)


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


def test_solved_in_pieces():
    train, options = TrainingLists(lists(7, num_lists=40)), replace(OPTIONS, metrics=9)
    draw = torch.Generator().manual_seed(0)
    shares = torch.randint(0, 2, (9, 40), generator=draw).double()
    (sums,) = pair_sums(train, [shares], "half")
    whole, pieces = (solve_metrics(sums, torch.ones(WIDTH), options, at_once=most) for most in (2**24, 6 * 25 * 2))
    torch.testing.assert_close(whole @ whole.mT, pieces @ pieces.mT, rtol=1e-12, atol=1e-12)


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
    with pytest.raises(DataError, match="no feature varies"):
        learn(RankingSet(torch.ones_like(x), train.labels, train.offsets))


def test_features_that_are_constant_in_every_list_weigh_as_the_ridges_do():
    """With relative ridges M_jj = sqrt(lam_D / lam_S)."""
    train = lists(9)
    x = train.x.clone()
    x[:, 2] = torch.repeat_interleave(torch.arange(14.0, dtype=torch.float64), train.offsets.diff())
    found = learn(RankingSet(x, train.labels, train.offsets))
    rows, labels = ([part[block].numpy() for block in blocks(train.offsets)] for part in (x, train.labels))
    for metric, positions in zip(metrics_of(found), found.sources.tolist(), strict=True):
        similar, dissimilar = plain.scatter([(rows[q], labels[q]) for q in positions], "half", "mean")
        assert metric[2, 2] == pytest.approx(math.sqrt(np.trace(dissimilar) / np.trace(similar)), rel=1e-10)


@pytest.mark.parametrize("scatter", ["mean", "sum"])
def test_without_a_ridge_a_singular_scatter_is_refused(scatter):
    train = lists(0)
    x = torch.cat((train.x, train.x[:, :1]), 1)  # a feature twice
    options = replace(OPTIONS, ridge=0.0, queries_per_metric=None, metrics=1, scatter=scatter)
    message = r"similar-pair scatter of metric 0 is singular: rank 5 of 6 from \d+ pairs. Raise ridge \(now 0.0\)"
    with pytest.raises(NotPositiveDefinite, match=message):
        learn(RankingSet(x, train.labels, train.offsets), options)
    few = replace(OPTIONS, ridge=0.0, queries_per_metric=1)
    with pytest.raises(NotPositiveDefinite, match=r"similar-pair scatter of metric \d is singular: rank \d of 5"):
        learn(train, few)
    assert metrics_of(learn(train, replace(options, ridge=0.1))).shape == (1, 5, 5)


def indefinite(*correlations):
    """(B, 3, 3), not positive definite until the ridge is above the correlation minus 1."""
    found = torch.eye(3, dtype=torch.float64).repeat(len(correlations), 1, 1)
    found[:, 0, 2] = found[:, 2, 0] = torch.tensor(correlations, dtype=torch.float64)
    return found


def test_a_ridge_that_is_too_small_is_raised_with_a_warning():
    options, good = MetricOptions(ridge=0.01, ridge_mode="absolute"), indefinite(0.0)
    for similar, dissimilar in ((indefinite(1.5), good), (good, indefinite(1.5))):
        with pytest.warns(NumericalWarning) as seen:
            found = ridged(similar, dissimilar, options, 7, torch.ones(1, 2))
        assert len(seen) == 1  # not one for each time that it was raised
        assert str(seen[0].message) == (
            "A scatter of metric 7 is singular: the ridge was raised from 1.0e-02 to 1.0e+00 for similar pairs and "
            "from 1.0e-02 to 1.0e+00 for dissimilar pairs. Raise ridge (now 0.01) or draw more documents per metric "
            "(queries_per_metric)."
        )
        for with_ridge, without in zip(found, (similar, dissimilar), strict=True):
            torch.testing.assert_close(with_ridge, without + torch.eye(3, dtype=torch.float64))


def test_each_scatter_has_a_relative_ridge_of_its_own_and_only_the_metrics_that_need_it_get_a_larger_one():
    options = MetricOptions(ridge=0.02, ridge_mode="relative")
    similar, dissimilar = indefinite(0.5, 1.5, 0.5, 1.1), 100 * indefinite(0, 0, 0, 0)
    message = (
        r"^A scatter of 2 metrics \(first: 5\) is singular: the ridge was raised from 2.0e-02 to 2.0e\+00 for similar "
        r"pairs and from 2.0e\+00 to 2.0e\+02 for dissimilar pairs. Raise ridge \(now 0.02\)"
    )
    with pytest.warns(NumericalWarning, match=message):
        found, other = ridged(similar, dissimilar, options, 4, torch.ones(4, 2))
    for number, factor in enumerate([1, 100, 1, 10]):
        eye = 0.02 * factor * torch.eye(3, dtype=torch.float64)
        torch.testing.assert_close(found[number], similar[number] + eye)
        torch.testing.assert_close(other[number], dissimilar[number] + 100 * eye)


@pytest.mark.parametrize("kind", ["similar", "dissimilar"])
def test_a_scatter_that_no_ridge_helps_is_refused_by_name(kind):
    parts = [indefinite(1e15), indefinite(0.0)]
    similar, dissimilar = parts if kind == "similar" else parts[::-1]
    options, pairs = MetricOptions(ridge=0.01, ridge_mode="absolute"), torch.tensor([[3, 5]])
    message = rf"^{kind}-pair scatter of metric 7 is singular: .* from {3 if kind == 'similar' else 5} pairs"
    with warnings.catch_warnings(), pytest.raises(NotPositiveDefinite, match=message):
        warnings.simplefilter("error")
        ridged(similar, dissimilar, options, 7, pairs)


def test_fewer_documents_than_features():
    wide = lists(3, width=30)
    found = learn(wide, replace(OPTIONS, queries_per_metric=1))
    assert found.factors.isfinite().all() and found.anchors.isfinite().all()
    assert (torch.linalg.eigvalsh(found.factors @ found.factors.mT) > 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"high": "top"}, "unknown high='top': choose one of half, max, positive"),
        ({"ridge_mode": "x"}, "unknown ridge_mode"),
        ({"scatter": "x"}, "unknown scatter"),
        ({"anchor": "x"}, "unknown anchor"),
        ({"t": 1.5}, "t must be >= 0 and <= 1, got 1.5"),
        ({"metrics": 0}, "metrics must be >= 1, got 0"),
        ({"queries_per_metric": 0}, "queries_per_metric must be >= 1, got 0"),
        ({"anchor_candidates": 0}, "anchor_candidates must be >= 1, got 0"),
        ({"ridge": -1.0}, "ridge must be >= 0, got -1.0"),
    ],
)
def test_options_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        MetricOptions(**change)
