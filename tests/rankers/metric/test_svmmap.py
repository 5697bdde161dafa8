"""SVMMap and RankSVM as rankers: the objective by brute force, every form of the data, paths, refusals.

Their minimum is compared with that of convex programmes in test_mlr_minimum.py.
"""

import numpy as np
import pytest
import torch

from tests.rankers.metric.fits import graded
from tests.rankers.small import FEATURES, lists
from tests.reference.mlr import brute_force
from torchrank import ConvergenceWarning, DataError, RankingSet, RankSVM, SVMMap
from torchrank.data import SparseRows
from torchrank.functional import average_precision

QUICK = {"C": 3.0, "eps": 1e-2, "transform": None}


def fit(train=None, make=SVMMap, batch_documents=40, **options):
    train = lists(0) if train is None else train
    return make(train.num_features, **QUICK | options).fit(train, batch_documents=batch_documents)


def objective(train, w, measure="map", k=None, threshold=1, features=None):
    """Mean over the lists with two classes of the worst ranking, all of them tried."""
    found = []
    for q in range(len(train)):
        batch = train[q].flat()
        x = batch.x.double().numpy()
        relevant = batch.labels.numpy() >= threshold
        if relevant.any() and not relevant.all():
            rows = x if features is None else features(batch.queries[0].double().numpy(), x)
            found.append(brute_force(rows @ w, relevant, measure, k))
    return float(np.mean(found))


def short_lists(seed=0):
    """Of at most 10 documents, so that all rankings can be tried."""
    train = lists(seed)
    return train.subset(torch.tensor(np.flatnonzero(train.lengths <= 10)))


@pytest.mark.parametrize(
    ("make", "options", "measure"),
    [
        (SVMMap, {}, {}),
        (SVMMap, {"measure": "ndcg", "threshold": 2}, {"measure": "ndcg", "k": 3, "threshold": 2}),
        (SVMMap, {"measure": "precision", "k": 2}, {"measure": "precision", "k": 2}),
        (RankSVM, {}, {"measure": "auc"}),
    ],
    ids=str,
)
def test_the_upper_bound_is_the_objective_of_the_weight(make, options, measure):
    train = short_lists()
    ranker = fit(train, make, **options)
    w = ranker.weight.numpy()
    expected = w @ w / 2 + 3 * objective(train, w, **measure)
    assert ranker.certificate.bounds["upper"] == pytest.approx(expected, rel=1e-9)
    assert ranker.converged and 0 <= ranker.certificate.found <= 0.03 == ranker.certificate.limit and w.any()


@pytest.mark.parametrize("make", [SVMMap, RankSVM])
def test_no_point_around_is_better_than_the_certificate_allows(make):
    train = short_lists()
    ranker = fit(train, make, eps=1e-4)
    draw, w, measure = np.random.default_rng(0), ranker.weight.numpy(), "map" if make is SVMMap else "auc"
    for scale in (1e-3, 1e-2, 0.1, 0.5):
        other = w + scale * draw.normal(size=FEATURES)
        value = other @ other / 2 + 3 * objective(train, other, measure)
        assert value >= ranker.certificate.bounds["lower"] >= ranker.certificate.bounds["upper"] - 3e-4


@pytest.mark.parametrize("form", ["corpus", "flat"])
def test_with_query_vectors_features_are_absolute_differences(form):
    train = graded(form)
    ranker = fit(train, C=30.0)
    w = ranker.weight.numpy()
    expected = w @ w / 2 + 30 * objective(train, w, features=lambda q, x: abs(q - x))
    assert ranker.certificate.bounds["upper"] == pytest.approx(expected, rel=1e-9)
    ids = torch.repeat_interleave(torch.arange(len(train)), train.offsets.diff())
    rows = train.x if train.index is None else train.x[train.index]
    found = ranker(train.x, train.offsets, index=train.index, queries=train.queries)
    torch.testing.assert_close(found, (train.queries[ids] - rows).abs() @ ranker.weight)


def test_sparse_and_shared_rows_change_nothing():
    train = lists(0)
    turn = torch.randperm(len(train.x), generator=torch.Generator().manual_seed(0))
    x = torch.empty_like(train.x).index_copy(0, turn, train.x)
    forms = {
        "dense": train,
        "sparse": RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets),
        "shared": RankingSet(x, train.labels, train.offsets, index=turn),
        "both": RankingSet(SparseRows.from_dense(x), train.labels, train.offsets, index=turn),
    }
    found = {name: fit(form) for name, form in forms.items()}
    for name, form in forms.items():
        torch.testing.assert_close(found[name].weight, found["dense"].weight, rtol=1e-8, atol=1e-8)
        scores = found[name](form.x, form.offsets, index=form.index)
        torch.testing.assert_close(scores, train.x @ found["dense"].weight.float(), rtol=1e-5, atol=1e-5)


def test_batches_change_nothing():
    one, many = (fit(batch_documents=size, threshold="sweep") for size in (10_000, 25))
    torch.testing.assert_close(many.weight, one.weight, rtol=1e-8, atol=1e-8)


def test_a_path_ends_where_single_fits_do():
    """With the scaling of Yue et al."""
    options = {"eps": 1e-3, "transform": "query_minmax"}
    path, single = fit(C=[1.0, 20.0], **options), fit(C=20.0, **options)
    assert not path.certified and single.certified and path.converged and path.findings["C"] == 20.0
    upper = single.certificate.bounds["upper"]
    assert path.certificate.bounds["upper"] == pytest.approx(upper, abs=2 * 20e-3)
    torch.testing.assert_close(path.weight, single.weight, rtol=0.1, atol=0.1)


def test_it_learns():
    ranker, test = fit(C=30.0, transform="standard"), lists(2)
    truth = torch.tensor([0, 1, 0, -0.5, 0, 0]).double()
    assert torch.nn.functional.cosine_similarity(ranker.weight, truth, dim=0) > 0.9
    assert average_precision(ranker(test.x, test.offsets), test.labels, test.offsets).nanmean() > 0.85


def test_zero_weights_warn():
    flat = lists(0)
    flat.labels.fill_(1.0)
    with pytest.warns(ConvergenceWarning, match="w = 0 is the best model found: .* No training list has both relevant"):
        ranker = fit(flat)
    assert ranker.converged and not ranker.weight.any()
    constant = RankingSet(torch.ones(4, 2), torch.tensor([1.0, 0, 0, 1]), torch.tensor([0, 2, 4]))
    with pytest.warns(ConvergenceWarning, match=r"w = 0 .* Raise C \(now 3\), or look at the labels"):
        fit(constant)


def test_data_that_do_not_fit_are_refused():
    train = graded("flat")
    sparse = RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets, queries=train.queries)
    with pytest.raises(DataError, match=r"SVMMap computes \|q - x\| of dense rows only: set data.sparse=false"):
        fit(sparse)
    with pytest.raises(DataError, match="QueryMinMax works inside each list"):
        fit(train, transform="query_minmax")  # a query vector belongs to no list
    ranker = fit(train)
    with pytest.raises(DataError, match="SVMMap was fitted with query vectors"):
        ranker(train.x, train.offsets)
