"""LGMMLNet: frozen it is LGMML, its start is the closed form, each part trains or stays, any loss."""

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import LGMML, LGMMLNet, RankingDataModule, RankingSet
from torchrank.functional import mahalanobis
from torchrank.functional.losses import LOSSES

PARTS = {"metrics": "factors", "anchors": "shifts", "tau": "log_tau", "weights": "weights", "linear": "linear"}
CLOSED = {"queries_per_metric": 3}


def fit(folder, epochs=2, module=None, **options):
    torch.manual_seed(0)
    ranker = LGMMLNet(FEATURES, **{"metrics": 4, "closed_form": CLOSED, "lr": 0.05} | options)
    trainer(folder, epochs, monitor=None).fit(ranker, datamodule=data() if module is None else module)
    return ranker.eval()


def start(folder, **options):
    """The state before the first step: all parts are frozen."""
    return fit(folder, 1, freeze=list(PARTS), **options)


def scores_of(ranker, test=None):
    test = lists(2) if test is None else test
    with torch.no_grad():
        return ranker(test.x, test.offsets)


@pytest.mark.parametrize("change", [
    {},
    {"kernel": "rbf", "beta": 1.0},
    {"kernel": "laplace", "tau": "q95"},
    {"kernel": "paper", "tau": 3.0, "anchor": "best"},
    {"kernel": "demo", "distance": "eq12"},
    {"anchor": "search", "t": 0.3, "high": "max", "seed": 3},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("epochs", [1, 4])
def test_frozen_it_is_lgmml(tmp_path, change, epochs):
    own = {name: change[name] for name in ("kernel", "beta", "tau", "seed") if name in change}
    closed = CLOSED | {name: value for name, value in change.items() if name not in own}
    net = fit(tmp_path, epochs, freeze=list(PARTS), closed_form=closed, loss="warp", weight_decay=1.0, **own)
    ranker = LGMML(FEATURES, metrics=4, rounds=1, **CLOSED | change)
    trainer(tmp_path, 1, monitor=None).fit(ranker, datamodule=data())
    torch.testing.assert_close(scores_of(net), scores_of(ranker), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("freeze", [list(PARTS), []], ids=["frozen", "free"])
def test_dead_features_are_ignored(tmp_path, freeze):
    train = lists(0)
    train.x[:, 2] = 1.5
    module = RankingDataModule.from_sets(train=train, val=lists(1))
    ranker, test = fit(tmp_path, module=module, freeze=freeze), lists(2)
    before = scores_of(ranker, test)
    test.x[:, 2] += 10
    assert torch.equal(scores_of(ranker, test), before)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_lower_rank_keeps_the_directions_of_the_largest_distances(tmp_path, rank):
    """No other choice of so many directions has a larger mean squared distance from the anchor."""
    low, full = start(tmp_path, rank=rank), start(tmp_path)
    assert low.scorer.factors.shape == (4, FEATURES, rank)
    rows = low.transform(lists(0).x, lists(0).offsets).detach().numpy()
    for r in range(4):
        images = [rows @ net.scorer.factors[r].detach().numpy() - net.scorer.shifts[r].detach().numpy()
                  for net in (low, full)]  # fmt: skip
        values = np.linalg.eigvalsh(images[1].T @ images[1])
        assert np.square(images[0]).sum() == pytest.approx(values[::-1][:rank].sum(), rel=1e-4)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_trains_alone_or_stays_alone(tmp_path, part):
    before = dict(start(tmp_path).scorer.named_parameters())
    alone = dict(fit(tmp_path, freeze=[name for name in PARTS if name != part]).scorer.named_parameters())
    others = dict(fit(tmp_path, freeze=[part]).scorer.named_parameters())
    for name, parameter in PARTS.items():
        assert torch.equal(alone[parameter], before[parameter]) == (name != part), name
        assert torch.equal(others[parameter], before[parameter]) == (name == part), name


def test_without_a_linear_term(tmp_path):
    ranker = fit(tmp_path, linear=False)
    assert ranker.scorer.linear is None and "scorer.linear" not in ranker.state_dict()
    torch.testing.assert_close(scores_of(start(tmp_path, linear=False)), scores_of(start(tmp_path)))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_lowers_itself(tmp_path, loss):
    batch = lists(0)[:]
    values = []
    for epochs, freeze in ((1, list(PARTS)), (8, [])):
        ranker = fit(tmp_path, epochs, loss=loss, freeze=freeze, lr=0.02, kernel="laplace")
        with torch.no_grad():
            x = ranker.transform(batch.x, batch.offsets)
            values.append(float(ranker.loss(batch._replace(x=x)).sum()))
    assert values[1] < values[0] and np.isfinite(values[1])


def test_the_gradient_at_an_anchor_is_finite():
    ranker = LGMMLNet(FEATURES, metrics=2, kernel="laplace", transform="none", loss="ranknet")
    anchor = torch.randn(FEATURES)
    with torch.no_grad():
        ranker.scorer.shifts.copy_(torch.einsum("mdk,d->mk", ranker.scorer.factors, anchor))
    x = torch.stack((anchor, torch.zeros(FEATURES))).requires_grad_()
    batch = RankingSet(x.detach(), torch.tensor([0.0, 1.0]), torch.tensor([0, 2]))[:]
    ranker.loss(batch._replace(x=x)).sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in ranker.scorer.parameters())


def test_scores_are_those_of_the_formula(tmp_path):
    ranker, test = fit(tmp_path, kernel="rbf", beta=1.5), lists(2)
    scorer, rows = ranker.scorer, ranker.transform(test.x, test.offsets)
    anchors = torch.linalg.solve(scorer.factors.mT.double(), scorer.shifts.double())
    with torch.no_grad():
        z = mahalanobis(rows.double(), anchors, scorer.factors.double()) / scorer.log_tau.double().exp()
        expected = torch.exp(-0.75 * z.square()) @ scorer.weights.double() + rows.double() @ scorer.linear.double()
    torch.testing.assert_close(scores_of(ranker).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transform", ["standard", {"name": "pca", "variance": 0.7}], ids=str)
def test_a_checkpoint_is_all_that_is_needed(tmp_path, transform):
    ranker = LGMMLNet(FEATURES, metrics=4, closed_form=CLOSED, freeze=["tau"], transform=transform)
    runner = trainer(tmp_path, 2)
    runner.fit(ranker, datamodule=data())
    runner.save_checkpoint(tmp_path / "saved.ckpt")
    loaded = torchrank.load(tmp_path / "saved.ckpt")
    assert torch.equal(scores_of(loaded), scores_of(ranker.eval()))
    assert not loaded.scorer.log_tau.requires_grad


def test_resumed_it_does_not_start_again(tmp_path):
    whole, make = fit(tmp_path / "whole", 4), {"metrics": 4, "closed_form": CLOSED, "lr": 0.05}
    trainer(tmp_path / "cut", 2).fit(LGMMLNet(FEATURES, **make), datamodule=data())
    resumed = LGMMLNet(FEATURES, **make)
    resumed.prepare = None  # it would fail
    last = tmp_path / "cut/last.ckpt"
    trainer(tmp_path / "cut", 4).fit(resumed, datamodule=data(), ckpt_path=last, weights_only=True)
    torch.testing.assert_close(scores_of(resumed.eval()), scores_of(whole), rtol=1e-5, atol=1e-5)


def test_shuffled_test_labels_change_no_score(tmp_path):
    ranker, wrong, runner = fit(tmp_path), lists(2), trainer(tmp_path)
    wrong.labels = wrong.labels.flip(0)
    one, other = (
        torch.cat(runner.predict(ranker, datamodule=RankingDataModule.from_sets(train=lists(0), test=test)))
        for test in (lists(2), wrong)
    )
    assert torch.equal(one, other)


def test_a_shared_corpus_is_its_flat_copy(tmp_path):
    flat = lists(0)
    order = torch.randperm(len(flat.x), generator=torch.Generator().manual_seed(0))
    corpus = RankingSet(flat.x[order], flat.labels, flat.offsets, index=order.argsort())
    other = fit(tmp_path, module=RankingDataModule.from_sets(train=corpus, val=lists(1), batch_documents=40))
    torch.testing.assert_close(scores_of(other), scores_of(fit(tmp_path)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("change", "message"), [
    ({"freeze": ["factors"]}, "cannot freeze factors: choose among metrics, anchors"),
    ({"kernel": "localized"}, "unknown kernel 'localized'"),
    ({"closed_form": {"t": 2.0}}, "t=2.0 is not between"),
    ({"loss": "x"}, "unknown loss 'x'"),
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
    module = data()
    ranker = LGMMLNet(FEATURES, metrics=3, kernel=kernel, linear=linear, closed_form={"queries_per_metric": 3}, lr=0.1)
    fitting = trainer(tmp_path, max_epochs=2)
    fitting.fit(ranker, datamodule=module)
    test = module.sets["test"]
    expected = ranker(test.x, test.offsets).detach()
    found = ranker.compiled()(ranker.transform(test.x, test.offsets))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(fitting.predict(ranker, datamodule=module)), expected, rtol=1e-4, atol=1e-5)
