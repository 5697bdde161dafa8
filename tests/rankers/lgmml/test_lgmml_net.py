"""LGMMLNet: frozen it is LGMML, its start is the closed form, each part trains or stays, any loss."""

import numpy as np
import pytest
import torch

from tests.rankers.lgmml.fits import DEAD, close, fitted, graded, rows_of, scores_of, state, with_corpus, with_feature
from tests.rankers.small import FEATURES, data, lists, trainer
from tests.reference import local_metrics as plain
from torchrank import LGMML, LGMMLNet, RankingSet
from torchrank.functional import mahalanobis
from torchrank.functional.losses import LOSSES
from torchrank.functional.ragged import per_entry, segment_sum

PARTS = {"metrics": "factors", "anchors": "shifts", "tau": "log_tau", "weights": "weights", "linear": "linear"}
CLOSED = {"queries_per_metric": 3}


def trained(train=None, epochs=2, **options):
    return fitted(train, LGMMLNet, epochs=epochs, **{"metrics": 4, "closed_form": CLOSED, "lr": 0.05} | options)


def start(**options):
    """The state before the first step: all parts are frozen."""
    return trained(epochs=1, freeze=list(PARTS), **options)


@pytest.mark.parametrize("change", [
    {},
    {"kernel": "rbf", "beta": 1.0},
    {"kernel": "laplace", "tau": "q95"},
    {"kernel": "paper", "tau": 3.0, "anchor": "best"},
    {"kernel": "demo", "scatter": "sum"},
    {"anchor": "search", "t": 0.3, "high": "max", "seed": 3},
], ids=str)  # fmt: skip
def test_frozen_it_is_lgmml(change):
    """After any number of epochs and with weight decay."""
    own = {name: change[name] for name in ("kernel", "beta", "tau", "seed") if name in change}
    closed = CLOSED | {name: value for name, value in change.items() if name not in own}
    net = trained(epochs=4, freeze=list(PARTS), closed_form=closed, loss="warp", weight_decay=1.0, **own)
    test, ranker = lists(2), fitted(**CLOSED | change)
    np.testing.assert_allclose(scores_of(net, test), scores_of(ranker, test), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"kernel": "rbf", "tau": "q95"}, {"kernel": "laplace", "beta": 1.0},
                                     {"closed_form": {"anchor": "best", "t": 0.25}}], ids=str)  # fmt: skip
def test_with_free_weights_it_weighs_the_metrics_of_lgmml(options):
    train, test = graded(42, top=3), graded(43)
    closed = CLOSED | options.get("closed_form", {})
    scoring = {name: value for name, value in options.items() if name != "closed_form"}
    ranker = fitted(train, **closed | scoring)
    net = trained(train, closed_form=closed, freeze=[part for part in PARTS if part != "weights"], lr=0.01, **scoring)
    weights = net.scorer.weights.detach().double().numpy()
    assert (weights != 1).any()
    form = {"kernel": options.get("kernel", "distance"), "beta": options.get("beta", 2.0)}
    expected = plain.scores(state(ranker, train), rows_of(train, test), test.offsets.numpy(), weights, **form)
    close(scores_of(net, test), expected, 2e-5)


@pytest.mark.parametrize("freeze", [list(PARTS), []], ids=["frozen", "free"])
@pytest.mark.parametrize("transform", ["standard", "l2", None])
def test_dead_features_are_ignored(freeze, transform):
    ranker, test = trained(graded(14), freeze=freeze, transform=transform), graded(15)
    np.testing.assert_array_equal(scores_of(ranker, with_feature(test, DEAD, 10.0)), scores_of(ranker, test))


@pytest.mark.parametrize("rank", [1, 3])
def test_a_lower_rank_keeps_the_directions_of_the_largest_distances(rank):
    """No other choice of so many directions has a larger mean squared distance from the anchor."""
    low, full = start(rank=rank), start()
    assert low.scorer.factors.shape == (4, FEATURES, rank)
    rows = rows_of(lists(0))
    for r in range(4):
        images = [rows @ net.scorer.factors[r].detach().numpy() - net.scorer.shifts[r].detach().numpy()
                  for net in (low, full)]  # fmt: skip
        values = np.linalg.eigvalsh(images[1].T @ images[1])
        assert np.square(images[0]).sum() == pytest.approx(values[::-1][:rank].sum(), rel=1e-4)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_trains_alone_or_stays_alone(part):
    before = dict(start().scorer.named_parameters())
    alone = dict(trained(freeze=[name for name in PARTS if name != part]).scorer.named_parameters())
    others = dict(trained(freeze=[part]).scorer.named_parameters())
    for name, parameter in PARTS.items():
        assert torch.equal(alone[parameter], before[parameter]) == (name != part), name
        assert torch.equal(others[parameter], before[parameter]) == (name == part), name


def test_without_a_linear_term():
    ranker = trained(linear=False)
    assert ranker.scorer.linear is None and "scorer.linear" not in ranker.state_dict()
    np.testing.assert_array_equal(scores_of(start(linear=False), lists(2)), scores_of(start(), lists(2)))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_lowers_itself(loss):
    batch = lists(0)[:]
    values = []
    for epochs, freeze in ((1, list(PARTS)), (8, [])):
        ranker = trained(epochs=epochs, loss=loss, freeze=freeze, lr=0.02, kernel="laplace")
        with torch.no_grad():
            x = ranker.transform(batch.x, batch.offsets)
            values.append(float(ranker.loss(batch._replace(x=x)).sum()))
    assert values[1] < values[0] and np.isfinite(values[1])


def test_the_gradient_at_an_anchor_is_finite():
    torch.manual_seed(0)
    ranker = LGMMLNet(FEATURES, groups="random", metrics=2, kernel="laplace", transform="none", loss="ranknet")
    anchor = torch.randn(FEATURES)
    with torch.no_grad():
        ranker.scorer.shifts.copy_(torch.einsum("mdk,d->mk", ranker.scorer.factors, anchor))
    x = torch.stack((anchor, torch.zeros(FEATURES))).requires_grad_()
    batch = RankingSet(x.detach(), torch.tensor([0.0, 1.0]), torch.tensor([0, 2]))[:]
    ranker.loss(batch._replace(x=x)).sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in ranker.scorer.parameters())


def test_scores_are_those_of_the_formula():
    ranker, test = trained(kernel="rbf", beta=1.5), lists(2)
    scorer, rows = ranker.scorer, ranker.transform(test.x, test.offsets)
    anchors = torch.linalg.solve(scorer.factors.mT.double(), scorer.shifts.double())
    with torch.no_grad():
        z = mahalanobis(rows.double(), anchors, scorer.factors.double()) / scorer.log_tau.double().exp()
        expected = torch.exp(-0.75 * z.square()) @ scorer.weights.double() + rows.double() @ scorer.linear.double()
    np.testing.assert_allclose(scores_of(ranker, test), expected, rtol=1e-4, atol=1e-4)


def test_parts_stay_frozen_where_the_transform_decides_their_sizes():
    ranker = trained(freeze=["tau", "metrics"], transform={"name": "pca", "variance": 0.7})
    width = ranker.transform.num_outputs
    assert width < FEATURES and ranker.scorer.factors.shape == (4, width, width)
    trains = {name for name, part in ranker.scorer.named_parameters() if part.requires_grad}
    assert trains == {"shifts", "weights", "linear"}


def test_a_shared_corpus_is_its_flat_copy():
    one, other = (scores_of(trained(train), lists(2)) for train in (lists(0), with_corpus(lists(0))))
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("change", "message"), [
    ({"freeze": ["factors"]}, "cannot freeze factors: choose from metrics, anchors"),
    ({"kernel": "localized"}, "unknown kernel='localized'"),
    ({"closed_form": {"t": 2.0}}, "t must be >= 0 and <= 1, got 2.0"),
    ({"loss": "x"}, "unknown loss='x'"),
])  # fmt: skip
def test_options_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        LGMMLNet(FEATURES, **change)


def test_query_vectors_are_refused():
    with pytest.raises(ValueError, match="LGMMLNet does not take query vectors"):
        LGMMLNet(FEATURES)(torch.zeros(2, FEATURES), torch.tensor([0, 2]), queries=torch.zeros(1, FEATURES))


@pytest.mark.parametrize("kernel", ["distance", "rbf"])
@pytest.mark.parametrize("linear", [True, False])
def test_compiled_and_predicted_scores(tmp_path, kernel, linear):
    ranker, test = trained(metrics=3, kernel=kernel, linear=linear, lr=0.1), lists(2)
    compiled = ranker.compiled()(ranker.transform(test.x, test.offsets))
    batch = test.to("cpu", ranker.transform)[:]
    with torch.no_grad():
        found = [compiled, *trainer(tmp_path).predict(ranker, datamodule=data(1000)), ranker.predict_step(batch)]
    for scores in found:
        np.testing.assert_allclose(scores, scores_of(ranker, test), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gate", ["hard", "soft"])
@pytest.mark.parametrize("kappa", [torch.inf, 10.0])
def test_with_groups_it_starts_from_lgmml_gate_included(gate, kappa):
    start = {"num_groups": 2, "alpha": 5.0, "t": 0.25, "ridge": 0.1, "gate": gate, "kappa": kappa, "high": "positive"}
    train, test = lists(0, num_lists=30), lists(2)
    frozen = ["metrics", "anchors", "tau", "weights", "linear"]
    ranker = LGMMLNet(FEATURES, freeze=frozen, closed_form=start, transform="standard").fit(train, epochs=1)
    closed = LGMML(FEATURES, rounds=1, transform="standard", **start).fit(train)
    one, other = (each(test.x, test.offsets) for each in (ranker, closed))
    gap = one - other  # the same up to a constant of each list
    mean = segment_sum(gap, test.offsets) / test.offsets.diff()
    torch.testing.assert_close(gap, per_entry(mean, test.offsets, len(gap)), rtol=1e-3, atol=1e-4)


def test_with_groups_its_explanation_sums_to_the_differences():
    train = lists(0, num_lists=30)
    ranker = LGMMLNet(FEATURES, closed_form={"num_groups": 2, "gate": "soft"}).fit(train, epochs=3)
    pairs = torch.tensor([[0, 1], [1, 0]]) + int(train.offsets[1])
    parts = ranker.explain(train.x, train.offsets, pairs)
    scores = ranker.double()(train.x.double(), train.offsets)
    torch.testing.assert_close(parts.sum((1, 2)), scores[pairs[:, 0]] - scores[pairs[:, 1]], rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="groups=random"):
        ranker.compiled()
