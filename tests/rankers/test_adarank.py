"""AdaRank against a loop over lists, its stop rules, laws, refusals."""

import numpy as np
import pytest
import torch

from tests.rankers.by_hand import begin, resumed, same_state, take_rounds
from tests.rankers.small import FEATURES, lists
from tests.reference import boosting as plain
from torchrank import AdaRank, RankingSet
from torchrank.data import SparseRows
from torchrank.functional import average_precision, ndcg

CHOICES = [{}, {"measure": "ndcg@5", "ties": "average", "both_directions": True}]


def fit(train=None, rounds=30, batch_documents=40, **options):
    train = lists(0) if train is None else train
    return AdaRank(train.num_features, rounds=rounds, **options).fit(train, batch_documents=batch_documents)


# ---- against a loop over lists --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (0, {"measure": "map"}),
        (1, {"measure": "ndcg@3"}),
        (2, {"measure": "map", "both_directions": True}),
        (3, {"measure": "ndcg@10", "ties": "average", "both_directions": True}),
        (4, {"measure": "map", "ties": "average"}),
        (5, {"measure": "map", "exclude_repeat": False, "both_directions": True}),
        (6, {"measure": "ndcg@3", "exclude_repeat": False}),
    ],
    ids=str,
)
def test_every_round_is_that_of_a_loop_over_lists(seed, options):
    """Up to its end: the stop rules are part of what is compared."""
    x, labels, offsets = plain.draw(seed, longest=5)
    train = RankingSet(torch.tensor(x), torch.tensor(labels), torch.tensor(offsets))
    ranker = fit(train, 30, 25, transform=None, patience=12, **options)
    found = plain.adarank(x, labels, offsets, 30, patience=12, **options)
    columns, alphas, means = (np.array(part) for part in zip(*found, strict=True))
    assert (ranker.feature + 5 * (ranker.alpha < 0)).tolist() == columns.tolist()
    np.testing.assert_allclose(ranker.alpha.abs().numpy(), alphas, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ranker.train_measure.numpy(), means, rtol=1e-12)
    assert len(found) < 30 and ranker.converged
    assert len(set(columns)) > 1 or not options.get("exclude_repeat", True)


@pytest.mark.parametrize("k", [None, 1, 3])
def test_average_precision_over_all_orders_of_ties(k):
    x, labels, offsets = plain.draw(3, longest=7)
    scores = x[:, 0]
    found = average_precision(torch.tensor(scores), torch.tensor(labels), torch.tensor(offsets), k=k, ties="average")
    expected = plain.quality(scores, labels, offsets, "map" if k is None else f"map@{k}", "average")
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


# ---- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_batches_change_nothing(options):
    whole, small = (fit(batch_documents=size, **options) for size in (10_000, 25))
    same_state(whole, small, 1e-12)
    assert len(whole.feature) > 2


def test_few_columns_at_a_time_change_nothing(monkeypatch):
    whole = fit(both_directions=True)
    monkeypatch.setattr("torchrank.functional.ragged.CACHED_SCORES", 300)
    same_state(whole, fit(both_directions=True), 1e-12)


def test_the_first_feature_is_the_best_one():
    ranker, train = fit(rounds=1, measure="ndcg@10", transform=None), lists(0)
    values = [ndcg(x, train.labels, train.offsets, k=10).nanmean().item() for x in train.x.T]
    assert ranker.feature.item() == max(range(FEATURES), key=values.__getitem__)
    assert ranker.train_measure.item() == pytest.approx(max(values), abs=1e-6)


def test_a_negated_feature_can_win():
    train = lists(0)
    turned = RankingSet(train.x * torch.tensor([1.0, -1, 1, 1, 1, 1]), train.labels, train.offsets)
    options = {"transform": None, "rounds": 1}
    found, one = fit(turned, both_directions=True, **options), fit(both_directions=True, **options)
    assert found.feature.item() == one.feature.item() == 1
    torch.testing.assert_close(found.alpha, -one.alpha)
    only = fit(turned, **options)
    assert only.feature.item() != 1 and only.alpha.item() > 0


def test_the_order_of_the_file_does_not_count_with_averaged_ties():
    """A constant feature ranks a file in the order of its labels perfectly, if ties keep their order."""
    train = lists(0)
    x = torch.cat([torch.zeros(len(train.x), 1), train.x], 1)
    first = torch.argsort(torch.repeat_interleave(train.offsets.diff()) * 10 - train.labels, stable=True)
    ordered = RankingSet(x[first], train.labels[first], train.offsets)
    assert fit(ordered, rounds=1).feature.item() == 0
    assert fit(ordered, rounds=1, ties="average").feature.item() == 2


def test_scores_are_those_of_the_weights():
    ranker, test = fit(), lists(2)
    rows = ranker.transform(test.x, test.offsets).double()
    expected = sum(a * rows[:, f] for f, a in zip(ranker.feature, ranker.alpha, strict=True))
    torch.testing.assert_close(ranker(test.x, test.offsets), expected.float())
    val = lists(1)
    assert average_precision(ranker(val.x, val.offsets), val.labels, val.offsets).nanmean() > 0.7
    assert not ranker.certified


@pytest.mark.parametrize("options", [*CHOICES, {"exclude_repeat": False}], ids=str)
def test_a_resumed_fit_adds_the_features_up_as_before(options):
    """Also where the features that changed nothing lately are left out."""

    def make():
        return AdaRank(FEATURES, rounds=8, **options)

    whole = make()
    training = begin(whole, lists(0))
    take_rounds(whole, 0, 8)
    cut = make()
    begin(cut, lists(0))
    for number in range(8):
        take_rounds(cut, number, number + 1)
        cut = resumed(cut, make, training)
    same_state(whole, cut)


def test_fitted_again_it_starts_over():
    same_state(fit(lists(5)), fit().fit(lists(5), batch_documents=40))


# ---- stop rules -----------------------------------------------------------------------------------------------------


def test_the_published_algorithm_ends_where_it_repeats_itself():
    ranker = fit(exclude_repeat=False)
    assert ranker.converged and not ranker.moved[-1] and ranker.feature[-1] == ranker.feature[-2]
    assert len(ranker.feature) < 30


def test_the_repeat_rule_goes_on():
    """A feature that changed nothing is not chosen next."""
    ranker = fit(patience=100)
    still = ~ranker.moved[:-1]
    assert still.any() and (ranker.feature[1:] != ranker.feature[:-1])[still].all()
    assert len(ranker.feature) == 30 and len(ranker.feature.unique()) > 1


def test_patience_ends_a_fit_that_does_not_get_better():
    short, long = (fit(patience=patience, rounds=60) for patience in (2, 6))
    for ranker, patience in ((short, 2), (long, 6)):
        values = ranker.train_measure
        assert ranker.converged and values[-patience:].max() < values[:-patience].max() + 1e-5
    assert torch.equal(long.feature[: len(short.feature)], short.feature) and len(short.feature) < len(long.feature)


def test_all_features_left_out_end_the_fit():
    train, ranker = lists(0), AdaRank(3, patience=100)
    begin(ranker, RankingSet(train.labels[:, None] * torch.tensor([1.0, 2.0, 3.0]), train.labels, train.offsets))
    assert take_rounds(ranker, 0, 30) == 5 and ranker.feature.tolist() == [0, 0, 1, 2]


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"measure": "mrr"}, r"measure must be map or ndcg, with or without a cut-off \(ndcg@10\), got 'mrr'"),
        ({"measure": "ndgc"}, "ndgc"),
        ({"ties": "expected"}, "unknown ties='expected': choose one of stable, average"),
        ({"patience": 0}, "patience must be >= 1, got 0"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        AdaRank(FEATURES, **given)


def test_lists_without_relevant_documents_are_refused():
    train = lists(0)
    with pytest.raises(ValueError, match="no training list has a relevant document"):
        fit(RankingSet(train.x, torch.zeros_like(train.labels), train.offsets))


def test_other_forms_of_data_are_refused():
    train = lists(0)
    with pytest.raises(ValueError, match="AdaRank does not take sparse rows"):
        fit(RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets))
