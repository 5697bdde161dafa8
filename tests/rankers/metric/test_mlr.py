"""MLR and RMLR as rankers: the objective by brute force, bounds, paths, neighbours, scores, refusals.

Their minimum is compared with that of convex programmes in test_mlr_minimum.py.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.rankers.metric.fits import QUICK, D, data, fit, graded, objective, of_classes, points
from tests.rankers.small import trainer
from torchrank import MLR, RMLR, ConvergenceWarning, DataError, RankingSet
from torchrank.data import TrainingLists
from torchrank.data.batch import make_batch
from torchrank.data.sources.points import load_points
from torchrank.functional import average_precision, ndcg
from torchrank.rankers.metric.cutting_plane import Oracle
from torchrank.rankers.metric.mlr import metric_components

# ---- the objective ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "omega"),
    [
        ({"measure": "map"}, np.trace),
        ({"measure": "auc", "regulariser": "fro"}, lambda w: (w**2).sum() / 2),
        ({"measure": "mrr", "regulariser": "l21", "lam": 0.5}, lambda w: np.trace(w) + np.hypot.reduce(w, 1).sum() / 2),
        ({"measure": "ndcg", "k": 4, "C": 20.0}, np.trace),
        ({"measure": "precision", "regulariser": "diagonal", "C": 20.0, "threshold": 2}, np.trace),
        ({"regulariser": "fro", "anchor": 0.3}, lambda w: ((w - 0.3 * np.eye(D)) ** 2).sum() / 2),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)
def test_the_upper_bound_is_the_objective_of_the_metric(options, omega):
    ranker = fit(graded(), **options)
    metric = ranker.get_mahalanobis_matrix().numpy()
    asked = {name: options[name] for name in ("measure", "k", "threshold") if name in options}
    if asked.get("measure") == "precision":
        asked["k"] = 3
    hinge = objective(graded(), metric, **asked)
    C, found = options.get("C", 3.0), ranker.certificate
    assert found.name == "gap" and found.found == found.bounds["upper"] - found.bounds["lower"]
    assert found.bounds["upper"] == pytest.approx(omega(metric) + C * hinge, rel=1e-9)
    assert ranker.converged and found.proved and 0 <= found.found <= C * 1e-2 == found.limit
    assert np.linalg.eigvalsh(metric).min() > -1e-12 and metric.any()


def test_a_sweep_is_the_mean_over_the_thresholds_that_split_a_list():
    train = graded()
    ranker, found = fit(train, threshold="sweep"), []
    metric = ranker.metric.numpy()
    for q in range(len(train)):
        one = train.subset(torch.tensor([q]))
        values = [
            objective(one, metric, threshold=t) for t in (1, 2, 3) if 0 < (one.labels >= t).sum() < len(one.labels)
        ]
        found += [np.mean(values)] if values else []
    assert len(found) == 7 and ranker.cuts.lists == 7
    assert ranker.certificate.bounds["upper"] == pytest.approx(np.trace(metric) + 3 * np.mean(found), rel=1e-9)


def test_lists_of_one_class_do_not_count():
    kept = graded().subset(torch.tensor([0, 1, 3, 4, 5, 6, 7]))
    torch.testing.assert_close(fit(graded()).metric, fit(kept).metric, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.1, 0.7])
def test_lists_are_counted_where_the_oracle_finds_both_classes(dtype, threshold):
    oracle = Oracle.make("auc", None, threshold)
    batch = make_batch(torch.eye(2), torch.tensor([threshold, 0.0], dtype=dtype), torch.tensor([0, 2]))
    assert oracle(torch.zeros(2), batch)[1].tolist() == [1.0]
    assert oracle.usable(batch).tolist() == [True]


def test_the_certificate_holds_and_tighter_fits_are_no_worse():
    loose, tight = (fit(eps=eps) for eps in (3e-2, 1e-3))
    published = fit(eps=1e-3, stabilise=1.0)
    bounds = [ranker.certificate.bounds for ranker in (loose, tight, published)]
    assert bounds[0]["lower"] <= bounds[1]["upper"] <= bounds[0]["upper"]
    assert bounds[2]["upper"] == pytest.approx(bounds[1]["upper"], abs=2 * 3e-3)
    assert len(published.cuts.loss) > len(tight.cuts.loss) > len(loose.cuts.loss)  # a cut for each round


def test_more_C_fits_more():
    """The trace grows, the hinge falls."""
    found = []
    for C in (1.0, 5.0, 25.0):
        ranker = fit(C=C)
        trace = float(ranker.metric.trace())
        found.append((trace, (trace - ranker.certificate.bounds["upper"]) / C))
    assert found == sorted(found) and found[0][0] < found[2][0] and found[0][1] < found[2][1]


def test_a_ranker_can_be_fitted_again_to_other_lists():
    ranker = fit()
    assert torch.equal(ranker.fit(graded()).metric, fit(graded(), batch_documents=20_000).metric)


# ---- remedies and warnings ------------------------------------------------------------------------------------------


def test_zero_metrics_warn_with_advice():
    with pytest.warns(ConvergenceWarning, match=r"W = 0 is the best metric found.*Raise C \(now 0\.01\)\.$"):
        ranker = fit(C=0.01)
    assert ranker.converged and not ranker.metric.any() and len(ranker.components) == 0
    with pytest.warns(ConvergenceWarning, match=r"precision this can happen at every C \(now 1\).*neighbours=10"):
        fit(C=1.0, measure="precision")
    train = graded()
    train.labels.fill_(1.0)
    with pytest.warns(ConvergenceWarning, match="No training list has both relevant and other entries"):
        ranker = fit(train)
    assert ranker.converged and ranker.certificate.bounds["upper"] == 0
    with pytest.warns(ConvergenceWarning, match=r"Raise C \(now 3\) or lower lam \(now 1e\+06\)\."):
        ranker = fit(make=RMLR, lam=1e6)
    assert ranker.findings["metric"] == "W = 0" and "metric" not in fit().findings


def test_a_path_warns_of_a_zero_metric_only_where_it_ends_with_one(recwarn):
    """Its last fit counts: the first ones, with a small C, are expected to find nothing."""
    ranker = fit(C=[0.01, 3.0])
    assert ranker.metric.any() and not [found for found in recwarn if "W = 0" in str(found.message)]
    with pytest.warns(ConvergenceWarning, match=r"W = 0 is the best metric found.*Raise C \(now 0\.02\)"):
        ranker = fit(C=[0.01, 0.02])
    assert ranker.findings == {"C": 0.02, "metric": "W = 0"}


def test_no_warning_where_there_is_a_metric(recwarn):
    fit()
    assert not [found for found in recwarn if issubclass(found.category, ConvergenceWarning)]


def test_neighbours_are_the_nearest_of_each_class():
    """As the fit on lists that were cut by hand."""
    train = points()["train"]
    x, classes, labels, index, lengths = train.x.numpy(), train.classes.numpy(), [], [], []
    for q in range(len(x)):
        order = [i for i in np.argsort(((x - x[q]) ** 2).sum(1), kind="stable") if i != q]
        same = [i for i in order if classes[i] == classes[q]][:2]
        rest = [i for i in order if classes[i] != classes[q]][:6]
        index += same + rest
        labels += [1.0] * len(same) + [0.0] * len(rest)
        lengths.append(len(same) + len(rest))
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]))
    cut = RankingSet(train.x, torch.tensor(labels), offsets, index=torch.tensor(index), queries=train.queries)
    ranker = fit(neighbours=2)
    learned_from = ranker._learned_from(TrainingLists(train.to("cpu"), budget=60))
    assert sum(len(batch.labels) for batch in learned_from) == len(labels)
    torch.testing.assert_close(ranker.metric, fit(cut).metric, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(ranker.metric, fit().metric, atol=1e-3)


@pytest.mark.parametrize("seed", [3, 9])
def test_neighbours_of_graded_lists_are_those_above_and_below_the_threshold(seed):
    """Lists that have fewer entries keep all of them."""
    train, threshold = graded(seed=seed), 2
    learned_from = MLR(D, neighbours=1, threshold=threshold)._learned_from(TrainingLists(train.to("cpu"), budget=20))
    kept = [row for batch in learned_from for row in batch.index.tolist()]
    bounds = torch.cat([batch.offsets.diff() for batch in learned_from]).cumsum(0).tolist()
    assert len(bounds) == len(train)
    for q, (first, last) in enumerate(pairwise([0, *bounds])):
        batch = train[q]
        far = (batch.x[batch.index] - batch.queries[0]).square().sum(1)
        order, relevant = far.argsort(stable=True), batch.labels >= threshold
        near = [*order[relevant[order]][:1], *order[~relevant[order]][:3]]
        assert sorted(kept[first:last]) == sorted(int(batch.index[entry]) for entry in near)


def test_an_anchor_pulls():
    """The weaker the lists, the nearer: also where the minimum was 0 without it."""
    target = torch.diag(torch.tensor([1.0, 2.0, 0.0, 1.0, 0.5], dtype=torch.float64))
    given = {"regulariser": "fro", "anchor": target.tolist(), "eps": 1e-3}
    away = [float((fit(C=C, **given).metric - target).norm()) for C in (1e-4, 0.1, 1.0)]
    assert away[0] < 1e-2 < away[1] < away[2] < target.norm()
    number = fit(regulariser="fro", anchor=0.5)
    same = fit(regulariser="fro", anchor=(0.5 * torch.eye(D)).tolist())
    assert torch.equal(number.metric, same.metric)


def test_group_sparse_rows_are_zero_for_noise():
    """Two classes that one feature tells apart: all others get rows and columns of exactly 0."""
    x, classes = torch.randn(16, D, generator=torch.Generator().manual_seed(0)).double(), torch.arange(16) % 2
    x[:, 1] = x[:, 1] / 4 + 2 * classes
    train = of_classes(x, classes, ("a", "b"))
    ranker = fit(train, make=RMLR, lam=2.0)
    kept = ranker.metric.any(1)
    assert kept[1] and not kept.all() and torch.equal(kept, ranker.metric.any(0))
    assert not ranker.components[:, ~kept].any() and ranker.components[0, 1].abs() > 0.1
    assert fit(train).metric.any(1).all()
    same = fit(train, lam=2.0, regulariser="l21")
    assert torch.equal(same.metric, ranker.metric)
    assert ranker.findings == {"features dropped": f"{int((~kept).sum())} of {D}"}


# ---- paths ------------------------------------------------------------------------------------------------------


class Seen(MLR):
    """Remembers what each round ended with."""

    def take_round(self, number):
        found = super().take_round(number)
        self.seen = [*getattr(self, "seen", []), (found, self.metric.clone())]
        return found


def test_a_path_ends_where_single_fits_do_and_validation_chooses():
    grid, sets = [0.5, 2.0, 20.0], points()
    ranker = Seen(D, C=grid, eps=1e-3, transform=None)
    assert not ranker.certified and ranker.rounds == 3 and MLR(D).certified
    ranker.fit(sets["train"], sets["val"])
    assert [found.done for found, _ in ranker.seen] == [False, False, True]
    values, val = [], sets["val"][:]
    for C, (found, metric) in zip(grid, ranker.seen, strict=True):
        single, bounds = fit(C=C, eps=1e-3), found.certificate.bounds
        assert found.findings["C"] == C and found.certificate.proved
        assert found.certificate.limit == pytest.approx(C * 1e-3)
        assert bounds["upper"] == pytest.approx(single.certificate.bounds["upper"], abs=2e-3 * C)
        assert metric.trace() == pytest.approx(float(single.metric.trace()), rel=0.1)
        gaps = val.queries.repeat_interleave(val.offsets.diff(), dim=0) - val.x[val.index]
        scores = -(gaps @ metric * gaps).sum(1)
        values.append(float(ndcg(scores, val.labels, val.offsets, k=10).mean()))
    best = int(np.argmax(values))
    assert torch.equal(ranker.metric, ranker.seen[best][1]) and ranker.findings["C"] == grid[best]
    assert torch.equal(Seen(D, C=grid, eps=1e-3, transform=None).fit(sets["train"]).metric, ranker.seen[2][1])


def test_cuts_of_a_path_are_taken_along():
    """So that a later fit needs fewer rounds than one from the start."""
    path = fit(C=[1.0, 3.0, 10.0], eps=1e-3)
    assert len(path.cuts.loss) < sum(len(fit(C=C, eps=1e-3).cuts.loss) for C in (1.0, 3.0, 10.0))


def test_a_step_of_a_path_that_is_not_proved_says_so():
    with pytest.warns(ConvergenceWarning, match="the fit for C=100 stopped at a gap of .* after 2 cuts: raise rounds"):
        ranker = fit(C=[1.0, 100.0], rounds=2, eps=1e-4)
    assert not ranker.converged


def test_a_fit_that_ends_early_says_so_and_what_ended_it(tmp_path):
    with pytest.warns(ConvergenceWarning, match=r"stopped before its certificate: gap .*\. Raise rounds \(now 3\)"):
        ranker = fit(rounds=3, eps=1e-6)
    assert not ranker.converged and ranker.certificate.found > 3e-6 and not ranker.certificate.proved
    with pytest.warns(ConvergenceWarning, match=r"Raise epochs \(now 2\)"):
        MLR(D, **QUICK).fit(points()["train"], epochs=2)
    with pytest.warns(ConvergenceWarning, match=r"Raise trainer.max_epochs \(now 2\)"):
        trainer(tmp_path, 2).fit(MLR(D, **QUICK), datamodule=data())


# ---- scores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (MLR, {"transform": "standard"}),
        (MLR, {"transform": {"name": "pca", "variance": 0.9}}),
        (MLR, {"regulariser": "diagonal"}),
        (RMLR, {"lam": 0.1}),
    ],
    ids=str,
)
def test_scores_are_distances_of_embedded_rows(make, options):
    ranker, test = fit(make=make, **options), points()["test"][:]
    found = ranker(test.x, test.offsets, index=test.index, queries=test.queries)
    lists = torch.repeat_interleave(torch.arange(9), test.offsets.diff())
    images, queries = ranker.embed(test.x), ranker.embed(test.queries)
    torch.testing.assert_close(found, -(images[test.index] - queries[lists]).square().sum(1))
    flat = ranker(test.x[test.index], test.offsets, queries=test.queries)
    torch.testing.assert_close(found, flat, rtol=1e-10, atol=1e-10)
    matrix = ranker.get_mahalanobis_matrix()
    whole = torch.tensor([0, len(test.x)])
    x, vectors = ranker.transform(test.x, whole), ranker.transform(test.queries, torch.tensor([0, 9]))
    gaps = (x[test.index] - vectors[lists]).numpy()
    np.testing.assert_allclose(found, [-(gap @ matrix.numpy() @ gap) for gap in gaps], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ranker.components.T @ ranker.components, matrix, rtol=1e-10, atol=1e-10)
    assert len(matrix) == ranker.transform.num_outputs
    again = make(D, **QUICK | options)
    again.load_state_dict(ranker.state_dict())
    assert torch.equal(again.get_mahalanobis_matrix(), matrix)
    assert torch.equal(again(test.x, test.offsets, index=test.index, queries=test.queries), found)


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


def test_scores_have_gradients_also_after_a_test_in_inference_mode():
    """The components are kept from one call to the next."""
    ranker, batch = fit(), points()["test"][:]
    given = {"index": batch.index, "queries": batch.queries}
    with torch.inference_mode():
        ranker(batch.x, batch.offsets, **given)
    x = batch.x.clone().requires_grad_()
    ranker(x, batch.offsets, **given).sum().backward()
    lists = torch.repeat_interleave(torch.arange(9), batch.offsets.diff())
    slopes = -2 * (batch.x[batch.index] - batch.queries[lists]) @ ranker.get_mahalanobis_matrix()
    torch.testing.assert_close(x.grad, torch.zeros_like(x).index_add(0, batch.index, slopes))


def test_it_learns():
    """Wine: fewer errors of order than by Euclidean distances, in float32."""
    sets = load_points("wine")
    ranker, test = MLR(13, C=10.0, eps=1e-2).fit(sets["train"]), sets["test"][:]

    def mean_precision():
        scores = ranker(test.x, test.offsets, index=test.index, queries=test.queries)
        return average_precision(scores, test.labels, test.offsets).mean()

    learned = mean_precision()
    with torch.no_grad():
        ranker.metric.copy_(torch.eye(13))
    assert learned > mean_precision() + 0.03 and learned > 0.9


# ---- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"measure": "err"}, "unknown measure='err': choose one of auc, map"),
        ({"threshold": "all"}, r"threshold must be a number \(the lowest relevant grade\) or sweep, got 'all'"),
        ({"k": 0}, "k must be a positive integer or None .*, got 0"),
        ({"measure": "precision", "k": 2.0}, "k must be a positive integer or None .*, got 2.0"),
        ({"threshold": float("nan")}, "threshold must be a number, got nan"),
        ({"threshold": None}, "threshold must be a number .* got None"),
        ({"rounds": 0}, "rounds must be >= 1, got 0"),
        ({"rounds": 2.5}, "rounds must be an integer >= 1, got 2.5"),
        ({"rounds": 2.5, "C": [1.0]}, "rounds must be an integer >= 1, got 2.5"),
        ({"regulariser": "nuclear"}, "unknown regulariser='nuclear': choose one of trace, fro, l21, diagonal"),
        ({"regulariser": "linear"}, "unknown regulariser='linear'"),
        ({"lam": -1.0}, "lam must be >= 0, got -1.0"),
        ({"C": 0.0}, "C must be a number > 0, or a list of them, got 0.0"),
        ({"C": "abc"}, "C must be a number > 0, or a list of them, got 'abc'"),
        ({"C": []}, r"C must be .*, got \[\]"),
        ({"C": [1.0, -1.0]}, r"C must be .*, got \[1.0, -1.0\]"),
        ({"C": float("nan")}, "C must be .*, got nan"),
        ({"C": [1.0, float("inf")]}, "C must be .*, or a list of them"),
        ({"lam": float("nan"), "regulariser": "l21"}, "lam must be .*, got nan"),
        ({"eps": float("nan")}, "eps must be a number > 0, got nan"),
        ({"eps": 0.0}, "eps must be > 0, got 0.0"),
        ({"stabilise": 0.0}, "stabilise must be > 0 and <= 1, got 0.0"),
        ({"stabilise": 1.5}, "stabilise must be > 0 and <= 1, got 1.5"),
        ({"neighbours": 0}, "neighbours must be >= 1, got 0"),
        ({"neighbours": 2.5}, "neighbours must be an integer >= 1, got 2.5"),
        ({"neighbours": 3, "threshold": "sweep"}, "neighbours cannot be combined with threshold=sweep"),
        ({"anchor": "identity", "regulariser": "fro"}, "anchor must be a finite number .* got 'identity'"),
        ({"anchor": float("inf"), "regulariser": "fro"}, "anchor must be a finite number .* got inf"),
        ({"anchor": [[1.0], [2.0, 3.0]], "regulariser": "fro"}, "or a matrix as nested lists"),
        ({"anchor": 1.0}, r"anchor needs regulariser=fro, .* got regulariser=trace"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        MLR(D, **given)


def test_data_that_do_not_fit_are_refused():
    flat = graded("flat")
    plain = RankingSet(flat.x, flat.labels, flat.offsets)
    with pytest.raises(DataError, match="MLR learns distances from query vectors, but these lists have none"):
        fit(plain)
    with pytest.raises(DataError, match="these lists have none"):
        MLR(D, transform=None)(flat.x, flat.offsets)
    real = graded("flat")
    real.labels.add_(0.5)
    with pytest.raises(DataError, match="threshold=sweep needs integer grades, but the labels are real-valued"):
        fit(real, threshold="sweep")
    assert fit(real, threshold=2.5).converged
    for anchor, found in ((torch.eye(3), r"\(3, 3\)"), (torch.ones(D, D).triu(), "one that is not symmetric")):
        with pytest.raises(ValueError, match=rf"anchor must be a number or a symmetric matrix \(5, 5\), got {found}"):
            fit(anchor=anchor.tolist(), regulariser="fro")


def test_bounds_that_cross_are_refused():
    """Of features that are too large for float64: a fit must not claim to be proved."""
    ranker = MLR(D, **QUICK)
    crossed = ranker.cuts.plane._replace(upper=torch.tensor(1.0), lower=torch.tensor(2.0))
    with pytest.raises(DataError, match=r"lower bound 2 is above the objective 1 .* Use transform=standard"):
        ranker.cuts._found(crossed, 3.0)


@pytest.mark.parametrize("split", ["train", "val"])
def test_query_vectors_that_are_not_finite_are_refused(split):
    sets = {"train": graded(), "val": graded(seed=5)}
    sets[split].queries = sets[split].queries.clone()
    sets[split].queries[2, 1] = torch.inf
    with pytest.raises(DataError, match=rf"feature 1 \(counted from 0\) of {sets[split].name} query 2 is inf"):
        MLR(D, **QUICK).fit(**sets)
