"""Single measures as metrics: against torchmetrics' own and `evaluate`, and in everything that takes a metric."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule
from torchmetrics import BootStrapper, MetricCollection, MinMaxMetric, retrieval

import torchrank
from tests.laws.elsewhere import Elsewhere
from tests.rankers.small import FEATURES, data, lists, trainer
from tests.reference import measures as reference
from torchrank import NDCG, HitRate, MeanAveragePrecision, MeanReciprocalRank, Precision, RankingMetrics, Recall
from torchrank.functional import evaluate, evaluate_ranks

SINGLE = {
    "ndcg": lambda: NDCG(),
    "ndcg@5": lambda: NDCG(5),
    "dcg@5": lambda: torchrank.DCG(k=5),
    "mean_ndcg": lambda: torchrank.MeanNDCG(),
    "map": lambda: MeanAveragePrecision(),
    "map@3": lambda: MeanAveragePrecision(k=3),
    "mrr": lambda: MeanReciprocalRank(),
    "mrr@2": lambda: MeanReciprocalRank(2),
    "p@5": lambda: Precision(5),
    "recall@5": lambda: Recall(5),
    "hit@2": lambda: HitRate(2),
    "err@5": lambda: torchrank.ExpectedReciprocalRank(4, 5),
    "auc": lambda: torchrank.AUC(),
    "all_pairs_error": lambda: torchrank.AllPairsError(),
    "domination_error": lambda: torchrank.DominationError(),
}
every = pytest.mark.parametrize("name", SINGLE)


def batch(seed, grades=5, lists=20, longest=9):
    """Random lists with ties, empty ones among them, and the query of each entry."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest, lists)
    offsets = torch.tensor(np.concatenate([[0], lengths.cumsum()]))
    scores = torch.tensor(rng.integers(0, 12, lengths.sum()) / 4, dtype=torch.float32)
    labels = torch.tensor(rng.integers(0, grades, lengths.sum()))
    return scores, labels, offsets, torch.tensor(rng.permutation(1000)[:lists]).repeat_interleave(offsets.diff())


def mean(name, scores, labels, offsets):
    return float(evaluate(scores, labels, offsets, measures=[name], max_label=4)[name].nanmean())


def test_every_metric_is_exported():
    names = {name for name, room in torchrank.EXPORTS.items() if room == "torchrank.metrics"}
    assert names == {"RankingMetrics", *(type(make()).__name__ for make in SINGLE.values())}


@every
def test_means_over_batches(name):
    metric, values = SINGLE[name](), []
    for seed in range(3):
        scores, labels, offsets, _ = batch(seed)
        expected = mean(name, scores, labels, offsets)
        found = metric(scores, labels, offsets)
        assert found.shape == () and found.dtype == torch.float32
        assert found.item() == pytest.approx(expected, abs=1e-6)
        given = {"measures": [name], "max_label": 4}
        values.append(evaluate(scores, labels, offsets, **given)[name])
    assert metric.compute().item() == pytest.approx(float(torch.cat(values).nanmean()), abs=1e-6)
    assert metric.lists == 60
    metric.reset()
    metric.update(*batch(3)[:3])
    assert metric.compute().item() == pytest.approx(mean(name, *batch(3)[:3]), abs=1e-6)


@every
def test_indexes_in_any_order_and_over_batches(name):
    """Entries of a query lie anywhere, in one update or in several; ties are in the order of arrival."""
    scores, labels, offsets, indexes = batch(4)
    scores = scores + torch.rand(len(scores), generator=torch.Generator().manual_seed(0)) / 100
    expected = mean(name, scores, labels, offsets)
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(1))
    whole, parts = SINGLE[name](), SINGLE[name]()
    whole.update(scores[order], labels[order], indexes=indexes[order])
    for part in order.split(7):
        parts(scores[part], labels[part], indexes=indexes[part])
    assert whole.compute().item() == pytest.approx(expected, abs=1e-6)
    assert parts.compute().item() == pytest.approx(expected, abs=1e-6)
    assert parts.lists == whole.lists == int((offsets.diff() > 0).sum())  # an empty list has no index


THEIRS = {
    "ndcg": (NDCG(convention="sklearn"), retrieval.RetrievalNormalizedDCG()),
    "ndcg@3": (NDCG(3, "sklearn"), retrieval.RetrievalNormalizedDCG(top_k=3)),
    "map": (MeanAveragePrecision(), retrieval.RetrievalMAP(empty_target_action="skip")),
    "mrr": (MeanReciprocalRank(), retrieval.RetrievalMRR(empty_target_action="skip")),
    "mrr@3": (MeanReciprocalRank(3), retrieval.RetrievalMRR(empty_target_action="skip", top_k=3)),
    "p@3": (Precision(3), retrieval.RetrievalPrecision(empty_target_action="skip", top_k=3)),
    "recall@3": (Recall(3), retrieval.RetrievalRecall(empty_target_action="skip", top_k=3)),
    "hit@2": (HitRate(2), retrieval.RetrievalHitRate(empty_target_action="skip", top_k=2)),
    "auc": (torchrank.AUC(), retrieval.RetrievalAUROC(empty_target_action="skip")),
}


@pytest.mark.peers
@pytest.mark.parametrize("name", THEIRS)
def test_torchmetrics_finds_the_same(name):
    ours, theirs = copy.deepcopy(THEIRS[name])
    for seed in range(3):
        scores, labels, _, indexes = batch(seed, grades=5 if "ndcg" in name else 2)
        if name == "auc":  # where one class is missing, theirs has no value but counts 0
            keep = [q for q in indexes.unique() if len(labels[indexes == q].unique()) == 2]
            chosen = torch.isin(indexes, torch.stack(keep))
            scores, labels, indexes = scores[chosen], labels[chosen], indexes[chosen]
        if "ndcg" not in name and name != "auc":  # theirs sorts equal scores in no particular order
            scores = torch.rand(len(scores), generator=torch.Generator().manual_seed(seed))
        order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
        for metric in (ours, theirs):
            metric.update(scores[order], labels[order], indexes=indexes[order] + 1000 * seed)
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), abs=1e-6)


def test_a_list_in_each_row():
    rng = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(6, 8, generator=rng), torch.randint(0, 3, (6, 8), generator=rng)
    mask = torch.rand(6, 8, generator=rng) < 0.7
    metric = NDCG(5)
    expected = reference.per_list(reference.ndcg, scores.flatten(), labels.flatten(), range(0, 49, 8), k=5)
    assert metric(scores, labels).item() == pytest.approx(np.nanmean(expected), abs=1e-6)
    expected = [reference.ndcg(s[m].tolist(), y[m].tolist(), k=5) for s, y, m in zip(scores, labels, mask, strict=True)]
    assert metric(scores, labels, mask=mask).item() == pytest.approx(np.nanmean(expected), abs=1e-6)


def test_arrays_groups_and_query_ids():
    scores, labels, offsets, _ = batch(5)
    expected = mean("ndcg@5", scores, labels, offsets)
    names = [f"q{number}" for number, size in enumerate(offsets.diff().tolist()) for _ in range(size)]
    for given in ({"offsets": offsets.numpy()}, {"group": offsets.diff().tolist()}, {"qid": names}):
        assert NDCG(5)(scores.numpy(), labels.tolist(), **given).item() == pytest.approx(expected, abs=1e-6)


# --- in everything that takes a metric ---


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(FEATURES, 1, bias=False)
        self.ndcg, self.map = NDCG(10), MeanAveragePrecision()
        self.many = MetricCollection({"mrr": MeanReciprocalRank(), "p5": Precision(5)}, prefix="val/")

    def scores(self, batch):
        return self.net(batch.x.to(self.net.weight.dtype)).squeeze(-1)

    def training_step(self, batch, batch_index):
        return -self.scores(batch).mean() * 0

    def validation_step(self, batch, batch_index):
        scores = self.scores(batch)
        self.ndcg.update(scores, batch.labels, batch.offsets)
        self.log("val/ndcg@10", self.ndcg)
        self.map(scores, batch.labels, batch.offsets)
        self.log("val/map", self.map, on_epoch=True)
        self.many.update(scores, batch.labels, batch.offsets)
        self.log_dict(self.many)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_logged_by_a_lightning_module(tmp_path):
    torch.manual_seed(0)
    module, runner = Module(), trainer(tmp_path, monitor=None)
    found = runner.validate(module, datamodule=data(40), verbose=False)[0]
    val = lists(1)
    scores = module.scores(val[:]).detach()
    expected = evaluate(scores, val.labels, val.offsets, measures=["ndcg@10", "map", "mrr", "p@5"])
    names = {"val/ndcg@10": "ndcg@10", "val/map": "map", "val/mrr": "mrr", "val/p5": "p@5"}
    assert found == {name: pytest.approx(float(expected[own].nanmean()), abs=1e-6) for name, own in names.items()}


def test_collections_never_share_the_states_of_different_measures():
    """In the first batch all of them are 1: torchmetrics takes metrics with equal states for one."""
    kinds = {
        "ndcg": NDCG(10),
        "same": NDCG(10),
        "ndcg@5": NDCG(5),
        "map": MeanAveragePrecision(),
        "mrr": MeanReciprocalRank(),
    }
    collection = MetricCollection(kinds, prefix="val_", compute_groups=True)
    first = torch.tensor([2.0, 1.0]), torch.tensor([1, 0]), torch.tensor([0, 2])
    assert all(value == 1 for value in collection(*first).values())
    second = batch(6)[:3]
    collection.update(*second)
    both = torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]), torch.cat([first[2], second[2][1:] + 2])
    found = collection.compute()
    for name, own in (("ndcg", "ndcg@10"), ("same", "ndcg@10"), ("ndcg@5", "ndcg@5"), ("map", "map"), ("mrr", "mrr")):
        assert found[f"val_{name}"].item() == pytest.approx(mean(own, *both), abs=1e-6), name
    assert sorted(map(len, collection.compute_groups.values())) == [1, 1, 1, 2]


@pytest.mark.parametrize("strategy", ["poisson", "multinomial"])
def test_bootstrapped(strategy):
    torch.manual_seed(0)
    rows = torch.rand(200, 6), torch.randint(0, 3, (200, 6))
    quantile = torch.tensor([0.05, 0.95])
    metric = BootStrapper(NDCG(5), num_bootstraps=100, quantile=quantile, sampling_strategy=strategy)
    metric.update(*rows)  # lists are drawn
    found, values = metric.compute(), evaluate(*_flat(*rows), measures=["ndcg@5"])["ndcg@5"]
    error = float(values[~values.isnan()].std()) / math.sqrt(200)
    assert found["mean"].item() == pytest.approx(float(values.nanmean()), abs=4 * error)
    assert found["std"].item() == pytest.approx(error, rel=0.4)
    assert found["quantile"][0] < found["mean"] < found["quantile"][1]
    scores, labels, _, indexes = batch(7)
    by_entries = BootStrapper(MeanAveragePrecision(), num_bootstraps=5, sampling_strategy=strategy)
    by_entries.update(scores, labels, indexes=indexes)  # entries are drawn, as with metrics of torchmetrics
    assert 0 < by_entries.compute()["mean"] < 1


def _flat(scores, labels):
    return scores.flatten(), labels.flatten(), torch.arange(0, scores.numel() + 1, scores.shape[1])


def test_smallest_and_largest():
    metric, seen = MinMaxMetric(NDCG(5)), []
    for seed in range(3):
        found = metric(*batch(seed)[:3])
        seen.append(mean("ndcg@5", *batch(seed)[:3]))
        assert found["raw"].item() == pytest.approx(seen[-1], abs=1e-6)
        metric.update(*batch(seed)[:3])
    found = metric.compute()
    assert found["min"] <= found["raw"] <= found["max"]


@every
def test_plots(name):
    pytest.importorskip("matplotlib")
    import matplotlib.pyplot as plt

    metric = SINGLE[name]()
    values = [metric(*batch(seed)[:3]) for seed in range(2)]
    for given in ((), (values,), (values[0],)):
        figure, axes = metric.plot(*given)
        assert axes is not None
        plt.close(figure)
    assert metric.higher_is_better is not name.endswith("error")
    assert (metric.plot_lower_bound, metric.plot_upper_bound) == (0, None if name == "dcg@5" else 1)


def test_many_are_plotted_together():
    pytest.importorskip("matplotlib")
    import matplotlib.pyplot as plt

    metrics = RankingMetrics(["ndcg@5", "map"])
    metrics.update(*batch(0)[:3])
    plt.close(metrics.plot()[0])


@every
def test_copied_and_pickled(name):
    metric = SINGLE[name]()
    metric.update(*batch(0)[:3])
    scores, labels, _, indexes = batch(1)
    metric.update(scores, labels, indexes=indexes)
    for other in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone()):
        assert torch.equal(other.compute(), metric.compute())
        other.update(*batch(2)[:3])
        assert not torch.equal(other.compute(), metric.compute())


def test_states_are_saved_if_they_are_asked_for():
    metric, other = NDCG(5), NDCG(5)
    assert metric.state_dict() == {}
    for each in (metric, other):
        each.persistent(True)
    metric.update(*batch(0)[:3])
    other.load_state_dict(metric.state_dict())
    other.update(*batch(1)[:3])
    metric.update(*batch(1)[:3])
    assert torch.equal(metric.compute(), other.compute())


def test_arithmetic_and_options_of_torchmetrics():
    metric = NDCG(5, compute_on_cpu=True, sync_on_compute=False)
    half = metric * 0.5
    half.update(*batch(0)[:3])
    assert half.compute().item() == pytest.approx(mean("ndcg@5", *batch(0)[:3]) / 2, abs=1e-6)
    with pytest.raises(ValueError, match="Unexpected keyword"):
        NDCG(5, no_such_option=True)


def test_nothing_measured_is_nan():
    metric = NDCG()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metric.compute().isnan()
    metric.update(torch.zeros(0), torch.zeros(0), torch.tensor([0, 0]))
    metric.update(torch.zeros(0), torch.zeros(0), indexes=torch.zeros(0, dtype=torch.int64))
    assert metric.compute().isnan()


def corpus_batch(seed, queries=15, size=40):
    """Rankings of a whole corpus: scores, labels and offsets of all documents, then ranks, labels and offsets of those
    that were judged, some of label 0 among them."""
    rng = np.random.default_rng(seed)
    ranks = torch.tensor(np.argsort(rng.random((queries, size)), axis=1) + 1)
    labels = torch.tensor(rng.integers(0, 5, (queries, size)) * (rng.random((queries, size)) < 0.1))
    judged = (labels > 0) | torch.tensor(rng.random((queries, size)) < 0.1)
    judged[0] = labels[0] = 0
    offsets = torch.nn.functional.pad(judged.sum(1).cumsum(0), (1, 0))
    whole = (-ranks.flatten()).double(), labels.flatten(), torch.arange(0, queries * size + 1, size)
    return whole, (ranks[judged], labels[judged], offsets)


def test_ranks_in_a_corpus_are_measured_as_the_lists_of_all_documents():
    names = ["ndcg@10", "map", "p@5", "err", "arp"]
    by_ranks, by_scores = (RankingMetrics(names, num_queries=45, max_label=4) for _ in range(2))
    for seed in range(3):
        whole, judged = corpus_batch(seed)
        more = {"query": torch.arange(15) + 15 * seed, "list_weights": torch.arange(15.0)}
        by_ranks.update(*judged, **more, num_documents=40)
        by_scores.update(*whole, **more)
    found, expected = by_ranks.summary(), by_scores.summary()
    assert found.keys() == expected.keys() and (by_ranks.lists, by_ranks.empty) == (45, by_scores.empty)
    assert by_ranks.empty >= 3
    assert found["measures"] == {name: pytest.approx(value, abs=1e-12) for name, value in expected["measures"].items()}
    for name in names:
        np.testing.assert_allclose(found["per_query"][name], expected["per_query"][name], rtol=0, atol=1e-12)


def test_ranks_and_scores_in_one_metric_and_in_rows():
    whole, judged = corpus_batch(3)
    both, metric = RankingMetrics(["map"]), MeanAveragePrecision()
    both.update(*whole)
    both.update(*judged, num_documents=40)
    expected = float(evaluate(*whole, measures=["map"])["map"].nanmean())
    assert both.compute()["map"].item() == pytest.approx(expected, abs=1e-12) and both.lists == 30
    assert metric(*judged, num_documents=40).item() == pytest.approx(expected, abs=1e-6)
    rows, mask = torch.tensor([[3, 1], [9, 99]]), torch.tensor([[True, True], [True, False]])
    found = evaluate_ranks([3, 1, 9], [1, 1, 1], [0, 2, 3], num_documents=10, measures=["map"])["map"].mean()
    assert MeanAveragePrecision()(rows, torch.ones(2, 2), mask=mask, num_documents=10).item() == pytest.approx(found)


def test_wrong_ranks_leave_a_metric_as_it_was():
    _, (ranks, labels, offsets) = corpus_batch(4)
    metric = RankingMetrics(["map"])
    for given, message in (
        ({"scores": ranks.double()}, "ranks must be integers"),
        ({"num_documents": 5}, r"ranks are 1\.\.num_documents=5"),
        ({"num_documents": 0}, "num_documents must be an integer >= 1"),
        ({"weights": torch.ones(len(ranks))}, "num_documents, for ranks, cannot be combined with weights: give scores"),
        ({"offsets": None, "indexes": torch.zeros_like(ranks)}, "indexes cannot be combined with num_documents"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.update(**({"scores": ranks, "labels": labels, "offsets": offsets, "num_documents": 40} | given))
    assert metric.totals.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="auc cannot be computed from ranks"):
        RankingMetrics(["auc"]).update(ranks, labels, offsets, num_documents=40)


def test_impossible_ranks_on_another_device_are_told_in_the_end():
    _, (ranks, labels, offsets) = corpus_batch(5)
    metric = RankingMetrics(["map"])
    with Elsewhere():
        metric.update(ranks, labels, offsets, num_documents=int(ranks.max()) - 1)
    with pytest.raises(ValueError, match=r"in 1 batches \(or ranks not in 1\.\.num_documents\)"):
        metric.compute()


def test_many_measures_by_other_names():
    metrics = RankingMetrics(["P@5", "precision@5", "NDCG@10"])
    metrics.update(*batch(0)[:3])
    found = metrics.compute()
    assert list(found) == ["p@5", "ndcg@10"]
    assert found["P@5"] == found["p@5"]
    evaluation = torchrank.RankingEvaluation(["P@5", "recip_rank"])
    assert evaluation.names() == ["val/p@5", "val/mrr"]


def test_refusals():
    scores, labels, offsets, indexes = batch(0)
    for make, message in (
        (lambda: NDCG(0), "k must be >= 1, got 0"),
        (lambda: NDCG(2.5), "k must be an integer >= 1"),
        (lambda: MeanReciprocalRank(convention="letor"), "does not define 'mrr'"),
        (lambda: NDCG()(scores, labels), "offsets"),
        (lambda: NDCG()(scores, labels, indexes), "indexes=..."),
        (lambda: NDCG()(scores, labels, offsets, indexes=indexes), "cannot be combined with offsets"),
        (lambda: NDCG()(scores, labels, indexes=indexes[:3]), "must have one shape"),
        (lambda: NDCG()(scores, labels, indexes=indexes.float()), "indexes must be a vector of integers"),
        (lambda: NDCG(convention="trec")(scores, labels, indexes=indexes), "needs tiebreak"),
        (lambda: RankingMetrics(["map"], num_queries=3)(scores, labels, indexes=indexes), "give offsets and query"),
        (lambda: NDCG()(scores[:3], labels, offsets), "got"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
