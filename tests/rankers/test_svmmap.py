"""SVMMap and RankSVM as rankers: the objective by brute force, another solver, every form of the data, resume."""

import numpy as np
import pytest
import torch

import torchrank
from tests.golden.mlr_reference import brute_force
from tests.rankers.metric_fits import graded
from tests.rankers.rounds import check_every_cut, check_every_interrupt
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import RankingDataModule, RankingSet, RankSVM, SVMMap
from torchrank.data import SparseRows
from torchrank.functional import average_precision

QUICK = {"C": 3.0, "eps": 1e-2, "transform": None}


def fit(folder, module=None, make=SVMMap, **options):
    module = module or data()
    ranker = make(module.num_features, **QUICK | options)
    trainer(folder, ranker.rounds, monitor=None, limit_val_batches=0).fit(ranker, datamodule=module)
    return ranker


def module_of(train):
    return RankingDataModule.from_sets(train=train, val=train, measures=["map"])


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
def test_the_upper_bound_is_the_objective_of_the_weight(tmp_path, make, options, measure):
    train = short_lists()
    ranker = fit(tmp_path, module_of(train), make, **options)
    w = ranker.weight.numpy()
    expected = w @ w / 2 + 3 * objective(train, w, **measure)
    assert ranker.certificate["upper"] == pytest.approx(expected, rel=1e-9)
    assert ranker.converged and 0 <= ranker.certificate["gap"] <= 0.03 and w.any()


@pytest.mark.parametrize("make", [SVMMap, RankSVM])
def test_no_point_around_is_better_than_the_certificate_allows(tmp_path, make):
    train = short_lists()
    ranker = fit(tmp_path, module_of(train), make, eps=1e-4)
    draw, w, measure = np.random.default_rng(0), ranker.weight.numpy(), "map" if make is SVMMap else "auc"
    for scale in (1e-3, 1e-2, 0.1, 0.5):
        other = w + scale * draw.normal(size=FEATURES)
        value = other @ other / 2 + 3 * objective(train, other, measure)
        assert value >= ranker.certificate["lower"] >= ranker.certificate["upper"] - 3e-4


@pytest.mark.parametrize("form", ["corpus", "flat"])
def test_with_query_vectors_features_are_absolute_differences(tmp_path, form):
    train = graded(form)
    ranker = fit(tmp_path, module_of(train), C=30.0)
    w = ranker.weight.numpy()
    expected = w @ w / 2 + 30 * objective(train, w, features=lambda q, x: abs(q - x))
    assert ranker.certificate["upper"] == pytest.approx(expected, rel=1e-9)
    ids = torch.repeat_interleave(torch.arange(len(train)), train.offsets.diff())
    rows = train.x if train.index is None else train.x[train.index]
    found = ranker(train.x, train.offsets, index=train.index, queries=train.queries)
    torch.testing.assert_close(found, (train.queries[ids] - rows).abs() @ ranker.weight)


def test_sparse_and_shared_rows_change_nothing(tmp_path):
    train = lists(0)
    turn = torch.randperm(len(train.x), generator=torch.Generator().manual_seed(0))
    x = torch.empty_like(train.x).index_copy(0, turn, train.x)
    forms = {
        "dense": train,
        "sparse": RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets),
        "shared": RankingSet(x, train.labels, train.offsets, index=turn),
        "both": RankingSet(SparseRows.from_dense(x), train.labels, train.offsets, index=turn),
    }
    found = {name: fit(tmp_path / name, module_of(form)) for name, form in forms.items()}
    for name, form in forms.items():
        torch.testing.assert_close(found[name].weight, found["dense"].weight, rtol=1e-8, atol=1e-8)
        scores = found[name](form.x, form.offsets, index=form.index)
        torch.testing.assert_close(scores, train.x @ found["dense"].weight.float(), rtol=1e-5, atol=1e-5)


def test_batches_change_nothing(tmp_path):
    one, many = (fit(tmp_path / str(size), data(batch_documents=size), threshold="sweep") for size in (10_000, 25))
    torch.testing.assert_close(many.weight, one.weight, rtol=1e-8, atol=1e-8)


def test_a_path_ends_where_single_fits_do(tmp_path):
    """With the scaling of Yue et al., and again from its checkpoint."""
    options = {"eps": 1e-3, "transform": "query_minmax"}
    path, single = fit(tmp_path / "path", C=[1.0, 20.0], **options), fit(tmp_path / "single", C=20.0, **options)
    assert not path.certified and single.certified and path.converged and path.trainer.current_epoch == 2
    assert path.certificate["upper"] == pytest.approx(single.certificate["upper"], abs=2 * 20e-3)
    torch.testing.assert_close(path.weight, single.weight, rtol=0.1, atol=0.1)
    test = lists(2)
    again = torchrank.load(tmp_path / "path" / "last.ckpt")
    assert torch.equal(again(test.x, test.offsets), path(test.x, test.offsets))


def test_it_learns(tmp_path):
    ranker, test = fit(tmp_path, C=30.0, transform="standard"), lists(2)
    truth = torch.tensor([0, 1, 0, -0.5, 0, 0]).double()
    assert torch.nn.functional.cosine_similarity(ranker.weight, truth, dim=0) > 0.9
    assert average_precision(ranker(test.x, test.offsets), test.labels, test.offsets).nanmean() > 0.85


def test_zero_weights_warn(tmp_path):
    flat = lists(0)
    flat.labels.fill_(1.0)
    with pytest.warns(UserWarning, match="w = 0 is the best model found: .* No training list has both relevant and"):
        ranker = fit(tmp_path, module_of(flat))
    assert ranker.converged and not ranker.weight.any()


@pytest.mark.parametrize("options", [{"C": 3.0}, {"C": [1.0, 5.0]}], ids=["one", "path"])
def test_checkpoints_and_interrupts_lose_nothing(tmp_path, options):
    def make():
        return SVMMap(FEATURES, eps=0.1, rounds=3, transform=None, **options)

    check_every_cut(tmp_path / "cut", make, 3)
    check_every_interrupt(tmp_path / "stop", make, 3)


def test_sparse_rows_with_query_vectors_are_refused(tmp_path):
    train = graded("flat")
    sparse = RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets, queries=train.queries)
    with pytest.raises(ValueError, match=r"\|q - x\| of dense rows only"):
        fit(tmp_path, module_of(sparse))
