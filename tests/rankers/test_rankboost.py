"""RankBoost as a ranker: rounds, resume, checkpoints, forms of the data, laws, refusals.

Its rounds are compared with a loop over pairs in tests/golden/test_boosting.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import torchrank
from tests.golden import boosting_reference as plain
from tests.rankers.rounds import check_every_cut, check_every_interrupt, equal_states
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import RankBoost, RankingDataModule, RankingSet
from torchrank.data import SparseRows
from torchrank.solvers.boosting.potentials import crossing_masses, pair_masses, paired_lists
from torchrank.solvers.boosting.thresholds import stump_scores

CHOICES = [{}, {"bins": None}, {"bins": 8, "alpha": "exact"}, {"pair_weight": "query", "allow_negative": False}]


def fit(folder, module=None, rounds=8, **options):
    module = module or data()
    ranker = RankBoost(module.num_features, rounds=rounds, **options)
    trainer(folder, rounds).fit(ranker, datamodule=module)
    return ranker


def one_set(x, labels, offsets):
    train = RankingSet(x, labels, offsets)
    return RankingDataModule.from_sets(train=train, val=train, batch_documents=30)


# ---- potentials and rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("real", [False, True])
def test_masses_are_those_of_the_pairs(real):
    train = lists(3)
    labels = (train.labels * 0.3 - 1 if real else train.labels).double()
    offsets, random = train.offsets, torch.Generator().manual_seed(0)
    scores = torch.randn(len(labels), generator=random).double()
    weight = torch.randn(len(train), generator=random).double()
    chosen = torch.rand(len(labels), generator=random) < 0.4
    paired = paired_lists(labels, offsets)
    pairs = plain.crucial_pairs(labels.tolist(), offsets.tolist())
    mass = {(i, j): float(torch.exp(weight[q] + scores[i] - scores[j])) for q, i, j in pairs}
    won, lost = (np.zeros(len(labels)) for _ in range(2))
    for (i, j), value in mass.items():
        won[j] += value
        lost[i] += value
    for found, expected in zip(pair_masses(scores, weight, paired), (won, lost), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    right = sum(value for (i, j), value in mass.items() if chosen[j] and not chosen[i])
    wrong = sum(value for (i, j), value in mass.items() if chosen[i] and not chosen[j])
    np.testing.assert_allclose(crossing_masses(scores, chosen, weight, paired).numpy(), [right, wrong], rtol=1e-12)
    assert paired.pairs.tolist() == np.bincount([q for q, *_ in pairs], minlength=len(train)).tolist()


def test_scores_are_the_sum_of_the_rules():
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 5, (40, 7), generator=random).float()
    feature = torch.randint(0, 7, (30,), generator=random)
    threshold = torch.randint(-1, 6, (30,), generator=random).double()
    alpha = torch.randn(30, generator=random).double()
    expected = [
        sum(float(a) for f, t, a in zip(feature, threshold, alpha, strict=True) if row[f] > t) for row in x
    ]  # fmt: skip
    torch.testing.assert_close(stump_scores(x, feature, threshold, alpha), torch.tensor(expected).double())
    assert (stump_scores(x, feature[:0], threshold[:0], alpha[:0]) == 0).all()


def test_potentials_of_a_list_add_up_to_0_and_the_training_scores_are_those_of_the_model(tmp_path):
    ranker, train = fit(tmp_path), lists(0)
    held = ranker._boosting
    sums = torch.zeros(len(held.paired.pairs)).double().index_add(0, held.paired.lists, held.potentials)
    assert sums.abs().max() < 1e-15 and held.potentials.abs().sum() > 0.1
    kept = torch.isin(torch.repeat_interleave(train.offsets.diff()), with_pairs(train))
    torch.testing.assert_close(held.scores.float(), ranker(train.x, train.offsets)[kept])


def with_pairs(train):
    return torch.tensor([q for q in range(len(train)) if len(set(train[q].labels.tolist())) > 1])


# ---- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_batches_change_nothing(tmp_path, options):
    whole, small = (fit(tmp_path / str(size), data(batch_documents=size), **options) for size in (10_000, 25))
    equal_states(whole, small)
    assert len(whole.feature) == 8 and whole.log_loss[-1] < whole.log_loss[0] < 0


def test_bins_for_every_value_are_exact(tmp_path):
    x = (4 * lists(0).x).round() / 4
    module = one_set(x, lists(0).labels, lists(0).offsets)
    assert max(len(column.unique()) for column in x.T) < 60
    exact, binned, few = (fit(tmp_path / str(bins), module, bins=bins) for bins in (None, 60, 4))
    for name in ("feature", "alpha", "log_loss"):
        torch.testing.assert_close(getattr(exact, name), getattr(binned, name), rtol=1e-12, atol=1e-12)
    test = lists(2)
    torch.testing.assert_close(exact(x, lists(0).offsets), binned(x, lists(0).offsets))
    assert few.log_loss[-1] > exact.log_loss[-1] and few(test.x, test.offsets).unique().numel() > 4


def test_monotone_features_change_nothing(tmp_path):
    train = lists(0)
    plain_fit = fit(tmp_path / "x", bins=None)
    cubed = fit(tmp_path / "cube", one_set(train.x**3, train.labels, train.offsets), bins=None)
    for name in ("feature", "alpha", "log_loss"):
        torch.testing.assert_close(getattr(plain_fit, name), getattr(cubed, name), rtol=1e-12, atol=1e-12)


def test_one_rule_that_orders_everything_is_repeated_without_overflow(tmp_path):
    x = torch.tensor([[0.0, 0.3], [1.0, 0.1], [0.0, 0.2], [1.0, 0.2]])
    ranker = fit(tmp_path, one_set(x, torch.tensor([0.0, 1, 0, 1]), torch.tensor([0, 2, 4])), rounds=70)
    assert set(ranker.feature.tolist()) == {0}
    torch.testing.assert_close(ranker.alpha, torch.full((70,), float(np.arctanh(1 - 1e-10))).double())
    assert ranker.log_loss[-1] == pytest.approx(-ranker.alpha.sum().item()) and ranker.log_loss[-1] < -800
    assert torch.isfinite(ranker(x, torch.tensor([0, 4]))).all()


def test_nothing_to_learn_ends_the_fit(tmp_path):
    train = lists(0)
    ranker = fit(tmp_path, one_set(torch.ones_like(train.x), train.labels, train.offsets), bins=None)
    assert ranker.converged and len(ranker.feature) == 0 and ranker.trainer.current_epoch == 1
    assert (ranker(train.x, train.offsets) == 0).all()
    assert (torchrank.load(tmp_path / "last.ckpt")(train.x, train.offsets) == 0).all()


def test_learns(tmp_path):
    ranker = fit(tmp_path, rounds=40)
    assert not ranker.certified and ranker.measured["val"]["default"]["measures"]["ndcg@10"] > 0.85


# ---- rounds and checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CHOICES[1:3], ids=str)
def test_cut_after_any_round_the_fit_ends_the_same(tmp_path, options):
    check_every_cut(tmp_path, lambda: RankBoost(FEATURES, rounds=4, **options), 4)


def test_an_interrupt_at_any_sum_loses_nothing(tmp_path):
    check_every_interrupt(tmp_path, lambda: RankBoost(FEATURES, bins=8, alpha="exact", rounds=2), 2)


def test_validation_keeps_the_best_prefix(tmp_path):
    whole = fit(tmp_path, rounds=30)
    best = torchrank.load(tmp_path / "best.ckpt")
    rounds = len(best.feature)
    assert rounds < 30 and torch.equal(best.alpha, whole.alpha[:rounds])
    val = lists(1)
    values = [
        float(torchrank.functional.ndcg(
            stump_scores(val.x, whole.feature[:t], whole.threshold[:t], whole.alpha[:t]).float(),
            val.labels, val.offsets, k=10,
        ).nanmean()) for t in range(1, 31)
    ]  # fmt: skip
    assert rounds == 1 + int(np.argmax(np.round(values, 6)))


def test_fitted_again_it_starts_anew(tmp_path):
    ranker, other = fit(tmp_path / "one"), RankingDataModule.from_sets(train=lists(5), val=lists(1))
    trainer(tmp_path / "again", 8).fit(ranker, datamodule=other)
    equal_states(ranker, fit(tmp_path / "new", other))


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bins": 1}, "bins=1 has to be 2 to 256"),
        ({"bins": 257}, "bins=257 has to be 2 to 256"),
        ({"pair_weight": "list"}, "unknown pair_weight='list': choose one of uniform, query"),
        ({"alpha": "newton"}, "unknown alpha='newton': choose one of approximate, exact"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        RankBoost(FEATURES, **given)


def test_exact_thresholds_in_several_processes_are_refused():
    ranker = RankBoost(FEATURES, bins=None)
    ranker._trainer = SimpleNamespace(world_size=2)
    with pytest.raises(ValueError, match=r"in one process, here are 2: use model\.bins=256 or trainer=cpu"):
        ranker.setup("fit")


def test_lists_without_pairs_are_refused(tmp_path):
    train = lists(0)
    with pytest.raises(ValueError, match="no training list has two different labels"):
        fit(tmp_path, one_set(train.x, torch.ones_like(train.labels), train.offsets))


def test_other_forms_of_data_are_refused(tmp_path):
    train = lists(0)
    index = torch.arange(len(train.x))
    for given, message in (
        (RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets), "does not take sparse rows"),
        (RankingSet(train.x, train.labels, train.offsets, index=index), "does not take a corpus shared"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(tmp_path, RankingDataModule.from_sets(train=given, val=given))
