"""RankBoost against a loop over pairs, its masses and rules by enumeration, laws, refusals."""

import numpy as np
import pytest
import torch

from tests.rankers.by_hand import begin, resumed, same_state, take_rounds
from tests.rankers.small import FEATURES, lists
from tests.reference import boosting as plain
from torchrank import RankBoost, RankingSet, TrainingLists
from torchrank.data import SparseRows
from torchrank.functional import ndcg
from torchrank.rankers.rankboost import stump_scores
from torchrank.solvers.boosting import crossing_masses, pair_masses, paired_lists

CHOICES = [{}, {"bins": None}, {"bins": 8, "alpha": "exact"}, {"pair_weight": "query", "allow_negative": False}]


def fit(train=None, rounds=8, batch_documents=40, **options):
    train = lists(0) if train is None else train
    return RankBoost(train.num_features, rounds=rounds, **options).fit(train, batch_documents=batch_documents)


# ---- against a loop over pairs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (0, {}),
        (1, {}),
        (2, {"pair_weight": "query"}),
        (3, {"allow_negative": False}),
        (4, {"alpha": "exact"}),
        (1, {"alpha": "exact", "pair_weight": "query", "allow_negative": False}),
    ],
    ids=str,
)
@pytest.mark.parametrize("bins", [None, 256, 4])
def test_every_round_is_that_of_a_loop_over_pairs(seed, options, bins):
    x, labels, offsets = plain.draw(seed, grades=2 + seed % 3, real=seed == 1)
    train = RankingSet(torch.tensor(x), torch.tensor(labels), torch.tensor(offsets))
    ranker = fit(train, 12, 25, bins=bins, **options)
    edges = None
    if bins:  # typed again: the distinct values, evenly thinned out
        edges = [np.unique(column) for column in x.T]
        edges = [e if len(e) < bins else e[np.arange(bins - 1) * len(e) // (bins - 1)] for e in edges]
    found, losses, _ = plain.rankboost(x, labels, offsets, 12, edges=edges, **options)
    features, thresholds, alphas, z = (np.array(part) for part in zip(*found, strict=True))
    assert ranker.feature.tolist() == features.tolist() and len(set(features)) > 1
    np.testing.assert_array_equal(ranker.threshold.numpy(), thresholds)
    np.testing.assert_allclose(ranker.alpha.numpy(), alphas, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ranker.log_loss.exp().numpy(), losses, rtol=1e-12)
    np.testing.assert_allclose(ranker.log_loss.exp().numpy(), np.cumprod(z), rtol=1e-12)
    assert (np.diff(losses) < 0).all()


# ---- masses and rules -----------------------------------------------------------------------------------------------


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


def test_potentials_are_those_of_the_last_weights_and_the_training_scores_those_of_the_model():
    ranker, train = RankBoost(FEATURES, bins=None, rounds=8), lists(0)
    begin(ranker, train)
    take_rounds(ranker, 0, 8)
    held = ranker.kept.boosting
    x, labels, offsets = train.x.double().numpy(), train.labels.numpy(), train.offsets.numpy()
    expected = plain.potentials(plain.rankboost(x, labels, offsets, 8)[2], labels, offsets)
    sums = torch.zeros(len(held.paired.pairs)).double().index_add(0, held.paired.lists, held.potentials)
    assert sums.abs().max() < 1e-15 and held.potentials.abs().sum() > 0.1
    kept = torch.isin(torch.repeat_interleave(train.offsets.diff()), torch.tensor(train.pairs.nonzero()[0]))
    np.testing.assert_allclose(held.potentials.numpy(), expected[kept.numpy()], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(held.scores.float(), ranker(train.x, train.offsets)[kept])


# ---- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_batches_change_nothing(options):
    whole, small = (fit(batch_documents=size, **options) for size in (10_000, 25))
    same_state(whole, small, 1e-12)
    assert len(whole.feature) == 8 and whole.log_loss[-1] < whole.log_loss[0] < 0


def test_bins_for_every_value_are_exact():
    x = (4 * lists(0).x).round() / 4
    train = RankingSet(x, lists(0).labels, lists(0).offsets)
    assert max(len(column.unique()) for column in x.T) < 60
    exact, binned, few = (fit(train, bins=bins) for bins in (None, 60, 4))
    for name in ("feature", "alpha", "log_loss"):
        torch.testing.assert_close(getattr(exact, name), getattr(binned, name), rtol=1e-12, atol=1e-12)
    test = lists(2)
    torch.testing.assert_close(exact(x, lists(0).offsets), binned(x, lists(0).offsets))
    assert few.log_loss[-1] > exact.log_loss[-1] and few(test.x, test.offsets).unique().numel() > 4


def test_monotone_features_change_nothing():
    train = lists(0)
    one, cubed = fit(bins=None), fit(RankingSet(train.x**3, train.labels, train.offsets), bins=None)
    for name in ("feature", "alpha", "log_loss"):
        torch.testing.assert_close(getattr(one, name), getattr(cubed, name), rtol=1e-12, atol=1e-12)


def test_one_rule_that_orders_everything_is_repeated_without_overflow():
    x = torch.tensor([[0.0, 0.3], [1.0, 0.1], [0.0, 0.2], [1.0, 0.2]])
    ranker = fit(RankingSet(x, torch.tensor([0.0, 1, 0, 1]), torch.tensor([0, 2, 4])), rounds=70)
    assert set(ranker.feature.tolist()) == {0}
    torch.testing.assert_close(ranker.alpha, torch.full((70,), float(np.arctanh(1 - 1e-10))).double())
    assert ranker.log_loss[-1] == pytest.approx(-ranker.alpha.sum().item()) and ranker.log_loss[-1] < -800
    assert torch.isfinite(ranker(x, torch.tensor([0, 4]))).all()


def test_nothing_to_learn_ends_the_fit():
    train, ranker = lists(0), RankBoost(FEATURES, bins=None)
    begin(ranker, RankingSet(torch.ones_like(train.x), train.labels, train.offsets))
    assert take_rounds(ranker, 0, 8) == 1 and len(ranker.feature) == 0
    assert (ranker(train.x, train.offsets) == 0).all()


def test_learns():
    ranker, val = fit(rounds=40), lists(1)
    assert not ranker.certified
    assert ndcg(ranker(val.x, val.offsets), val.labels, val.offsets, k=10).nanmean() > 0.85


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_a_resumed_fit_adds_the_rules_up_as_before(options):
    """The scores of the rules so far are replayed to the bit, and so are those with exact thresholds."""

    def make():
        return RankBoost(FEATURES, rounds=6, **options)

    whole = make()
    training = begin(whole, lists(0))
    take_rounds(whole, 0, 6)
    cut = make()
    begin(cut, lists(0))
    for number in range(6):
        take_rounds(cut, number, number + 1)
        cut = resumed(cut, make, training)
    same_state(whole, cut)


def test_validation_keeps_the_best_prefix():
    val, whole = lists(1), fit(rounds=30)
    best = RankBoost(FEATURES, rounds=30).fit(lists(0), val, batch_documents=40)
    rounds = len(best.feature)
    assert rounds < 30 and torch.equal(best.alpha, whole.alpha[:rounds])
    values = []
    for t in range(1, 31):
        scores = stump_scores(val.x, whole.feature[:t], whole.threshold[:t], whole.alpha[:t]).float()
        values.append(float(ndcg(scores, val.labels, val.offsets, k=10).nanmean()))
    assert rounds == 1 + int(np.argmax(np.round(values, 6)))


def test_fitted_again_it_starts_over():
    again = fit().fit(lists(5), batch_documents=40)
    same_state(fit(lists(5)), again)


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bins": 1}, "bins must be from 2 to 256, or null for exact thresholds, got 1"),
        ({"bins": 257}, "bins must be from 2 to 256, or null for exact thresholds, got 257"),
        ({"pair_weight": "list"}, "unknown pair_weight='list': choose one of uniform, query"),
        ({"alpha": "newton"}, "unknown alpha='newton': choose one of approximate, exact"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        RankBoost(FEATURES, **given)


def test_exact_thresholds_in_several_processes_are_refused():
    with pytest.raises(ValueError, match=r"there are 2 processes: use model\.bins=256 or trainer=cpu"):
        RankBoost(FEATURES, bins=None).open(TrainingLists(lists(0), world=2))


def test_lists_without_pairs_are_refused():
    train = lists(0)
    with pytest.raises(ValueError, match="no training list has two different labels"):
        fit(RankingSet(train.x, torch.ones_like(train.labels), train.offsets))


def test_other_forms_of_data_are_refused():
    train = lists(0)
    index = torch.arange(len(train.x))
    for given, message in (
        (RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets), "does not take sparse rows"),
        (RankingSet(train.x, train.labels, train.offsets, index=index), "does not take a corpus shared"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(given)
