"""`ranker.fit`: a fit without Lightning. That it equals one through a Trainer is a law (tests/laws/test_rankers.py)."""

import warnings

import pytest
import torch

import torchrank
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import (
    AdaRank,
    LambdaRank,
    ListNet,
    LocalRank,
    LowRankMLR,
    NeuralRanker,
    Ranker,
    RankingSet,
    Round,
    SingleFeature,
)
from torchrank.functional import LOSSES, ndcg
from torchrank.rankers.core import fitting


def quality(ranker, test):
    with torch.no_grad():
        return float(ndcg(ranker(test.x, test.offsets), test.labels, test.offsets, k=10).nanmean())


class Counted(Ranker):
    """Counts rounds; its scores are best in round `best` and get worse from there on."""

    def __init__(self, num_features, best=3, rounds=60):
        super().__init__(num_features, None, rounds)
        self.best = best
        self.register_buffer("round_number", torch.tensor(-1))

    def score(self, batch):
        return batch.x[:, 1] - 0.5 * batch.x[:, 3] - abs(int(self.round_number) - self.best) * batch.x[:, 0]

    def round(self, lists, number):
        self.round_number.fill_(number)
        return Round(done=False)


def test_it_stops_early_and_keeps_the_best_round():
    train, val = lists(0), lists(1, num_lists=60)
    seen = []
    ranker = Counted(FEATURES)
    take = ranker.take_round
    ranker.take_round = lambda number: seen.append(number) or take(number)
    ranker.fit(train, val)
    assert ranker.round_number == 3 and not ranker.training
    assert len(seen) == 3 + 1 + fitting.PATIENCE


def test_without_validation_lists_the_last_round_stays_and_epochs_limit_them():
    assert Counted(FEATURES).fit(lists(0)).round_number == 59
    assert Counted(FEATURES).fit(lists(0), epochs=7).round_number == 6
    assert Counted(FEATURES).fit(lists(0), epochs=700).round_number == 59


@pytest.mark.parametrize("epochs", [0, -1, 2.0, "3"])
def test_epochs_are_counted_from_one(epochs):
    with pytest.raises(ValueError, match=r"epochs must be .*>= 1"):
        ListNet(FEATURES).fit(lists(0), epochs=epochs)


def test_a_gradient_fit_has_a_hundred_epochs_by_default(monkeypatch):
    epochs = []
    monkeypatch.setattr(fitting.Descent, "epoch", lambda self, number: epochs.append(number) or False)
    LambdaRank(FEATURES).fit(lists(0))
    assert epochs == list(range(100))


def test_a_fit_that_ends_before_its_certificate_says_what_to_raise():
    with pytest.warns(
        torchrank.ConvergenceWarning,
        match=r"ListNet stopped before its certificate: gradient .* Raise rounds \(now 2\)",
    ):
        ListNet(FEATURES, rounds=2).fit(lists(0))
    with pytest.warns(torchrank.ConvergenceWarning, match=r"Raise epochs \(now 2\)"):
        ListNet(FEATURES).fit(lists(0), epochs=2)


def test_the_seed_draws_first_weights_and_batches():
    def weights(seed):
        ranker = NeuralRanker(FEATURES, scorer_options={"hidden": [4]}).fit(
            lists(0), epochs=2, batch_documents=40, seed=seed
        )
        return torch.cat([part.flatten() for part in ranker.parameters()])

    assert torch.equal(weights(0), weights(0)) and not torch.equal(weights(0), weights(1))


def test_dropout_is_on_while_it_learns_and_off_afterwards():
    def fit(dropout):
        return NeuralRanker(FEATURES, scorer_options={"hidden": [8], "dropout": dropout}).fit(
            lists(0), lists(1), epochs=3
        )

    test, ranker = lists(2), fit(0.5)
    assert torch.equal(ranker(test.x, test.offsets), ranker(test.x, test.offsets))
    assert not torch.equal(ranker.scorer.layers[0].weight, fit(0.0).scorer.layers[0].weight)


@pytest.mark.parametrize("make", [ListNet, LambdaRank, SingleFeature, AdaRank])
def test_it_learns(make):
    test = lists(2)
    chance = ndcg(torch.zeros(len(test.labels)), test.labels, test.offsets, k=10, ties="average").nanmean()
    assert quality(make(FEATURES).fit(lists(0), lists(1)), test) > chance + 0.05


@pytest.mark.parametrize(
    ("loss", "options"), [*((name, {}) for name in LOSSES), ("warp", {"margin": 0.5, "negatives": "zero"})]
)
def test_every_loss_comes_close_to_the_rule_that_made_the_grades(loss, options):
    train, test = lists(0, num_lists=150), lists(2, num_lists=150)
    ranker = NeuralRanker(FEATURES, "linear", loss, loss_options=options, lr=0.05).fit(
        train, epochs=10, batch_documents=200
    )
    rule = test.x[:, 1] - 0.5 * test.x[:, 3]
    best = ndcg(rule, test.labels, test.offsets, k=10).nanmean()
    slow = {"approx_ndcg", "approx_mrr"}  # flat at first: ten epochs do not end at the optimum
    assert quality(ranker, test) > best - (0.04 if loss in slow else 0.02)


def test_a_second_fit_fits_the_transform_again():
    other = lists(5)
    other = RankingSet(100 * other.x + 7, other.labels, other.offsets)
    ranker = ListNet(FEATURES, rounds=3, transform="standard").fit(lists(0)).fit(other)
    torch.testing.assert_close(ranker.transform.mean, other.x.double().mean(0))


def test_a_constant_feature_does_not_profit_from_lists_sorted_by_label():
    labels = torch.tensor([2.0, 1.0, 0.0, 0.0] * 5)
    x = torch.stack([torch.ones(20), labels + 0.6 * torch.tensor([0.0, 1.0, -1.0, 1.0, 0.0] * 4)], 1)
    ranker = SingleFeature(2).fit(RankingSet(x, labels, torch.arange(0, 21, 4)))
    assert ranker.feature == 1 and ranker.sign == 1


def test_choosing_a_number_of_clusters_needs_validation_lists():
    with pytest.raises(ValueError, match=r"Choosing among clusters=\[1, 2\] needs a validation set"):
        LocalRank(FEATURES, clusters=[2]).fit(lists(0))


def test_validation_lists_of_another_kind_are_refused():
    val = RankingSet(torch.zeros(3, FEATURES + 1), torch.zeros(3), torch.tensor([0, 3]))
    with pytest.raises(torchrank.DataError, match="made for 6 features, but these rows have 7"):
        ListNet(FEATURES).fit(lists(0), val)
    with pytest.raises(torchrank.DataError, match="query vectors"):
        LowRankMLR(FEATURES).fit(lists(0))


def test_an_interrupted_fit_keeps_no_rows():
    ranker = Counted(FEATURES)
    ranker.round = lambda lists, number: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        ranker.fit(lists(0))
    assert not vars(ranker.kept)


def test_digits_that_float32_does_not_have_are_told():
    train = lists(0)
    far = train.x.double() + 1e8 * (torch.arange(FEATURES) == 1)

    def fit(x, transform=None):
        ListNet(FEATURES, transform=transform).fit(RankingSet(x, train.labels, train.offsets), epochs=1)

    with pytest.warns(torchrank.NumericalWarning, match=r"feature 1 .* in steps of 12"):
        fit(far)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=torchrank.NumericalWarning)
        fit(train.x.double())
        fit(far.float())  # what is lost already
        fit(far, "standard")
        fit(torch.where(torch.arange(FEATURES) == 1, 1e8, train.x.double()))  # a constant has no digits to lose


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_documents": -5}, "batch_documents must be >= 1, got -5"),
        ({"batch_documents": 2.5}, "batch_documents must be an integer >= 1, got 2.5"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"val": "lists"}, r"val must be a RankingSet, got str: make one of arrays with RankingSet\(x, labels, group"),
        ({"val": RankingSet(torch.eye(FEATURES), torch.zeros(FEATURES), torch.tensor([0, FEATURES]))}, "different"),
    ],
)
def test_arguments_that_cannot_work_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        Counted(FEATURES).fit(lists(0), **options)


def test_lists_without_an_order_are_told():
    x, offsets = torch.eye(FEATURES), torch.tensor([0, 1, FEATURES])
    equal = RankingSet(x, torch.tensor([0.0] + [1.0] * (FEATURES - 1)), offsets)
    with pytest.warns(torchrank.DataWarning, match="no training list has documents with different labels"):
        Counted(FEATURES).fit(equal)


def test_a_schedule_by_another_measure_is_told_apart_from_missing_validation_lists():
    schedule = {"name": "ReduceLROnPlateau", "monitor": "val/map"}
    with pytest.raises(ValueError, match="measures val/ndcg@10 only"):
        LambdaRank(FEATURES, scheduler=schedule).fit(lists(0), lists(1))
    with pytest.raises(ValueError, match="give val="):
        LambdaRank(FEATURES, scheduler=schedule).fit(lists(0))


def test_a_fit_through_a_trainer_that_breaks_off_leaves_nothing_behind(tmp_path):
    def broken(lists, number):
        if number:
            raise RuntimeError("broken")
        return whole(lists, number)

    ranker, end = ListNet(FEATURES), trainer(tmp_path, check_val_every_n_epoch=3)
    whole, ranker.round = ranker.round, broken
    with pytest.raises(RuntimeError, match="broken"):
        end.fit(ranker, datamodule=data())
    assert vars(ranker.kept) == {} and end.check_val_every_n_epoch == 3
