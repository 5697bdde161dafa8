"""GMML and L-GMML as rankers: scores, scales and weights typed again in numpy; laws of the fit; labels out of reach."""

import math
import signal
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from pytorch_lightning import Callback

import torchrank
from tests.functional import plain
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import GMML, LGMML, RankingDataModule, RankingSet
from torchrank.data.corpus import CorpusSet, Judged, SameClass
from torchrank.rankers.compiled import CompiledScorer
from torchrank.solvers.warp import sampled_warp

SMALL = {"metrics": 4, "queries_per_metric": 3, "rounds": 1}
WEIGHTS = {
    "shared": {"weights": "shared"},
    "mean": {"weights": "per_query", "fallback": "mean"},
    "ones": {"weights": "per_query", "fallback": "ones"},
    "knn": {"weights": "per_query", "fallback": "knn"},
    "amortized": {"weights": "amortized"},
}


def fit(folder, module=None, make=LGMML, precision="32-true", callbacks=(), **options):
    ranker = make(FEATURES, **({} if make is GMML else SMALL) | options)
    module = data() if module is None else module
    runner = trainer(folder, ranker.rounds, precision=precision, callbacks=list(callbacks), monitor=None)
    runner.fit(ranker, datamodule=module)
    return ranker.eval()


def moved(**sets) -> RankingDataModule:
    """The data of `small` with some of its sets replaced."""
    return RankingDataModule.from_sets(**{"train": lists(0), "val": lists(1), "test": lists(2)} | sets)


def rows_of(ranker, ranking_set):
    """Transformed rows in float64, with the float32 rounding that resident sets have."""
    return ranker.transform(ranking_set.x.float(), ranking_set.offsets).double().numpy()


def split(values, offsets):
    return [values[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


# ---- the second opinion ----------------------------------------------------------------------------------------------

KERNELS = {
    "paper": lambda z, beta: -z * math.exp(-z),
    "demo": lambda z, beta: z * math.exp(-z),
    "rbf": lambda z, beta: math.exp(-beta / 2 * z * z),
    "laplace": lambda z, beta: math.exp(-beta / 2 * z),
    "distance": lambda z, beta: -z,
}


def plain_distance(factor, row, centre):
    return math.sqrt(float((row - centre) @ factor @ factor.T @ (row - centre)))


def plain_scores(ranker, rows, weights, kernel, beta=2.0, query=None):
    """Scores of the rows of one list under the weights (M,), one document at a time."""
    factors, anchors, tau = (part.double().numpy() for part in (ranker.factors, ranker.anchors, ranker.tau))
    scores = []
    for row in rows:
        z = [plain_distance(f, row, a if query is None else query) / t
             for f, a, t in zip(factors, anchors, tau, strict=True)]  # fmt: skip
        if kernel != "localized":
            scores.append(sum(w * KERNELS[kernel](v, beta) for w, v in zip(weights, z, strict=True)))
            continue
        near = z if query is None else [
            plain_distance(f, query, a) / t for f, a, t in zip(factors, anchors, tau, strict=True)
        ]  # fmt: skip
        shares = np.array([w * math.exp(-beta / 2 * (v - min(near))) for w, v in zip(weights, near, strict=True)])
        squares = np.square(np.array(z) * (1 if query is None else tau))
        scores.append(-(shares @ squares) / (shares.sum() if query is None else 1))
    return np.array(scores)


CHANGES = [
    *({"kernel": kernel} for kernel in (*KERNELS, "localized")),
    {"kernel": "rbf", "beta": 0.5},
    {"kernel": "laplace", "beta": 0.5, "tau": "q95"},
    {"kernel": "localized", "beta": 0.5, "tau": "max"},
    {"tau": 3.0, "distance": "eq12"},
    {"anchor": "best"},
    {"anchor": "search", "t": 0.3},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_scores(tmp_path, change):
    ranker, test = fit(tmp_path, precision="64-true", **change), lists(2)
    ranker.weights.copy_(torch.tensor([0.5, 1.0, 0.0, 2.0]))
    rows = rows_of(ranker, test)
    options = {"kernel": change.get("kernel", "distance"), "beta": change.get("beta", 2.0)}
    expected = plain_scores(ranker, rows, [0.5, 1.0, 0.0, 2.0], **options)
    np.testing.assert_allclose(ranker(test.x.double(), test.offsets), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("tau", "quantile"), [("median", 0.5), ("q95", 0.95), ("max", 1.0)])
def test_scales_are_quantiles_of_the_training_distances(tmp_path, tau, quantile):
    ranker, train = fit(tmp_path, precision="64-true", tau=tau), lists(0)
    rows = rows_of(ranker, train)
    for factor, anchor, found in zip(ranker.factors.numpy(), ranker.anchors.numpy(), ranker.tau, strict=True):
        distances = [plain_distance(factor, row, anchor) for row in rows]
        assert float(found) == pytest.approx(np.quantile(distances, quantile), rel=1e-9)


def test_the_first_round_is_complete_and_gmml_is_one_metric(tmp_path):
    ranker = fit(tmp_path, make=GMML)
    assert ranker.factors.shape == (1, FEATURES, FEATURES) and ranker.tau.tolist() == ranker.weights.tolist() == [1]
    same = fit(tmp_path, metrics=1, queries_per_metric=None, tau=1.0)
    assert torch.equal(ranker.factors, same.factors)
    test = lists(2)
    expected = plain_scores(ranker, rows_of(ranker, test), [1.0], "distance")
    np.testing.assert_allclose(ranker(test.x, test.offsets), expected, rtol=1e-4, atol=1e-4)


# ---- every option has an effect --------------------------------------------------------------------------------------

EFFECTS = [
    ({}, {"metrics": 5}),
    ({}, {"queries_per_metric": 2}),
    ({}, {"high": "max"}),
    ({"high": "max"}, {"high": "positive"}),
    ({}, {"t": 0.2}),
    ({}, {"ridge": 1.0}),
    ({}, {"ridge_mode": "absolute"}),
    ({"tau": 1.0}, {"scatter": "sum"}),
    ({}, {"anchor": "best"}),
    ({}, {"anchor": "search"}),
    ({}, {"kappa": 1.0}),
    ({"anchor": "best"}, {"anchor_candidates": 1}),
    ({"anchor": "best", "metrics": 8}, {"exclude_self": True}),
    ({}, {"distance": "eq12"}),
    ({}, {"kernel": "rbf"}),
    ({"kernel": "laplace"}, {"beta": 1.0}),
    ({}, {"tau": "max"}),
    ({}, {"seed": 1}),
    ({}, {"transform": "l2"}),
    ({}, {"rounds": 3}),
    ({"rounds": 3}, {"mode": "sgd"}),
    ({"rounds": 3, "mode": "sgd"}, {"margin": 2.0}),
    ({"rounds": 3}, {"margin": 2.0}),
    ({"rounds": 3}, {"negatives": "zero"}),
    ({"rounds": 3, "mode": "sgd"}, {"negatives": "zero"}),
    ({"rounds": 3}, {"lr": 0.01}),
    ({"rounds": 3, "mode": "sgd", "lr": 5.0}, {"nonneg": False}),
    ({"rounds": 12, "lr": 0.9, "anchor": "best", "kernel": "rbf"}, {"nonneg": False}),
    ({"rounds": 3}, {"weights": "per_query"}),
    ({"rounds": 3}, {"weights": "amortized"}),
    ({"rounds": 3, "weights": "per_query"}, {"fallback": "ones"}),
    ({"rounds": 3, "weights": "per_query"}, {"fallback": "knn"}),
]


@pytest.fixture(scope="module")
def known():
    """Scores of the fits that several options are compared with."""
    return {}


@pytest.mark.parametrize(("base", "change"), EFFECTS, ids=str)
def test_every_option_has_an_effect(tmp_path, known, base, change):
    test = lists(2)
    if str(base) not in known:
        known[str(base)] = fit(tmp_path, **base)(test.x, test.offsets)
    one, other = known[str(base)], fit(tmp_path, **base | change)(test.x, test.offsets)
    assert other.isfinite().all() and (one - other).abs().max() > 1e-4


@pytest.mark.parametrize("solver", ["eigh", "svd", "dbase", "gemm"])
def test_solvers_agree(tmp_path, solver):
    one, other = (fit(tmp_path, solver=name, precision="64-true") for name in ("auto", solver))
    np.testing.assert_allclose(one.factors @ one.factors.mT, other.factors @ other.factors.mT, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", WEIGHTS)
def test_features_that_are_constant_in_training_are_ignored(tmp_path, mode):
    train, test = lists(0), lists(2)
    train.x[:, 2] = 1.5
    ranker, x = fit(tmp_path, moved(train=train), rounds=3, **WEIGHTS[mode]), test.x.clone()
    scores = ranker(x, test.offsets)
    x[:, 2] += 100 * torch.randn(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ranker(x, test.offsets), scores, rtol=0, atol=0)
    if mode in ("shared", "mean", "ones"):
        torch.testing.assert_close(ranker.compiled()(ranker.transform(x, test.offsets)), scores)


def test_features_of_the_query_may_be_left_out(tmp_path):
    train, test = lists(0), lists(2)
    train.x[:, 2] = torch.repeat_interleave(torch.arange(12.0), train.offsets.diff())
    x = test.x.clone()
    x[:, 2] += 1
    kept, dropped = (fit(tmp_path, moved(train=train), drop_query_constant=choice) for choice in (False, True))
    assert not torch.equal(kept(x, test.offsets), kept(test.x, test.offsets))
    assert torch.equal(dropped(x, test.offsets), dropped(test.x, test.offsets))


def test_without_a_ridge_a_singular_scatter_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"scatter of metric \d is singular: rank \d of 6 .* Raise ridge \(now 0.0\)"):
        fit(tmp_path, ridge=0.0, queries_per_metric=1)


@pytest.mark.parametrize(("change", "message"), [
    ({"kernel": "x"}, "unknown kernel='x': choose one of paper"),
    ({"weights": "x"}, "unknown weights"),
    ({"fallback": "x"}, "unknown fallback"),
    ({"mode": "x"}, "unknown mode"),
    ({"negatives": "x"}, "unknown negatives"),
    ({"tau": "x"}, "unknown tau='x': choose one of median, q95, max or a number"),
    ({"tau": 0.0}, "tau=0.0 must be positive"),
    ({"kernel": "localized", "nonneg": False}, "needs nonneg=true"),
    ({"weights": "amortized", "mode": "sgd"}, "mode=sgd needs scores linear"),
    ({"beta": 0.0}, "beta=0.0 .*must be positive"),
    ({"lr": -1.0}, "lr=-1.0 must be positive"),
])  # fmt: skip
def test_options_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        LGMML(FEATURES, **change)


# ---- WARP rounds -----------------------------------------------------------------------------------------------------


class Watch(Callback):
    """Weights after every round."""

    def __init__(self):
        self.weights = []

    def on_train_epoch_end(self, trainer, ranker):
        self.weights.append(ranker.weights.clone())


def mean_loss(ranker, weights, **options):
    """Mean over the lists with different labels of the WARP loss, from scores typed again."""
    train = lists(0)
    rows, losses = split(rows_of(ranker, train), train.offsets), []
    for place, (own, labels) in enumerate(zip(rows, split(train.labels.tolist(), train.offsets), strict=True)):
        if len(set(labels)) > 1:
            mine = weights if weights.ndim == 1 else weights[place]
            scores = plain_scores(ranker, own, mine.tolist(), "distance") * float(ranker.scale)
            losses.append(plain.warp_loss(scores.tolist(), labels, **options))
    return np.mean(losses)


@pytest.mark.parametrize("weights", ["shared", "per_query"])
def test_full_rounds_lower_the_mean_loss_along_its_gradient(tmp_path, weights):
    watch = Watch()
    ranker = fit(tmp_path, precision="64-true", weights=weights, rounds=5, lr=0.2, callbacks=[watch])
    assert (watch.weights[0] == 1).all()  # the first round ends with all weights 1
    losses = [mean_loss(ranker, one) for one in watch.weights]
    assert all(b < a for a, b in pairwise(losses))
    for before, after in pairwise(watch.weights):
        assert (after >= 0).all() and (after - before).abs().max() <= 0.2 * before.max() * (1 + 1e-12)
    if weights == "shared":  # numerical slope against the first move
        width, start = 1e-6, watch.weights[0]
        steps = width * torch.eye(len(start), dtype=torch.float64)
        slope = [(mean_loss(ranker, start + s) - mean_loss(ranker, start - s)) / (2 * width) for s in steps]
        move = (start - watch.weights[1]).numpy()
        np.testing.assert_allclose(move / np.linalg.norm(move), slope / np.linalg.norm(slope), atol=1e-5)


def test_kernel_values_have_deviation_one(tmp_path):
    ranker, train = fit(tmp_path, precision="64-true", rounds=2), lists(0)
    ones = np.eye(4)
    phi = np.stack([plain_scores(ranker, rows_of(ranker, train), one, "distance") for one in ones], 1)
    assert float(ranker.scale) == pytest.approx(1 / phi.std(0).mean(), rel=1e-9)


def test_only_lists_with_different_labels_move_their_row(tmp_path):
    ranker, train = fit(tmp_path, weights="per_query", rounds=4), lists(0)
    still = (ranker.weights == 1).all(1).numpy()
    assert still[train.pairs == 0].all() and not still.all() and ranker.weights.shape == (12, 4)


@pytest.mark.parametrize("weights", ["shared", "per_query"])
@pytest.mark.parametrize("nonneg", [True, False])
def test_sampled_rounds(tmp_path, monkeypatch, weights, nonneg):
    steps, watch = [], Watch()

    def recorded(*given, lr, **options):
        steps.extend(lr.tolist())
        return sampled_warp(*given, lr=lr, **options)

    monkeypatch.setattr("torchrank.rankers.lgmml.sampled_warp", recorded)
    change = {"kernel": "demo", "tau": "max", "weights": weights, "nonneg": nonneg}  # nearer is worse: weights fall
    ranker = fit(tmp_path, mode="sgd", rounds=5, lr=6.0, callbacks=[watch], **change)
    assert (watch.weights[0] == 1).all() and not torch.equal(watch.weights[0], watch.weights[1])
    assert bool((ranker.weights >= 0).all()) == nonneg
    lists_of_round = int((lists(0).pairs > 0).sum())
    assert len(steps) == 4 * lists_of_round  # one for each list with different labels
    for number, step in enumerate(steps):
        decay = 1 - number // lists_of_round / 4
        assert step == pytest.approx(6 * decay / (lists_of_round if weights == "shared" else 1), rel=1e-6)


def test_sampled_rounds_refuse_several_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("pytorch_lightning.Trainer.world_size", 2)
    monkeypatch.setattr("torchrank.data.datamodule.RankingDataModule._place", lambda self: (0, 1))
    with pytest.raises(ValueError, match=r"mode=sgd .* in one process: use mode=full on several"):
        fit(tmp_path, mode="sgd", rounds=2)


def test_sampled_rounds_need_scores_linear_in_the_weights(tmp_path):
    with pytest.raises(ValueError, match="mode=sgd needs scores linear in the weights"):
        fit(tmp_path, mode="sgd", kernel="localized", rounds=2)
    ranker = with_queries(tmp_path, mode="sgd", kernel="localized", rounds=3, anchor="best")  # linear with queries
    assert (ranker.weights != 1).any() and (ranker.weights >= 0).all()


def test_perfectly_ranked_lists_end_the_fit(tmp_path):
    train = lists(0)
    train.labels.zero_()
    train.labels[train.x[:, 0] > 0] = 1
    train.x[:, 0] = torch.where(train.x[:, 0] > 0, 50.0, -50.0) + train.x[:, 0]
    ranker = fit(tmp_path, moved(train=train), rounds=20, margin=1e-6, kappa=30.0)
    assert ranker.converged and (ranker.weights == 1).all()


# ---- weights of lists that were not trained on -----------------------------------------------------------------------


def profile(rows):
    return np.concatenate((rows.mean(0), rows.std(0)))


def plain_weights(ranker, mode, rows, train_rows):
    """Weights of one list: from the learned values and the documents of the list alone."""
    values = ranker.weights.double().numpy()
    if mode == "shared":
        return values
    if mode == "mean":
        return values.mean(0)
    if mode == "ones":
        return np.ones(values.shape[1])
    if mode == "knn":
        profiles = np.stack([profile(one) for one in train_rows])
        mean, deviation = profiles.mean(0), profiles.std(0)
        gaps = np.linalg.norm((profiles - profile(rows)) / deviation, axis=1)
        assert np.isfinite(mean).all()
        return values[np.argsort(gaps, kind="stable")[:10]].mean(0)
    phi = np.stack([plain_scores(ranker, rows, one, "distance") for one in np.eye(len(values))], 1)
    return np.log1p(np.exp(values @ np.concatenate(([1.0], phi.mean(0), rows.mean(0)))))


@pytest.mark.parametrize("mode", WEIGHTS)
def test_weights_of_other_lists(tmp_path, mode):
    ranker, train, test = fit(tmp_path, rounds=4, precision="64-true", **WEIGHTS[mode]), lists(0), lists(2)
    train_rows = split(rows_of(ranker, train), train.offsets)
    expected = np.concatenate([
        plain_scores(ranker, rows, plain_weights(ranker, mode, rows, train_rows), "distance")
        for rows in split(rows_of(ranker, test), test.offsets)
    ])
    assert (ranker.weights != ranker.weights[:1]).any()
    np.testing.assert_allclose(ranker(test.x, test.offsets), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "ones", "knn"])
def test_rows_of_training_queries_are_used_only_where_asked_for(tmp_path, mode):
    ranker, train = fit(tmp_path, rounds=4, **WEIGHTS[mode]), lists(0)
    query = torch.arange(12)
    scores = ranker(train.x, train.offsets)
    assert torch.equal(ranker(train.x, train.offsets, query=query.flip(0)), scores)
    learned = ranker.training_scores(train.x, train.offsets, query)
    assert not torch.allclose(learned, scores)
    rows = split(rows_of(ranker, train), train.offsets)
    expected = np.concatenate([
        plain_scores(ranker, own, weights.tolist(), "distance")
        for own, weights in zip(rows, ranker.weights, strict=True)
    ])
    np.testing.assert_allclose(learned, expected, rtol=1e-4, atol=1e-4)
    swapped = ranker.training_scores(train.x, train.offsets, query.flip(0))
    assert not torch.allclose(swapped, learned)


@pytest.mark.parametrize("change", [*WEIGHTS.values(), {"kernel": "localized"}, {"mode": "sgd"}], ids=str)
def test_shuffled_test_labels_change_no_score(tmp_path, change):
    ranker = fit(tmp_path, rounds=3, **change)
    before = {name: tensor.clone() for name, tensor in ranker.state_dict().items()}
    wrong = lists(2)
    wrong.labels = wrong.labels[torch.randperm(len(wrong.labels), generator=torch.Generator().manual_seed(3))]
    scores, runner = {}, trainer(tmp_path)
    for name, test in (("right", lists(2)), ("wrong", wrong)):
        seen = []

        def watched(split, batch, seen=seen):
            seen.append(type(ranker).evaluation_scores(ranker, split, batch))
            return seen[-1]

        ranker.evaluation_scores = watched
        module = RankingDataModule.from_sets(train=lists(0), val=lists(1), test=test, batch_documents=40)
        runner.test(ranker, datamodule=module, verbose=False)
        scores[name] = torch.cat([*seen, *runner.predict(ranker, datamodule=module)])
    assert torch.equal(scores["right"], scores["wrong"])
    half = len(scores["right"]) // 2
    torch.testing.assert_close(scores["right"][half:], scores["right"][:half], rtol=1e-5, atol=1e-5)  # predict = score
    for name, tensor in ranker.state_dict().items():
        assert torch.equal(tensor, before[name]), name


# ---- laws of the fit -------------------------------------------------------------------------------------------------

FITS = [
    {"rounds": 4},
    {"anchor": "best", "rounds": 3},
    {"anchor": "search", "kernel": "rbf", "rounds": 3, "exclude_self": True},
    {"weights": "per_query", "fallback": "knn", "rounds": 3},
    {"weights": "amortized", "rounds": 3, "tau": "q95"},
    {"kernel": "localized", "rounds": 3, "drop_query_constant": True},
    {"queries_per_metric": None, "metrics": 1},
]


def assert_equal_fits(one, other, tolerance=1e-12):
    for name, tensor in one.state_dict().items():
        if not name.startswith("transform."):
            torch.testing.assert_close(other.state_dict()[name], tensor, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("change", FITS, ids=str)
def test_batches_are_only_a_way_to_read(tmp_path, change):
    whole = fit(tmp_path, data(100_000), precision="64-true", **change)
    assert_equal_fits(whole, fit(tmp_path, data(1), precision="64-true", **change))
    assert_equal_fits(whole, fit(tmp_path, data(40, resident=False), precision="64-true", **change))


@pytest.mark.parametrize("change", FITS, ids=str)
def test_a_shared_corpus_is_its_flat_copy(tmp_path, change):
    def shared(seed):
        flat = lists(seed)
        order = torch.randperm(len(flat.x), generator=torch.Generator().manual_seed(0))
        return RankingSet(flat.x[order], flat.labels, flat.offsets, index=order.argsort())

    flat = fit(tmp_path, precision="64-true", **change)
    corpus = fit(tmp_path, moved(train=shared(0), val=shared(1)), precision="64-true", **change)
    assert_equal_fits(flat, corpus, 1e-9)
    test, other = lists(2), shared(2)
    torch.testing.assert_close(
        corpus(other.x, other.offsets, index=other.index), flat(test.x, test.offsets), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("change", [change for change in FITS if change.get("anchor", "virtual") == "virtual"], ids=str)
def test_the_order_of_documents_does_not_matter(tmp_path, change):
    train = lists(0)
    keys = torch.rand(len(train.x), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.argsort(torch.repeat_interleave(train.offsets.diff()) + keys)
    mixed = RankingSet(train.x[order], train.labels[order], train.offsets)
    one, other = (fit(tmp_path, moved(train=s), precision="64-true", **change) for s in (train, mixed))
    test = lists(2)
    torch.testing.assert_close(one(test.x, test.offsets), other(test.x, test.offsets), rtol=1e-5, atol=1e-5)


def test_the_order_of_lists_does_not_matter_where_all_are_used(tmp_path):
    train, test = lists(0), lists(2)
    mixed = train.subset(torch.randperm(12, generator=torch.Generator().manual_seed(0)))
    one, other = (fit(tmp_path, moved(train=s), make=GMML) for s in (train, mixed))
    torch.testing.assert_close(one(test.x, test.offsets), other(test.x, test.offsets), rtol=1e-5, atol=1e-5)


def test_kernel_values_are_kept_or_made_again(tmp_path, monkeypatch):
    kept = fit(tmp_path, rounds=4, precision="64-true")
    monkeypatch.setattr("torchrank.rankers.lgmml.KEPT_BYTES", 0)
    assert_equal_fits(kept, fit(tmp_path, rounds=4, precision="64-true"))


def test_a_second_fit_forgets_the_first(tmp_path):
    test, ranker = lists(2), fit(tmp_path, rounds=3)
    ranker(test.x, test.offsets)
    trainer(tmp_path, 3).fit(ranker, datamodule=moved(train=lists(5)))
    fresh = fit(tmp_path, moved(train=lists(5)), rounds=3)
    assert_equal_fits(fresh, ranker)
    assert torch.equal(ranker(test.x, test.offsets), fresh(test.x, test.offsets))


# ---- interrupts and checkpoints --------------------------------------------------------------------------------------


@pytest.fixture
def interrupts():
    """Lightning ignores SIGINT for ever after one KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("change", [
    {"anchor": "best", "rounds": 3, "lr": 0.1},
    {"weights": "per_query", "fallback": "knn", "mode": "sgd", "rounds": 3},
], ids=str)  # fmt: skip
def test_an_interrupt_at_every_sum_of_a_round_loses_nothing(tmp_path, interrupts, change):
    def make(stop):
        ranker, seen = LGMML(FEATURES, **SMALL | change), []
        total = ranker.total

        def counted(fn, into=None):
            seen.append(1)
            if len(seen) == stop:
                raise KeyboardInterrupt
            return total(fn, into)

        ranker.total = counted
        return ranker, seen

    whole, calls = make(None)
    trainer(tmp_path / "whole", change["rounds"]).fit(whole, datamodule=data())
    assert len(calls) >= 4
    for stop in range(1, len(calls) + 1):
        folder = tmp_path / str(stop)
        cut, _ = make(stop)
        with pytest.raises(SystemExit):
            trainer(folder, change["rounds"]).fit(cut, datamodule=data())
        last, (resumed, _) = folder / "last.ckpt", make(None)
        trainer(folder, change["rounds"]).fit(
            resumed, datamodule=data(), ckpt_path=last if last.exists() else None, weights_only=True
        )
        assert_equal_fits(whole, resumed)


@pytest.mark.parametrize("change", [
    *({"rounds": 3, **mode} for mode in WEIGHTS.values()),
    *({"anchor": anchor} for anchor in ("best", "virtual", "search")),
    {"kernel": "localized", "transform": {"name": "pca", "variance": 0.7}},
], ids=str)  # fmt: skip
def test_a_checkpoint_is_all_that_is_needed(tmp_path, change):
    ranker, test = LGMML(FEATURES, **SMALL | change), lists(2)
    runner = trainer(tmp_path, ranker.rounds)
    runner.fit(ranker, datamodule=data())
    predicted = torch.cat(runner.predict(ranker, datamodule=data()))  # the compiled scorer is no part of the ranker
    runner.save_checkpoint(tmp_path / "saved.ckpt")
    loaded = torchrank.load(tmp_path / "saved.ckpt")
    assert type(loaded) is LGMML and torch.equal(loaded(test.x, test.offsets), ranker(test.x, test.offsets))
    assert torch.equal(loaded.sources, ranker.sources)
    fresh = LGMML(FEATURES, **SMALL | change)
    again = runner.predict(fresh, datamodule=data(), ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    assert torch.equal(torch.cat(again), predicted)


# ---- the compiled form -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    {},
    {"kernel": "rbf", "anchor": "best"},
    {"weights": "per_query", "rounds": 3},
    {"rounds": 8, "lr": 0.5},
], ids=str)  # fmt: skip
def test_compiled(tmp_path, change):
    ranker, test = fit(tmp_path, **change), lists(2)
    rows, scores = ranker.transform(test.x, test.offsets), ranker(test.x, test.offsets)
    scorer = ranker.compiled()
    torch.testing.assert_close(scorer(rows), scores, rtol=1e-5, atol=1e-5)
    scorer.save(tmp_path / "scorer.pt")
    assert torch.equal(CompiledScorer.load(tmp_path / "scorer.pt")(rows), scorer(rows))
    torch.testing.assert_close(ranker.compiled(rank=FEATURES)(rows), scores, rtol=1e-4, atol=1e-4)
    errors = [(ranker.compiled(rank=k)(rows) - scores).abs().mean() for k in (1, 3, 6)]
    assert errors[2] < errors[1] < errors[0]
    assert len(ranker.compiled(tolerance=0.2).metrics.columns) <= len(scorer.metrics.columns)


def test_metrics_of_weight_0_are_not_compiled(tmp_path):
    ranker, test = fit(tmp_path), lists(2)
    for weights, left in (([0.0, 2.0, 0.0, 1.0], 2), ([0.0] * 4, 0)):
        ranker.weights.copy_(torch.tensor(weights))
        scorer = ranker.compiled()
        assert len(scorer.weights) == left
        torch.testing.assert_close(scorer(ranker.transform(test.x, test.offsets)), ranker(test.x, test.offsets))


@pytest.mark.parametrize("change", [{"kernel": "localized"}, WEIGHTS["amortized"], WEIGHTS["knn"]], ids=str)
def test_scores_without_a_compiled_form(tmp_path, change):
    with pytest.raises(ValueError, match="only distances from anchors"):
        fit(tmp_path, **change).compiled()


def test_empty_lists(tmp_path):
    for mode in WEIGHTS.values():
        ranker = fit(tmp_path, **mode)
        for offsets in ([0], [0, 0], [0, 0, 0]):
            assert ranker(torch.zeros(0, FEATURES), torch.tensor(offsets)).shape == (0,)


# ---- query vectors ---------------------------------------------------------------------------------------------------


def judged(seed, num_rows=20, num_queries=10) -> CorpusSet:
    """Points that are queries of their own; who is relevant to whom is drawn, neither mutual nor transitive."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(num_rows, FEATURES)).astype(np.float32)
    rows, grades, counts = [], [], []
    for query in range(num_queries):
        near = np.argsort(np.abs(x[:, 0] - x[query, 0]) + draw.normal(size=num_rows) * 0.3)
        own = [row for row in near if row != query][: draw.integers(2, 6)]
        rows += own
        grades += draw.integers(1, 3, len(own)).tolist()
        counts.append(len(own))
    relevance = Judged.make(np.array(rows), np.array(grades), np.array(counts))
    return CorpusSet(torch.from_numpy(x), torch.from_numpy(x[:num_queries]), relevance, own=torch.arange(num_queries))


def with_queries(folder, **options):
    sets = {"train": judged(0), "val": judged(1), "test": judged(2)}
    return fit(folder, RankingDataModule.from_sets(**sets, batch_documents=50), **options)


QUERY_FITS = [
    {"kernel": "localized", "tau": 1.0},
    {"kernel": "localized", "beta": 0.5, "rounds": 3},
    {"kernel": "paper", "tau": 1.0},
    {"kernel": "distance", "rounds": 3},
    {"kernel": "rbf", "weights": "per_query", "rounds": 2},
]


@pytest.mark.parametrize("change", QUERY_FITS, ids=str)
def test_scores_with_query_vectors(tmp_path, change):
    ranker, test = with_queries(tmp_path, anchor="best", precision="64-true", **change), judged(2)
    assert len(set(ranker.tau.tolist())) == 1  # the weights compare metrics with each other
    batch = test[:]
    scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries)
    offsets = torch.tensor([0, len(batch.x)])
    rows, queries = (ranker.transform(part, offsets).double().numpy() for part in (batch.x, batch.queries))
    weights = ranker.weights.mean(0) if ranker.weights.dim() == 2 else ranker.weights
    options = {"kernel": change["kernel"], "beta": change.get("beta", 2.0)}
    expected = np.concatenate([
        plain_scores(ranker, rows[index], weights.tolist(), query=query, **options)
        for index, query in zip(split(batch.index.numpy(), batch.offsets), queries, strict=True)
    ])
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    flat = ranker(batch.x[batch.index], batch.offsets, queries=batch.queries)
    torch.testing.assert_close(flat, scores, rtol=1e-10, atol=1e-10)
    module = RankingDataModule.from_sets(train=judged(0), val=judged(1), test=test, batch_documents=30)
    predicted = torch.cat(trainer(tmp_path, precision="64-true").predict(ranker, datamodule=module))
    torch.testing.assert_close(predicted, scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("change", QUERY_FITS, ids=str)
def test_a_corpus_with_queries_is_its_flat_copy(tmp_path, change):
    change = change | {"tau": 1.0, "transform": "none", "anchor": "best", "precision": "64-true"}
    corpus = with_queries(tmp_path, **change)

    def flat(seed):
        batch = judged(seed)[:]
        return RankingSet(batch.x[batch.index], batch.labels, batch.offsets, queries=batch.queries)

    copy = fit(tmp_path, RankingDataModule.from_sets(train=flat(0), val=flat(1)), **change)
    for name in ("factors", "anchors", "weights"):
        tensor, other = (getattr(ranker, name) for ranker in (corpus, copy))
        torch.testing.assert_close(tensor, other, rtol=1e-9, atol=1e-9)


def test_the_nearest_anchor_alone(tmp_path):
    ranker, batch = with_queries(tmp_path, kernel="localized", beta=math.inf, tau=1.0, anchor="best"), judged(2)[:]
    scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries)
    rows, queries = (ranker.transform(part, torch.tensor([0, len(part)])) for part in (batch.x, batch.queries))
    for query, index, found in zip(
        queries, split(batch.index, batch.offsets), split(scores, batch.offsets), strict=True
    ):
        gaps = [((query - a) @ f).norm() for f, a in zip(ranker.factors, ranker.anchors, strict=True)]
        nearest = ranker.factors[int(torch.stack(gaps).argmin())]
        torch.testing.assert_close(found, -((rows[index] - query) @ nearest).square().sum(1), rtol=1e-4, atol=1e-4)


def test_queries_far_from_every_anchor(tmp_path):
    ranker, batch = with_queries(tmp_path, kernel="localized", tau=1e-4, anchor="best"), judged(2)[:]
    scores = ranker(batch.x, batch.offsets, index=batch.index, queries=batch.queries)
    assert scores.isfinite().all() and (scores < 0).any()


def test_classes_take_turns_as_sources(tmp_path):
    classes = torch.arange(20) % 4
    x = torch.randn(20, FEATURES, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(4, FEATURES)[classes]
    train = CorpusSet(x, x, SameClass(classes, classes, tuple("abcd")), own=torch.arange(20))
    ranker = fit(tmp_path, RankingDataModule.from_sets(train=train, val=train), queries_per_metric=1, metrics=8)
    turns = classes[ranker.sources.flatten()]
    assert sorted(turns[:4].tolist()) == sorted(turns[4:].tolist()) == [0, 1, 2, 3]


def test_relevance_from_a_file_need_not_be_mutual(tmp_path):
    draw = np.random.default_rng(0)
    corpus = draw.normal(size=(30, FEATURES))
    relevant = [[(q + 1) % 30, (q + 2) % 30, (q + 3) % 30] for q in range(30)]  # q -> q + 1, never back
    np.savez(
        tmp_path / "circle.npz",
        corpus=corpus,
        queries=corpus,
        query_rows=np.arange(30),
        relevant=np.concatenate(relevant),
        relevant_offsets=np.arange(31) * 3,
        split=["train"] * 20 + ["val"] * 5 + ["test"] * 5,
    )
    module = RankingDataModule("retrieval", root=tmp_path, file="circle.npz")
    module.setup()
    ranker = fit(tmp_path, module, kernel="localized", anchor="best", queries_per_metric=1, rounds=3)
    trainer(tmp_path).test(ranker, datamodule=module, verbose=False)
    assert ranker.measured["test"]["default"]["lists"] == 5


def test_local_metrics_beat_one_metric_on_gaussian_classes(tmp_path):
    module = RankingDataModule("gaussian", centres=10, batch_documents=20_000)
    module.setup()
    found = {}
    for metrics in (1, 10):
        ranker = LGMML(
            module.num_features, metrics, 1, ridge=0.05, anchor="best", kernel="localized", tau=1.0, rounds=1,
            anchor_candidates=8, transform="none",
        )  # fmt: skip
        runner = trainer(tmp_path, 1, monitor=None)
        runner.fit(ranker, datamodule=module)
        runner.test(ranker, datamodule=module, verbose=False)
        found[metrics] = ranker.measured["test"]["default"]["measures"]["map"]
    assert found[10] > found[1] + 0.1


def test_a_copy_scores_in_another_dtype(tmp_path):
    for mode in WEIGHTS.values():
        ranker, test = fit(tmp_path, rounds=2, **mode), lists(2)
        wide = deepcopy(ranker).double()(test.x.double(), test.offsets)
        assert wide.dtype == torch.float64
        torch.testing.assert_close(ranker(test.x, test.offsets).double(), wide, rtol=1e-4, atol=1e-4)
