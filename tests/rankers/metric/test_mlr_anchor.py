"""MLR and RMLR that are pulled to a given metric: C = 0, paths that begin there, rows that do not change, refusals.

Their minimum is compared with that of convex programmes in test_mlr_minimum.py.
"""

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.metric.fits import QUICK, D, data, fit, graded, objective, of_classes, points
from tests.rankers.small import trainer
from torchrank import MLR, RMLR, MetricBaseline
from torchrank.data import TrainingLists
from torchrank.errors import DataWarning

KINDS = [{"regulariser": "fro"}, {"regulariser": "l21", "lam": 0.3}]
MATRIX = [[2.0, 0.5, 0, 0, 0], [0.5, 1, 0, 0, 0.1], [0, 0, 0, 0, 0], [0, 0, 0, 1 / 3, 0], [0, 0.1, 0, 0, 0.7]]


def noisy(count=16):
    """Two classes that the second feature tells apart; of the others only the last is large enough to be in the way."""
    x, classes = torch.randn(count, D, generator=torch.Generator().manual_seed(0)).double(), torch.arange(count) % 2
    x[:, 1] = x[:, 1] / 4 + 2 * classes
    x[:, [0, 2, 3]] /= 10
    return of_classes(x, classes, ("a", "b"))


# ---- C = 0 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anchor", [1.0, 0.3, MATRIX], ids=["identity", "number", "matrix"])
@pytest.mark.parametrize("kind", KINDS, ids=["fro", "l21"])
@pytest.mark.parametrize("C", [0, 0.0, [0.0]], ids=str)
def test_without_weight_the_metric_is_the_anchor_to_the_bit(kind, anchor, C, recwarn, monkeypatch):
    """No list is looked at, the certificate is proved, and nothing warns."""
    expected = torch.tensor(anchor, dtype=torch.float64)
    expected = expected * torch.eye(D, dtype=torch.float64) if expected.dim() == 0 else expected
    calls, total = [], TrainingLists.total
    monkeypatch.setattr(TrainingLists, "total", lambda *given, **more: calls.append(1) or total(*given, **more))
    ranker = fit(C=C, anchor=anchor, **kind)
    assert torch.equal(ranker.metric, expected) and ranker.metric.dtype == torch.float64
    assert ranker.converged and not len(ranker.cuts.loss) and len(calls) == 1  # which counted the lists
    assert ranker.certificate == ("gap", 0.0, 0.0, {"upper": 0.0, "lower": 0.0}) and ranker.certificate.proved
    assert not recwarn.list
    assert ranker.findings.get("features unchanged") == ("5 of 5" if kind["regulariser"] == "l21" else None)
    assert ranker.findings.get("C") == (0 if isinstance(C, list) else None)


@pytest.mark.parametrize("form", ["corpus", "flat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_under_the_identity_are_those_of_the_euclidean_metric_to_the_bit(form, dtype):
    """Also where many entries are as near as others: on a grid of tenths sums in another order break ties."""
    lists = graded(form)
    ranker, plain = fit(lists, RMLR, C=0.0, anchor=1.0), MetricBaseline(D, transform=None).fit(lists)
    assert torch.equal(ranker.components, torch.eye(D).double())
    batch = lists[:]
    x, queries = ((10 * rows).round().to(dtype) / 10 for rows in (batch.x, batch.queries))
    given = {"queries": queries, **({"index": batch.index} if form == "corpus" else {})}
    assert torch.equal(ranker(x, batch.offsets, **given), plain(x, batch.offsets, **given))
    assert torch.equal(ranker.rank(x, batch.offsets, **given), plain.rank(x, batch.offsets, **given))


def test_without_an_anchor_the_weight_stays_positive():
    for make, given in ((MLR, {}), (MLR, {"regulariser": "fro"}), (RMLR, {})):
        for C in (0.0, 0, [0.0], [1.0, 0.0]):
            with pytest.raises(ValueError, match=r"^C must be a number > 0, or a list of them, got "):
                make(D, C=C, **given)


class Seen(RMLR):
    """Remembers what each round ended with."""

    def take_round(self, number):
        found = super().take_round(number)
        self.seen = [*getattr(self, "seen", []), (found, self.metric.clone())]
        return found


def test_a_path_may_begin_at_the_anchor_and_come_back_to_it():
    """The fits after it are those of a path without it, bit for bit."""
    sets, given = points(), {"anchor": 1.0, "lam": 0.02, "eps": 1e-2, "transform": None}
    ranker = Seen(D, C=[0.0, 0.1, 1.0], **given).fit(sets["train"])
    short = Seen(D, C=[0.1, 1.0], **given).fit(sets["train"])
    assert [found.done for found, _ in ranker.seen] == [False, False, True]
    assert all(found.certificate.proved for found, _ in ranker.seen)
    assert [found.findings["C"] for found, _ in ranker.seen] == [0.0, 0.1, 1.0]
    assert torch.equal(ranker.seen[0][1], torch.eye(D).double())
    for (one, metric), (other, expected) in zip(ranker.seen[1:], short.seen, strict=True):
        assert torch.equal(metric, expected) and one.certificate == other.certificate
    back = Seen(D, C=[1.0, 0.0, 1.0], **given).fit(sets["train"])
    assert torch.equal(back.seen[1][1], torch.eye(D).double()) and back.converged
    for place in (0, 2):
        upper = back.seen[place][0].certificate.bounds["upper"]
        assert upper == pytest.approx(ranker.certificate.bounds["upper"], abs=1e-2)
    assert torch.equal(Seen(D, C=[1.0, 0.0], **given).fit(sets["train"]).metric, torch.eye(D).double())
    chosen = RMLR(D, C=[0.0, 0.1, 1.0], **given).fit(sets["train"], sets["val"])
    assert chosen.findings["C"] in (0.0, 0.1, 1.0)


def test_a_path_that_begins_at_the_anchor_is_cut_and_resumed(tmp_path):
    def run(folder, epochs, **given):
        ranker = RMLR(D, **QUICK | {"C": [0.0, 1.0], "lam": 0.02, "anchor": 1.0})
        trainer(folder, epochs).fit(ranker, datamodule=data(), weights_only=True, **given)
        return ranker

    whole = run(tmp_path / "whole", 4)
    last = tmp_path / "1" / "last.ckpt"
    assert torch.equal(run(tmp_path / "1", 1).metric, torch.eye(D).double())
    resumed = run(tmp_path / "1", 4, ckpt_path=last)
    for key, value in whole.state_dict().items():
        found = resumed.state_dict()[key]
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value, key
    assert torchrank.load(last).certificate == whole.certificate and resumed.converged and whole.certificate.proved


# ---- C > 0 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anchor", [1.0, np.flip(MATRIX).tolist()], ids=["identity", "matrix"])
def test_the_upper_bound_is_the_objective_of_the_metric(anchor):
    ranker = fit(graded(), RMLR, lam=0.05, anchor=anchor)
    metric, centre = ranker.metric.numpy(), np.eye(D) if anchor == 1.0 else np.array(anchor)
    omega = sum(((metric - centre)[d] ** 2).sum() / 2 + 0.05 * np.linalg.norm((metric - centre)[d]) for d in range(D))
    found = ranker.certificate
    assert found.bounds["upper"] == pytest.approx(omega + 3 * objective(graded(), metric), rel=1e-9)
    assert ranker.converged and found.proved and (metric != centre).any()
    assert np.linalg.eigvalsh(metric)[0] > -1e-12
    np.testing.assert_array_equal(metric, metric.T)


def test_features_that_do_not_help_keep_their_rows_exactly():
    found = []
    for lam in (3.0, 0.3, 0.03):
        ranker = fit(noisy(), RMLR, C=1.0, lam=lam, anchor=1.0, eps=1e-3)
        same = (ranker.metric == torch.eye(D)).all(1)
        assert torch.equal(same, (ranker.metric == torch.eye(D)).all(0))
        assert ranker.findings == {"features unchanged": f"{int(same.sum())} of {D}"}
        assert torch.linalg.eigvalsh(ranker.metric)[0] > -1e-12
        found.append(same.tolist())
    assert found[:2] == [[True] * 5, [True, True, True, True, False]]
    assert any(found[2]) and not found[2][1] and not found[2][4]
    assert torch.equal(ranker.metric, fit(noisy(), C=1.0, lam=lam, anchor=1.0, eps=1e-3, regulariser="l21").metric)


def test_a_small_weight_gives_the_anchor_and_never_zero(recwarn):
    """With every measure, also those whose minimum is 0 without an anchor."""
    for measure in ("auc", "map", "mrr", "precision", "ndcg"):
        assert torch.equal(fit(make=RMLR, measure=measure, C=0.01, anchor=1.0).metric, torch.eye(D).double())
    assert fit(make=RMLR, measure="precision", C=1.0, lam=1e-3, anchor=1.0).metric.any()
    assert not recwarn.list
    train = graded()
    train.labels.fill_(1.0)
    for kind in KINDS:
        with pytest.warns(DataWarning, match="no order to learn"):
            ranker = fit(train, anchor=1.0, **kind)
        assert torch.equal(ranker.metric, torch.eye(D).double()) and ranker.certificate.bounds["upper"] == 0


@pytest.mark.parametrize(("C", "eps"), [(1.0, 1e-4), (100.0, 1e-4)])
def test_without_a_price_on_rows_it_is_fro(C, eps):
    """F is strictly convex: of two fits that are proved to C eps, each is within sqrt(2 C eps) of the minimum."""
    one = fit(make=RMLR, C=C, lam=0.0, anchor=1.0, eps=eps)
    other = fit(C=C, regulariser="fro", anchor=1.0, eps=eps)
    assert (one.metric - other.metric).norm() <= 2 * (2 * C * eps) ** 0.5
    assert (one.metric - torch.eye(D)).norm() > 0.5
    uppers = [ranker.certificate.bounds["upper"] for ranker in (one, other)]
    assert uppers[0] == pytest.approx(uppers[1], abs=C * eps)


# ---- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"C": -1.0, "anchor": 1.0}, "C must be a number >= 0, or a list of them, got -1.0"),
        ({"C": [0.0, -1.0], "anchor": 1.0}, r"C must be a number >= 0, or a list of them, got \[0.0, -1.0\]"),
        ({"C": [], "anchor": 1.0}, r"C must be .*, got \[\]"),
        ({"C": float("nan"), "anchor": 1.0}, "C must be .*, got nan"),
        ({"C": "0", "anchor": 1.0}, "C must be .*, got '0'"),
        ({"anchor": "identity"}, "anchor must be a finite number .* got 'identity'"),
        ({"anchor": float("nan")}, "anchor must be a finite number .* got nan"),
        ({"anchor": 1.0, "lam": -0.5}, "lam must be >= 0, got -0.5"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        RMLR(D, **given)


@pytest.mark.parametrize("regulariser", ["trace", "diagonal"])
def test_an_anchor_needs_a_distance_from_it(regulariser):
    with pytest.raises(ValueError, match=rf"regulariser=fro, .* or l21, .* got regulariser={regulariser}"):
        MLR(D, anchor=1.0, C=0.0, regulariser=regulariser)


@pytest.mark.parametrize("kind", KINDS, ids=["fro", "l21"])
def test_an_anchor_that_is_no_metric_is_refused(kind):
    for anchor in (-1.0, (torch.ones(D, D) - torch.eye(D)).tolist()):
        with pytest.raises(ValueError, match="anchor must be positive semi-definite, got one with the eigenvalue -1:"):
            fit(anchor=anchor, **kind)
    root = torch.randn(2, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert fit(anchor=(root.T @ root).tolist(), **kind).converged  # eigenvalues of 0, but for rounding
