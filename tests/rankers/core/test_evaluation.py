"""Measures over batches and processes: `RankingMetrics` against the transcriptions, `SplitMeasures` and
`RankingEvaluation` against `evaluate`."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.multiprocessing

from tests.rankers.small import FEATURES, data, lists, trainer
from tests.reference import measures as reference
from torchrank import NDCG, DataError, LambdaRank, ListNet, RankingEvaluation, RankingMetrics, RankingSet
from torchrank.data.relevance import Judged, SameClass
from torchrank.functional import Lists, describe, evaluate, knn_error
from torchrank.rankers.core.evaluation import MEASURES as DEFAULTS
from torchrank.rankers.core.evaluation import SplitMeasures, top_grade

MEASURES = ["ndcg@1", "ndcg@5", "ndcg", "map", "mrr", "p@5", "auc"]


def values_of(scores, labels, offsets):
    """(Q,) per measure, by the transcriptions; nan is left out of the mean."""
    return {
        "ndcg@1": reference.per_list(reference.ndcg, scores, labels, offsets, k=1),
        "ndcg@5": reference.per_list(reference.ndcg, scores, labels, offsets, k=5),
        "ndcg": reference.per_list(reference.ndcg, scores, labels, offsets),
        "map": reference.per_list(reference.average_precision, scores, labels, offsets),
        "mrr": reference.per_list(reference.reciprocal_rank, scores, labels, offsets),
        "p@5": reference.per_list(reference.precision, scores, labels, offsets, k=5),
        "auc": reference.per_list(reference.auc, scores, labels, offsets),
    }


def pieces(scores, labels, offsets, cuts):
    """The lists cuts[i]:cuts[i+1] as batches of their own, with their positions; equal cuts give an empty batch."""
    for first, last in pairwise(cuts):
        begin, end = offsets[first], offsets[last]
        yield (
            torch.tensor(scores[begin:end]),
            torch.tensor(labels[begin:end]),
            torch.tensor(offsets[first : last + 1] - begin),
            torch.arange(first, last),
        )


def fill(measures, batch, cuts):
    for *part, query in pieces(*batch, cuts):
        measures.update(*part, query=query)
    return measures


def check(measures, batch):
    """Means, values of every list, and numbers of lists."""
    means, kept = measures.compute(), measures.per_query()
    assert list(means) == list(kept) == MEASURES
    for name, values in values_of(*batch).items():
        assert kept[name].shape == values.shape
        np.testing.assert_allclose(kept[name].numpy(), values, rtol=0, atol=1e-12, err_msg=name)
        assert float(means[name]) == pytest.approx(np.nanmean(values), abs=1e-12), name
    empty = sum(not np.any(batch[1][block] >= 1) for block in reference.blocks(batch[2]))
    assert (measures.lists, measures.empty) == (len(batch[2]) - 1, empty)


CUTS = {
    "one batch": [0, 60],
    "one list at a time": list(range(61)),
    "uneven, some empty": [0, 0, 1, 7, 7, 40, 59, 60, 60],
}


# --- RankingMetrics ---


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_means_do_not_depend_on_the_batches(cuts):
    batch = reference.random_batch(50)
    measures = RankingMetrics(MEASURES)
    for scores, labels, offsets, _ in pieces(*batch, cuts):
        measures.update(scores, labels, offsets)
    result = measures.compute()
    assert list(result) == MEASURES
    for name, values in values_of(*batch).items():
        assert float(result[name]) == pytest.approx(np.nanmean(values), abs=1e-12), name


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_values_of_each_query_stand_at_its_position(cuts):
    """Batches arrive in reverse; nan where a list has no value."""
    batch = reference.random_batch(51)
    measures = RankingMetrics(MEASURES, num_queries=60)
    for *part, query in reversed(list(pieces(*batch, cuts))):
        measures.update(*part, query=query)
    check(measures, batch)


def test_queries_never_seen_are_nan():
    scores, labels, offsets = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]), torch.tensor([0, 2])
    measures = RankingMetrics(["ndcg", "map"], num_queries=4)
    measures.update(scores, labels, offsets, query=torch.tensor([2]))
    np.testing.assert_array_equal(measures.per_query()["ndcg"].numpy(), [np.nan, np.nan, 1.0, np.nan])
    assert float(measures.compute()["map"]) == 1.0


def test_letor_counts_lists_without_relevant_entries_as_zero():
    # One perfect list, one with nothing relevant: LETOR averages 1 and 0, the default leaves the second out.
    batch = torch.tensor([2.0, 1.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 2, 4])
    means = {}
    for name in ("default", "letor", "lightgbm"):
        measures = RankingMetrics(["ndcg@2", "map"], name)
        measures.update(*batch)
        means[name] = {key: float(value) for key, value in measures.compute().items()}
    assert means["default"] == {"ndcg@2": 1.0, "map": 1.0}
    assert means["letor"] == {"ndcg@2": 0.5, "map": 0.5}
    assert means["lightgbm"] == {"ndcg@2": 1.0, "map": 1.0}


@pytest.mark.parametrize("name", ["default", "letor", "lightgbm"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_lists_and_empty_lists_are_counted(cuts, name):
    """Whatever a convention makes of them: all lists without a relevant entry, those without any entry among them."""
    batch = reference.random_batch(55)
    measures = RankingMetrics(["ndcg@5", "map"], name)
    for scores, labels, offsets, _ in pieces(*batch, cuts):
        measures.update(scores, labels, offsets)
    empty = sum(not np.any(batch[1][block] >= 1) for block in reference.blocks(batch[2]))
    assert 0 < empty < 60
    assert (measures.lists, measures.empty) == (60, empty)


def test_threshold_and_max_label_reach_the_measures():
    batch = reference.random_batch(52)
    measures = RankingMetrics(["map", "err@5"], threshold=2, max_label=4)
    measures.update(*(torch.tensor(part) for part in batch))
    expected = reference.per_list(reference.average_precision, *batch, threshold=2)
    assert float(measures.compute()["map"]) == pytest.approx(np.nanmean(expected), abs=1e-12)
    expected = reference.per_list(reference.err, *batch, k=5, max_label=4)
    assert float(measures.compute()["err@5"]) == pytest.approx(np.nanmean(expected), abs=1e-12)


def test_reset_forgets():
    first, second = reference.random_batch(53), reference.random_batch(54)
    measures = fill(RankingMetrics(MEASURES, num_queries=60), first, [0, 60])
    measures.reset()
    check(fill(measures, second, [0, 60]), second)


def test_float32_scores_lose_nothing_in_the_sum():
    """100,000 lists whose NDCG is 1/log2(3): a float32 running sum would drift in the fifth digit."""
    count, value = 100_000, 1 / np.log2(3)
    measures = RankingMetrics(["ndcg"])
    scores, labels = torch.tensor([1.0, 2.0]).repeat(count // 100), torch.tensor([1.0, 0.0]).repeat(count // 100)
    for _ in range(100):
        measures.update(scores, labels, torch.arange(0, 2 * (count // 100) + 1, 2))
    assert float(measures.compute()["ndcg"]) == pytest.approx(value, abs=5e-8)


def test_nothing_but_empty_lists_has_no_mean():
    measures = RankingMetrics(["ndcg", "map"])
    measures.update(torch.zeros(3), torch.zeros(3), torch.tensor([0, 2, 2, 3]))
    assert all(np.isnan(float(value)) for value in measures.compute().values())


def check_indexes(batch, rank, world, everything):
    """Entries dealt to the processes, so that those of a query are on all of them; or all are on the last one."""
    scores, labels, offsets = (torch.tensor(part) for part in batch)
    scores = scores + torch.rand(len(scores), generator=torch.Generator().manual_seed(0))  # no ties
    query = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    mine = slice(rank, None, world) if everything else slice(0, len(scores) if rank == world - 1 else 0)
    metric = NDCG(5)
    if everything or rank == world - 1:
        metric.update(scores[mine], labels[mine], indexes=query[mine])
    expected = np.nanmean(reference.per_list(reference.ndcg, scores, labels, offsets, k=5))
    for _ in range(2):
        assert abs(metric.compute().item() - expected) < 1e-6


def _process(rank, world, file):
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    batch = reference.random_batch(56)
    shares = [[0, 5], [5, 5], [5, 30, 60]]  # one process has nothing
    measures = RankingMetrics(MEASURES, num_queries=60)
    check(fill(measures, batch, shares[rank]), batch)  # every process holds the whole
    measures.reset()
    check(fill(measures, batch, shares[world - 1 - rank]), batch)
    for everything in (True, False):
        check_indexes(batch, rank, world, everything)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_exact_over_processes(tmp_path):
    torch.multiprocessing.spawn(_process, (3, tmp_path / "meet"), nprocs=3)


def test_update_does_not_synchronise():
    measures = RankingMetrics(MEASURES, num_queries=60).to("meta")
    scores, labels, offsets = map(torch.tensor, reference.random_batch(57))
    lists = Lists.of(offsets, labels=labels).to("meta")
    measures.update(scores.to("meta"), labels.to("meta"), lists, query=torch.arange(60, device="meta"))
    assert measures.sums.device.type == "meta"


def test_states_stay_in_double_precision_when_the_ranker_is_cast():
    ranker = torch.nn.Linear(1, 1)
    ranker.measures = RankingMetrics(MEASURES)
    for cast in (torch.nn.Module.half, torch.nn.Module.bfloat16, lambda module: module.to(torch.float32)):
        assert cast(ranker).measures.sums.dtype == torch.float64


def test_a_list_measured_twice_is_an_error():
    batch = reference.random_batch(58)
    measures = fill(fill(RankingMetrics(MEASURES, num_queries=60), batch, [0, 60]), batch, [4, 5])
    with pytest.raises(ValueError, match="list 4 was measured 2 times"):
        measures.compute()


def test_refusals():
    batch = [torch.tensor(part) for part in reference.random_batch(59)]
    with pytest.raises(ValueError, match="unknown measure 'ndgc@10'"):
        RankingMetrics(["ndgc@10"])
    with pytest.raises(ValueError, match="does not define"):
        RankingMetrics(["mrr"], "letor")
    with pytest.raises(ValueError, match="err needs max_label"):
        RankingMetrics(["err@10"])
    with pytest.raises(ValueError, match="give query="):
        RankingMetrics(MEASURES, num_queries=60).update(*batch)
    with pytest.raises(ValueError, match="num_queries="):
        RankingMetrics(MEASURES).per_query()
    with pytest.raises(ValueError, match="NaN"):
        RankingMetrics(MEASURES).update(torch.tensor([torch.nan]), torch.tensor([1]), torch.tensor([0, 1]))


def test_nan_scores_found_late_are_an_error_too():
    """On a GPU `update` does not read them; the flag it leaves is read by `compute`."""
    measures = RankingMetrics(MEASURES)
    measures.update(*(torch.tensor(part) for part in reference.random_batch(60)))
    measures.totals[2] += 1
    with pytest.raises(ValueError, match="NaN in 1 batches"):
        measures.compute()


# --- SplitMeasures ---


def same(found, expected):
    """`found` is what was concluded in one convention, `expected` what `evaluate` says of every list."""
    assert list(found["measures"]) == list(found["per_query"]) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found["per_query"][name], values, rtol=0, atol=1e-15, err_msg=name)
        assert found["measures"][name] == pytest.approx(np.nanmean(values), abs=1e-14, nan_ok=True), name


def concluded(measures, split, scores):
    """After all lists of the split came in batches of three."""
    for first in range(0, len(split), 3):
        begin, end = split.offsets[first], split.offsets[min(first + 3, len(split))]
        measures.update(scores[begin:end], split[first : first + 3])
    (found,) = measures.conclude()
    return found


def test_every_convention_measures_what_it_defines():
    split = lists(3)
    scores = split.x[:, 1]
    wanted, conventions = ["ndcg@10", "ndcg", "map", "mrr@5", "auc"], ["default", "letor", "sklearn", "lightgbm"]
    measures = SplitMeasures(wanted, conventions, split)
    for _ in range(2):  # what was concluded starts over
        found = concluded(measures, split, scores)
        assert list(found) == conventions
        for name, defined in zip(conventions, (wanted, wanted[:3], wanted[:2], wanted[:3]), strict=True):
            same(found[name], evaluate(scores, split.labels, split.offsets, measures=defined, convention=name))
            assert found[name]["text"] == describe(name)
            assert found[name]["lists"] == 12 and 0 <= found[name]["empty"] < 12


def test_relevance_and_top_grade_are_those_of_the_data():
    flat = lists(4)
    split = RankingSet(flat.x, flat.labels, flat.offsets, relevant_from=2, max_label=4)
    scores, batch = split.x[:, 1], (split.x[:, 1], split.labels, split.offsets)
    found = concluded(SplitMeasures(["map", "p@3", "err@5"], ["default", "letor"], split), split, scores)
    same(found["default"], evaluate(*batch, measures=["map", "p@3", "err@5"], max_label=4))
    same(found["letor"], evaluate(*batch, measures=["map", "p@3"], convention="letor", threshold=2))
    assert found["letor"]["text"] == describe("letor", threshold=2)
    given = concluded(SplitMeasures(["err"], lists=flat, max_label=3), flat, scores)
    same(given["default"], evaluate(*batch, measures=["err"], max_label=3))
    with pytest.raises(ValueError, match="err needs max_label"):
        SplitMeasures(["err"], lists=flat)


def test_trec_orders_equal_scores_by_the_ids_of_the_data():
    flat = lists(5)
    ids = [f"d{number}" for number in np.random.default_rng(5).permutation(len(flat.x))]
    split = RankingSet(flat.x, flat.labels, flat.offsets, document_ids=ids)
    scores = split.x[:, 1].round()
    descending = [
        sorted(ids[block], reverse=True).index(name) for block in reference.blocks(split.offsets) for name in ids[block]
    ]
    found = concluded(SplitMeasures(["ndcg@3", "mrr"], ["trec"], split), split, scores)
    batch = scores, split.labels, split.offsets
    expected = evaluate(*batch, measures=["ndcg@3", "mrr"], convention="trec", tiebreak=torch.tensor(descending))
    same(found["trec"], expected)
    stable = evaluate(*batch, measures=["ndcg@3", "mrr"], convention="trec", tiebreak=torch.arange(len(ids)))
    assert any(not torch.equal(stable[name], values) for name, values in expected.items())


def test_a_corpus_is_measured_without_an_entry_for_every_document_and_query(monkeypatch):
    rng = np.random.default_rng(8)
    grades, ids = np.array([0.5, 2.5, 1.5, 1.0]), [f"d{number}" for number in rng.permutation(30)]
    known = Judged.make(np.array([3, 9, 4, 1]), grades, np.array([2, 1, 1]), 30)
    split = RankingSet(torch.zeros(30, 2), known, document_ids=ids)
    scores = torch.from_numpy(rng.normal(size=90)).round()
    place = torch.tensor([sorted(ids, reverse=True).index(name) for name in ids]).repeat(3)
    expected = evaluate(scores, split.labels, split.offsets, measures=["ndcg@3"], convention="trec", tiebreak=place)
    for name in ("tiebreak", "labels", "index"):
        monkeypatch.setattr(RankingSet, name, property(lambda self: pytest.fail("made for all entries")))
    assert top_grade(split) == 2.5
    same(concluded(SplitMeasures(["ndcg@3"], ["trec"], split), split, scores)["trec"], expected)


def test_classes_of_the_nearest_points_vote():
    rng = np.random.default_rng(6)
    x, queries = (torch.tensor(rng.normal(size=(count, 2)), dtype=torch.float32) for count in (30, 7))
    kinds, own = (torch.tensor(rng.integers(0, 3, count)) for count in (30, 7))
    split = RankingSet(x, SameClass(own, kinds, ["a", "b", "c"]), queries=queries)
    scores = -torch.cdist(queries, x).flatten()
    found = concluded(SplitMeasures(["knn_error@3", "map"], lists=split), split, scores)
    errors = knn_error(scores, kinds.repeat(7), torch.arange(0, 211, 30), own, k=3)
    assert found["default"]["per_query"]["knn_error@3"].tolist() == errors.tolist()
    with pytest.raises(DataError, match="knn_error@k lets the classes of the nearest points vote"):
        SplitMeasures(["knn_error@3"], lists=lists(0))


def test_without_lists_there_are_no_values_per_list():
    split = lists(7)
    measures = SplitMeasures(["ndcg@5"])
    found = concluded(measures, split, split.x[:, 1])["default"]
    expected = evaluate(split.x[:, 1], split.labels, split.offsets, measures=["ndcg@5"])["ndcg@5"]
    assert "per_query" not in found
    assert found["measures"]["ndcg@5"] == pytest.approx(float(expected.nanmean()), abs=1e-14)
    measures.update(split.x[:, 3], split[:])
    measures.reset()
    assert concluded(measures, split, split.x[:, 1])["default"] == found


# --- RankingEvaluation ---


def test_names_of_what_is_logged():
    assert RankingEvaluation().names() == [f"val/{name}" for name in DEFAULTS]
    evaluation = RankingEvaluation(["ndcg@10", "mrr@5"], ["default", "letor", "trec"])
    assert evaluation.names("test") == ["test/ndcg@10", "test/mrr@5", "test/letor/ndcg@10", "test/trec/ndcg@10"]
    assert RankingEvaluation(["ndcg@5-"], ["xgboost", "default"]).names() == ["val/ndcg@5-"]


@pytest.mark.parametrize("batch_documents", [1, 40, 10_000])
def test_what_is_logged_and_kept_is_measured_on_the_scores_of_the_ranker(tmp_path, batch_documents):
    wanted, conventions = ["ndcg@10", "map"], ["letor", "default"]
    evaluation = RankingEvaluation(wanted, conventions)
    ranker = LambdaRank(FEATURES)
    ranker.fit(lists(0), epochs=2)
    runner = trainer(tmp_path, callbacks=[evaluation])
    module = data(batch_documents)
    runner.validate(ranker, datamodule=module, verbose=False)
    logged = dict(runner.callback_metrics)
    (tested,) = runner.test(ranker, datamodule=module, verbose=False)
    assert set(evaluation.measured) == {"val", "test"}
    for split, held, values in (("val", lists(1), logged), ("test", lists(2), tested)):
        assert set(values) == set(evaluation.names(split))
        with torch.no_grad():
            scores = ranker(held.x, held.offsets)
        for convention in conventions:
            found = evaluation.measured[split][convention]
            expected = evaluate(scores, held.labels, held.offsets, measures=wanted, convention=convention)
            same(found, expected)
            assert (found["lists"], found["text"]) == (12, describe(convention))
            for name, each in expected.items():
                shown = f"{split}/{name}" if convention == "letor" else f"{split}/{convention}/{name}"
                assert float(values[shown]) == pytest.approx(float(each.nanmean()), abs=1e-6)


def test_a_ranker_brings_the_default_measures_where_the_trainer_has_none(tmp_path):
    ranker = ListNet(FEATURES, rounds=3)
    ranker.fit(lists(0))
    (tested,) = trainer(tmp_path).test(ranker, datamodule=data(), verbose=False)
    held = lists(2)
    with torch.no_grad():
        expected = evaluate(ranker(held.x, held.offsets), held.labels, held.offsets)
    assert tested == {
        f"test/{name}": pytest.approx(float(values.nanmean()), abs=1e-6) for name, values in expected.items()
    }


@pytest.mark.parametrize("every_round", [False, True])
def test_certified_fits_are_validated_at_their_end_or_in_every_round(tmp_path, every_round):
    evaluation, seen = RankingEvaluation(["ndcg@10"], every_round=every_round), []

    class Counted(ListNet):
        def on_validation_epoch_end(self):
            seen.append(self.trainer.current_epoch)

    ranker = Counted(FEATURES, rounds=4)
    assert ranker.certified
    trainer(tmp_path, 4, monitor=None, callbacks=[evaluation]).fit(ranker, datamodule=data())
    assert len(seen) == (4 if every_round else 1)
    held = lists(1)
    with torch.no_grad():
        expected = evaluate(ranker(held.x, held.offsets), held.labels, held.offsets, measures=["ndcg@10"])
    same(evaluation.measured["val"]["default"], expected)
