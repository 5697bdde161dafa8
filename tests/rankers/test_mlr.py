"""MLR and RMLR as rankers: the objective by brute force, bounds, paths, neighbours, every form of the data.

Its minimum is compared with that of convex programmes in tests/golden.
"""

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.metric_fits import QUICK, D, bare, data, fit, graded, objective, points
from tests.rankers.small import trainer
from torchrank import MLR, RMLR, RankingDataModule, RankingSet
from torchrank.data.batch import make_batch
from torchrank.data.corpus import CorpusSet, SameClass
from torchrank.data.sources.points import load_points
from torchrank.rankers.metric.cutting_plane import Oracle
from torchrank.rankers.metric.mlr import metric_components

# ---- the objective ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "omega"),
    [
        ({"measure": "map"}, np.trace),
        ({"measure": "auc", "regulariser": "fro"}, lambda w: (w**2).sum() / 2),
        ({"measure": "mrr", "regulariser": "l21", "lam": 0.5}, lambda w: np.trace(w) + np.hypot.reduce(w, 1).sum() / 2),
        ({"measure": "ndcg", "k": 3, "discount": "log2p1", "C": 20.0}, np.trace),
        ({"measure": "precision", "regulariser": "diagonal", "C": 20.0, "threshold": 2}, np.trace),
        ({"regulariser": "fro", "anchor": 0.3}, lambda w: ((w - 0.3 * np.eye(D)) ** 2).sum() / 2),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)  # fmt: skip
def test_the_upper_bound_is_the_objective_of_the_metric(tmp_path, options, omega):
    ranker = fit(tmp_path, data(form="corpus"), **options)
    metric = ranker.get_mahalanobis_matrix().numpy()
    asked = {name: options[name] for name in ("measure", "k", "threshold", "discount") if name in options}
    if asked.get("measure") == "precision":
        asked["k"] = 3
    hinge = objective(graded(), metric, **asked)
    C = options.get("C", 3.0)
    assert ranker.certificate["upper"] == pytest.approx(omega(metric) + C * hinge, rel=1e-9)
    assert ranker.converged and 0 <= ranker.certificate["gap"] <= C * 1e-2 == ranker.certificate["eps*C"]
    assert np.linalg.eigvalsh(metric).min() > -1e-12 and metric.any()


def test_a_sweep_is_the_mean_over_the_thresholds_that_part_a_list(tmp_path):
    ranker, train = fit(tmp_path, data(form="corpus"), threshold="sweep"), graded()
    metric, found = ranker.metric.numpy(), []
    for q in range(len(train)):
        one = train.subset(torch.tensor([q]))
        values = [
            objective(one, metric, threshold=t) for t in (1, 2, 3) if 0 < (one.labels >= t).sum() < len(one.labels)
        ]
        found += [np.mean(values)] if values else []
    assert len(found) == 7 and ranker.cuts.lists == 7
    assert ranker.certificate["upper"] == pytest.approx(np.trace(metric) + 3 * np.mean(found), rel=1e-9)


def test_lists_of_one_class_do_not_count(tmp_path):
    train = graded()
    kept = train.subset(torch.tensor([0, 1, 3, 4, 5, 6, 7]))
    fewer = RankingDataModule.from_sets(train=kept, val=graded(seed=5), measures=["map"])
    one, other = fit(tmp_path / "all", data(form="corpus")), fit(tmp_path / "fewer", fewer)
    torch.testing.assert_close(one.metric, other.metric, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.1, 0.7])
def test_lists_are_counted_where_the_oracle_finds_both_classes(dtype, threshold):
    oracle = Oracle.make("auc", None, threshold, "letor")
    batch = make_batch(torch.eye(2), torch.tensor([threshold, 0.0], dtype=dtype), torch.tensor([0, 2]))
    assert oracle(torch.zeros(2), batch)[1].tolist() == [1.0]
    assert oracle.usable(batch).tolist() == [True]


def test_the_certificate_holds_and_tighter_fits_are_no_worse(tmp_path):
    loose, tight = (fit(tmp_path / str(eps), eps=eps) for eps in (3e-2, 1e-3))
    published = fit(tmp_path / "published", eps=1e-3, stabilise=1.0)
    assert loose.certificate["lower"] <= tight.certificate["upper"] <= loose.certificate["upper"]
    assert published.certificate["upper"] == pytest.approx(tight.certificate["upper"], abs=2 * 3e-3)
    assert published.trainer.current_epoch > tight.trainer.current_epoch


def test_more_C_fits_more(tmp_path):
    """The trace grows, the hinge falls."""
    found = []
    for C in (1.0, 5.0, 25.0):
        ranker = fit(tmp_path / str(C), C=C)
        trace = float(ranker.metric.trace())
        found.append((trace, (trace - ranker.certificate["upper"]) / C))
    assert found == sorted(found) and found[0][0] < found[2][0] and found[0][1] < found[2][1]


# ---- remedies and warnings ------------------------------------------------------------------------------------------


def test_zero_metrics_warn_with_advice(tmp_path):
    with pytest.warns(UserWarning, match=r"W = 0 is the best metric found.*Raise C, now 0\.01"):
        ranker = fit(tmp_path / "small", C=0.01)
    assert ranker.converged and not ranker.metric.any() and len(ranker.components) == 0
    with pytest.warns(UserWarning, match="measure=precision that can be so at every C.*neighbours=10"):
        fit(tmp_path / "precision", C=1.0, measure="precision")
    train = graded()
    train.labels.fill_(1.0)
    with pytest.warns(UserWarning, match="No training list has both"):
        ranker = fit(tmp_path / "one", RankingDataModule.from_sets(train=train, val=graded(), measures=["map"]))
    assert ranker.converged and ranker.certificate["upper"] == 0


def test_no_warning_where_there_is_a_metric(tmp_path, recwarn):
    fit(tmp_path)
    assert not [found for found in recwarn if "W = 0" in str(found.message) or "certificate" in str(found.message)]


def test_neighbours_are_the_nearest_of_each_class(tmp_path):
    """As the fit on lists that were cut by hand."""
    train = points()["train"]
    x, classes, labels, index, lengths = train.x.numpy(), train.relevance.classes.numpy(), [], [], []
    for q in range(len(x)):
        order = [i for i in np.argsort(((x - x[q]) ** 2).sum(1), kind="stable") if i != q]
        same = [i for i in order if classes[i] == classes[q]][:2]
        rest = [i for i in order if classes[i] != classes[q]][:6]
        index += same + rest
        labels += [1.0] * len(same) + [0.0] * len(rest)
        lengths.append(len(same) + len(rest))
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))
    cut = RankingSet(train.x, torch.tensor(labels), offsets, index=torch.tensor(index), queries=train.queries)
    by_hand = fit(tmp_path / "hand", RankingDataModule.from_sets(train=cut, val=points()["val"], measures=["map"]))
    ranker = fit(tmp_path / "option", neighbours=2)
    assert sum(len(batch.labels) for batch in ranker_batches(ranker)) == len(labels)
    torch.testing.assert_close(ranker.metric, by_hand.metric, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(ranker.metric, fit(tmp_path / "all").metric, atol=1e-3)


def ranker_batches(ranker):
    ranker.trainer.datamodule.attach(ranker.transform, ranker.device)
    return list(ranker.batches())


def test_an_anchor_pulls(tmp_path):
    """The weaker the lists, the nearer: also where the minimum was 0 without it."""
    target = torch.diag(torch.tensor([1.0, 2.0, 0.0, 1.0, 0.5], dtype=torch.float64))
    given = {"regulariser": "fro", "anchor": target.tolist(), "eps": 1e-3}
    away = [float((fit(tmp_path / str(C), C=C, **given).metric - target).norm()) for C in (1e-4, 0.1, 1.0)]
    assert away[0] < 1e-2 < away[1] < away[2] < target.norm()
    number = fit(tmp_path / "number", regulariser="fro", anchor=0.5)
    same = fit(tmp_path / "matrix", regulariser="fro", anchor=(0.5 * torch.eye(D)).tolist())
    assert torch.equal(number.metric, same.metric)


def test_group_sparse_rows_are_zero_for_noise(tmp_path):
    """Two classes that one feature tells apart: all others get rows and columns of exactly 0."""
    x, classes = torch.randn(16, D, generator=torch.Generator().manual_seed(0)).double(), torch.arange(16) % 2
    x[:, 1] = x[:, 1] / 4 + 2 * classes
    train = CorpusSet(x, x, SameClass(classes, classes, ("a", "b")), own=torch.arange(16))
    module = RankingDataModule.from_sets(train=train, val=train, measures=["map"])
    ranker = fit(tmp_path, module, make=RMLR, lam=2.0)
    kept = ranker.metric.any(1)
    assert kept[1] and not kept.all() and torch.equal(kept, ranker.metric.any(0))
    assert not ranker.components[:, ~kept].any() and ranker.components[0, 1].abs() > 0.1
    assert fit(tmp_path / "trace", module).metric.any(1).all()
    same = fit(tmp_path / "same", module, lam=2.0, regulariser="l21")
    assert torch.equal(same.metric, ranker.metric)
    assert ranker.findings == {"features dropped": f"{int((~kept).sum())} of {D}"}


# ---- paths ------------------------------------------------------------------------------------------------------


def test_a_path_ends_where_single_fits_do_and_validation_chooses(tmp_path):
    seen = []

    class Seen(torchrank.MLR):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            value = self.measured["val"]["default"]["measures"]["map"]
            seen.append((value, dict(self.certificate), self.metric.clone()))

    grid = [0.5, 2.0, 20.0]
    ranker = Seen(D, C=grid, eps=1e-3, transform=None)
    assert not ranker.certified and ranker.rounds == 3 and MLR(D).certified
    trainer(tmp_path, 3, monitor="val/map").fit(ranker, datamodule=data())
    assert len(seen) == 3 and ranker.converged
    for C, (_, certificate, metric) in zip(grid, seen, strict=True):
        single = fit(tmp_path / str(C), C=C, eps=1e-3)
        assert certificate["gap"] <= C * 1e-3 and certificate["eps*C"] == pytest.approx(C * 1e-3)
        assert certificate["upper"] == pytest.approx(single.certificate["upper"], abs=2e-3 * C)
        assert metric.trace() == pytest.approx(float(single.metric.trace()), rel=0.1)
    best = max(range(3), key=lambda i: seen[i][0])
    state = torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(state["metric"], seen[best][2])


def test_a_step_of_a_path_that_is_not_proved_says_so(tmp_path):
    with pytest.warns(UserWarning, match="the fit for C=100 ends at a gap of .* after 2 cuts: raise rounds"):
        ranker = fit(tmp_path, C=[1.0, 100.0], rounds=2, eps=1e-4)
    assert not ranker.converged


def test_a_fit_that_ends_early_says_so(tmp_path):
    with pytest.warns(UserWarning, match="stopped before its certificate .gap"):
        ranker = fit(tmp_path, rounds=3, eps=1e-6)
    assert not ranker.converged and ranker.certificate["gap"] > 3e-6


# ---- scores -----------------------------------------------------------------------------------------------------


def test_scores_are_distances_of_embedded_rows(tmp_path):
    for transform, regulariser in (
        ("standard", "trace"),
        ({"name": "pca", "variance": 0.9}, "trace"),
        (None, "diagonal"),
    ):
        folder = tmp_path / f"{regulariser}{transform}"[:20].replace("'", "")
        ranker, test = fit(folder, transform=transform, regulariser=regulariser), points()["test"][:]
        found = ranker(test.x, test.offsets, index=test.index, queries=test.queries)
        images, queries = ranker.embed(test.x), ranker.embed(test.queries)
        gaps = images[test.index] - queries[torch.repeat_interleave(torch.arange(9), test.offsets.diff())]
        torch.testing.assert_close(found, -gaps.square().sum(1))
        flat = ranker(test.x[test.index], test.offsets, queries=test.queries)
        torch.testing.assert_close(found, flat, rtol=1e-10, atol=1e-10)
        matrix = ranker.get_mahalanobis_matrix()
        torch.testing.assert_close(ranker.components.T @ ranker.components, matrix, rtol=1e-10, atol=1e-10)
        assert matrix.shape[0] == ranker.transform.num_outputs
        ranker.trainer.save_checkpoint(folder / "last.ckpt")
        again = torchrank.load(folder / "last.ckpt")
        loaded = again(test.x, test.offsets, index=test.index, queries=test.queries)
        torch.testing.assert_close(loaded, found, rtol=1e-12, atol=1e-12)
        assert torch.equal(again.get_mahalanobis_matrix(), matrix)


def test_components_follow_the_metric():
    ranker = MLR(3, transform=None)
    assert ranker.components.shape == (0, 3)
    with torch.no_grad():
        ranker.metric.copy_(torch.diag(torch.tensor([4.0, 0.0, 9.0])))
    torch.testing.assert_close(ranker.components.abs(), torch.tensor([[0, 0, 3.0], [2.0, 0, 0]]).double())
    root = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = metric_components(root.T @ root)
    assert found.shape == (2, 3)
    torch.testing.assert_close(found.T @ found, root.T @ root)


def test_it_learns(tmp_path):
    """Wine: fewer errors of order than by Euclidean distances, in float32."""
    sets = load_points("wine")
    module = RankingDataModule.from_sets(**sets, measures=["map"])
    ranker = MLR(13, C=10.0, eps=1e-2)
    runner = trainer(tmp_path, 60, monitor="val/map")
    runner.fit(ranker, datamodule=module)
    runner.test(ranker, datamodule=module, verbose=False)
    learned = ranker.measured["test"]["default"]["measures"]["map"]
    with torch.no_grad():
        ranker.metric.copy_(torch.eye(13))
    runner.test(ranker, datamodule=module, verbose=False)
    assert learned > ranker.measured["test"]["default"]["measures"]["map"] + 0.03 and learned > 0.9


# ---- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"measure": "err"}, "unknown measure='err': choose one of auc, map"),
        ({"discount": "log"}, "unknown discount='log'"),
        ({"threshold": "all"}, "threshold='all' is the lowest grade"),
        ({"k": 0}, "k must be a positive integer or None .*, got 0"),
        ({"measure": "precision", "k": 2.0}, "k must be a positive integer or None .*, got 2.0"),
        ({"threshold": float("nan")}, "threshold=nan: no grade is that high"),
        ({"threshold": None}, "threshold=None is the lowest grade"),
        ({"rounds": 0}, "rounds=0 has to be an integer, 1 at least"),
        ({"rounds": 2.5}, "rounds=2.5 has to be an integer"),
        ({"rounds": 2.5, "C": [1.0]}, "rounds=2.5 has to be an integer"),
        ({"regulariser": "nuclear"}, "unknown regulariser='nuclear'"),
        ({"regulariser": "linear"}, "unknown regulariser='linear'"),
        ({"lam": -1.0}, "lam=-1.0"),
        ({"C": 0.0}, "C=0.0 has to be a positive number"),
        ({"C": "abc"}, "C='abc' has to be a positive number"),
        ({"C": []}, r"C=\[\] has to be"),
        ({"C": [1.0, -1.0]}, r"C=\[1.0, -1.0\] has to be"),
        ({"C": float("nan")}, "C=nan"),
        ({"C": [1.0, float("inf")]}, "or a list of them"),
        ({"lam": float("nan"), "regulariser": "l21"}, "lam=nan"),
        ({"eps": float("nan")}, "eps=nan"),
        ({"eps": 0.0}, "eps=0.0 has to be a positive number"),
        ({"stabilise": 0.0}, "stabilise=0.0 has to be a number above 0"),
        ({"neighbours": 0}, "neighbours=0 has to be an integer, 1 at least"),
        ({"neighbours": 2.5}, "neighbours=2.5 has to be an integer"),
        ({"neighbours": 3, "threshold": "sweep"}, "threshold=sweep is refused"),
        ({"anchor": "identity", "regulariser": "fro"}, "anchor='identity' has to be a number"),
        ({"anchor": [[1.0], [2.0, 3.0]], "regulariser": "fro"}, "or a matrix as nested lists"),
        ({"anchor": 1.0}, "an anchor has regulariser=fro"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        MLR(D, **given)


def test_advice_names_what_ended_the_fit(tmp_path):
    ranker = MLR(D, **QUICK)
    with pytest.warns(UserWarning, match=r"stopped before its certificate .*: raise trainer.max_epochs, now 2."):
        bare(tmp_path, 2).fit(ranker, datamodule=data())
    with pytest.warns(UserWarning, match=r"stopped before its certificate .*: raise rounds, now 2."):
        fit(tmp_path, rounds=2)
    with pytest.warns(UserWarning, match=r"Raise C, now 3 or lower lam, now 1e\+06."):
        ranker = fit(tmp_path, make=RMLR, lam=1e6)
    assert ranker.findings["metric"] == "W = 0" and "metric" not in fit(tmp_path).findings


def test_data_that_do_not_fit_are_refused(tmp_path):
    flat = graded("flat")
    plain = RankingSet(flat.x, flat.labels, flat.offsets)
    module = RankingDataModule.from_sets(train=plain, val=plain, measures=["map"])
    with pytest.raises(ValueError, match="MLR learns distances from query vectors, and these lists have none"):
        fit(tmp_path, module)
    with pytest.raises(ValueError, match="these lists have none"):
        MLR(D, transform=None)(flat.x, flat.offsets)
    real = graded("flat")
    real.labels += 0.5
    module = RankingDataModule.from_sets(train=real, val=graded("flat"), measures=["map"])
    with pytest.raises(ValueError, match="these labels are real numbers"):
        fit(tmp_path, module, threshold="sweep")
    assert fit(tmp_path, module, threshold=2.5).converged
    for anchor in (torch.eye(3).tolist(), torch.ones(D, D).triu().tolist()):
        with pytest.raises(ValueError, match="give a number, or a symmetric matrix"):
            fit(tmp_path, anchor=anchor, regulariser="fro")


@pytest.mark.parametrize("split", ["train", "val"])
def test_query_vectors_that_are_not_finite_are_refused(tmp_path, split):
    module = data(form="corpus")
    module.sets[split].queries = module.sets[split].queries.clone()
    module.sets[split].queries[2, 1] = torch.inf
    name = module.sets[split].name
    with pytest.raises(ValueError, match=rf"feature 1 \(counted from 0\) of {name} query 2 is inf"):
        fit(tmp_path, module)
