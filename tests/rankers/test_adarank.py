"""AdaRank as a ranker: rounds, stop rules, resume, checkpoints, laws, refusals.

Its rounds are compared with a loop over lists in tests/golden/test_boosting.py.
"""

import pytest
import torch

import torchrank
from tests.rankers.rounds import check_every_cut, check_every_interrupt, equal_states
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import AdaRank, RankingDataModule, RankingSet
from torchrank.data import SparseRows

CHOICES = [{}, {"measure": "ndcg@5", "ties": "average", "both_directions": True}]


def fit(folder, module=None, rounds=30, **options):
    module = module or data()
    ranker = AdaRank(module.num_features, rounds=rounds, **options)
    trainer(folder, rounds).fit(ranker, datamodule=module)
    return ranker


def one_set(x, labels, offsets):
    train = RankingSet(x, labels, offsets)
    return RankingDataModule.from_sets(train=train, val=train, batch_documents=30)


# ---- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CHOICES, ids=str)
def test_batches_change_nothing(tmp_path, options):
    whole, small = (fit(tmp_path / str(size), data(batch_documents=size), **options) for size in (10_000, 25))
    equal_states(whole, small)
    assert len(whole.feature) > 2


def test_few_columns_at_a_time_change_nothing(tmp_path, monkeypatch):
    whole = fit(tmp_path / "whole", both_directions=True)
    monkeypatch.setattr("torchrank.rankers.adarank.BLOCK", 300)
    equal_states(whole, fit(tmp_path / "blocks", both_directions=True))


def test_the_first_feature_is_the_best_one(tmp_path):
    ranker = fit(tmp_path, rounds=1, measure="ndcg@10", transform=None)
    train = lists(0)
    values = [torchrank.functional.ndcg(x, train.labels, train.offsets, k=10).nanmean().item() for x in train.x.T]
    assert ranker.feature.item() == max(range(FEATURES), key=values.__getitem__)
    assert ranker.train_measure.item() == pytest.approx(max(values), abs=1e-6)


def test_a_negated_feature_can_win(tmp_path):
    train = lists(0)
    x = train.x * torch.tensor([1.0, -1, 1, 1, 1, 1])
    options = {"transform": None, "rounds": 1}
    found = fit(tmp_path / "both", one_set(x, train.labels, train.offsets), both_directions=True, **options)
    one = fit(tmp_path / "one", both_directions=True, **options)
    assert found.feature.item() == one.feature.item() == 1
    torch.testing.assert_close(found.alpha, -one.alpha)
    only = fit(tmp_path / "only", one_set(x, train.labels, train.offsets), **options)
    assert only.feature.item() != 1 and only.alpha.item() > 0


def test_the_order_of_the_file_does_not_count_with_averaged_ties(tmp_path):
    """A constant feature ranks a file in the order of its labels perfectly, if ties keep their order."""
    train = lists(0)
    x = torch.cat([torch.zeros(len(train.x), 1), train.x], 1)
    first = torch.argsort(torch.repeat_interleave(train.offsets.diff()) * 10 - train.labels, stable=True)
    module = one_set(x[first], train.labels[first], train.offsets)
    assert fit(tmp_path / "stable", module, rounds=1).feature.item() == 0
    assert fit(tmp_path / "average", module, rounds=1, ties="average").feature.item() == 2


def test_scores_are_those_of_the_weights(tmp_path):
    ranker, test = fit(tmp_path), lists(2)
    rows = ranker.transform(test.x, test.offsets).double()
    expected = sum(a * rows[:, f] for f, a in zip(ranker.feature, ranker.alpha, strict=True))
    torch.testing.assert_close(ranker(test.x, test.offsets), expected.float())
    again = torchrank.load(tmp_path / "last.ckpt")
    assert torch.equal(again(test.x, test.offsets), ranker(test.x, test.offsets))
    assert not ranker.certified and ranker.measured["val"]["default"]["measures"]["map"] > 0.7


# ---- stop rules -----------------------------------------------------------------------------------------------------


def test_the_published_algorithm_ends_where_it_repeats_itself(tmp_path):
    ranker = fit(tmp_path, exclude_repeat=False)
    assert ranker.converged and not ranker.moved[-1] and ranker.feature[-1] == ranker.feature[-2]
    assert ranker.trainer.current_epoch == len(ranker.feature) < 30


def test_the_repeat_rule_goes_on(tmp_path):
    """A feature that changed nothing is not chosen next."""
    ranker = fit(tmp_path, patience=100)
    still = ~ranker.moved[:-1]
    assert still.any() and (ranker.feature[1:] != ranker.feature[:-1])[still].all()
    assert len(ranker.feature) == 30 and len(ranker.feature.unique()) > 1


def test_patience_ends_a_fit_that_does_not_get_better(tmp_path):
    short, long = (fit(tmp_path / str(patience), patience=patience, rounds=60) for patience in (2, 6))
    for ranker, patience in ((short, 2), (long, 6)):
        values = ranker.train_measure
        assert ranker.converged and values[-patience:].max() < values[:-patience].max() + 1e-5
    assert torch.equal(long.feature[: len(short.feature)], short.feature) and len(short.feature) < len(long.feature)


def test_all_features_left_out_end_the_fit(tmp_path):
    train = lists(0)
    x = train.labels[:, None] * torch.tensor([1.0, 2.0, 3.0])
    ranker = fit(tmp_path, one_set(x, train.labels, train.offsets), patience=100)
    assert ranker.feature.tolist() == [0, 0, 1, 2] and ranker.converged and ranker.trainer.current_epoch == 5


# ---- rounds and checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [*CHOICES, {"exclude_repeat": False}], ids=str)
def test_cut_after_any_round_the_fit_ends_the_same(tmp_path, options):
    check_every_cut(tmp_path, lambda: AdaRank(FEATURES, rounds=4, **options), 4)


def test_an_interrupt_at_any_sum_loses_nothing(tmp_path):
    check_every_interrupt(tmp_path, lambda: AdaRank(FEATURES, rounds=2), 2)


def test_fitted_again_it_starts_anew(tmp_path):
    ranker, other = fit(tmp_path / "one"), RankingDataModule.from_sets(train=lists(5), val=lists(1))
    trainer(tmp_path / "again", 30).fit(ranker, datamodule=other)
    equal_states(ranker, fit(tmp_path / "new", other))


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"measure": "mrr"}, "boosts map or ndcg, with or without a cut-off"),
        ({"measure": "ndgc"}, "ndgc"),
        ({"ties": "expected"}, "unknown ties='expected': choose one of stable, average"),
        ({"patience": 0}, "patience=0 has to be 1 at least"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        AdaRank(FEATURES, **given)


def test_lists_without_relevant_documents_are_refused(tmp_path):
    train = lists(0)
    with pytest.raises(ValueError, match="no training list has a relevant document"):
        fit(tmp_path, one_set(train.x, torch.zeros_like(train.labels), train.offsets))


def test_other_forms_of_data_are_refused(tmp_path):
    train = lists(0)
    given = RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets)
    with pytest.raises(ValueError, match="AdaRank does not take sparse rows"):
        fit(tmp_path, RankingDataModule.from_sets(train=given, val=given))
