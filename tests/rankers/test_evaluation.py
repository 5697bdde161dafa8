"""RankingMetrics: means and values per query over batches and over processes, against numpy on the whole."""

import numpy as np
import pytest
import torch
import torch.multiprocessing

from torchrank.functional import evaluate
from torchrank.rankers.core.evaluation import RankingMetrics

MEASURES = ["ndcg@3", "map", "auc"]


def lists(seed=0, count=23):
    draw = np.random.default_rng(seed)
    offsets = np.concatenate([[0], draw.integers(0, 9, count).cumsum()])
    scores, labels = draw.normal(size=offsets[-1]).round(1), draw.integers(0, 3, offsets[-1])
    labels[offsets[3] : offsets[7]] = 0
    return torch.tensor(scores), torch.tensor(labels), torch.tensor(offsets)


def some(batch, first, last):
    scores, labels, offsets = batch
    begin, end = offsets[first], offsets[last]
    return scores[begin:end], labels[begin:end], offsets[first : last + 1] - begin


def fill(metrics, batch, bounds):
    for first, last in bounds:
        metrics.update(*some(batch, first, last), query=torch.arange(first, last))
    return metrics


def expected(batch):
    return {name: value.numpy() for name, value in evaluate(*batch, measures=MEASURES).items()}


def check(metrics, batch):
    means, values = metrics.compute(), metrics.per_query()
    for name, each in expected(batch).items():
        assert means[name].item() == pytest.approx(np.nanmean(each), abs=1e-14)
        np.testing.assert_allclose(values[name], each, rtol=0, atol=1e-15)
    labels, offsets = batch[1:]
    empty = sum(not (labels[a:b] >= 1).any() for a, b in zip(offsets.tolist(), offsets.tolist()[1:], strict=False))
    assert (metrics.lists, metrics.empty) == (len(offsets) - 1, empty)


def test_batches_of_any_size():
    batch = lists()
    for bounds in ([(0, 23)], [(0, 0), (0, 1), (1, 20), (20, 23)]):
        check(fill(RankingMetrics(MEASURES, num_queries=23), batch, bounds), batch)


def _process(rank, world, file):
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    batch = lists()
    shares = [(0, 5), (5, 5), (5, 23)]  # one process has nothing
    metrics = RankingMetrics(MEASURES, num_queries=23)
    fill(metrics, batch, [shares[rank]])
    check(metrics, batch)  # every process holds the whole
    metrics.reset()
    fill(metrics, batch, [shares[world - 1 - rank]])
    check(metrics, batch)
    torch.distributed.destroy_process_group()


def test_exact_over_processes(tmp_path):
    torch.multiprocessing.spawn(_process, (3, tmp_path / "meet"), nprocs=3)


def test_update_does_not_synchronise():
    metrics = RankingMetrics(MEASURES, num_queries=23).to("meta")
    scores, labels, offsets = (part.to("meta") for part in lists())
    metrics.update(scores, labels, offsets, query=torch.arange(23, device="meta"), max_length=8, num_grades=3)
    assert metrics.sums.device.type == "meta"


def test_states_stay_in_double_precision_when_the_ranker_is_cast():
    ranker = torch.nn.Linear(1, 1)
    ranker.metrics = RankingMetrics(MEASURES)
    for cast in (torch.nn.Module.half, torch.nn.Module.bfloat16, lambda module: module.to(torch.float32)):
        assert cast(ranker).metrics.sums.dtype == torch.float64


def test_a_list_measured_twice_is_an_error():
    batch = lists()
    metrics = fill(RankingMetrics(MEASURES, num_queries=23), batch, [(0, 23), (4, 5)])
    with pytest.raises(ValueError, match="list 4 was measured 2 times"):
        metrics.compute()


def test_refusals():
    with pytest.raises(ValueError, match="Known measures"):
        RankingMetrics(["ndgc@10"])
    with pytest.raises(ValueError, match="does not define"):
        RankingMetrics(["mrr"], "letor")
    with pytest.raises(ValueError, match="give query="):
        RankingMetrics(MEASURES, num_queries=23).update(*lists())
    with pytest.raises(ValueError, match="num_queries="):
        RankingMetrics(MEASURES).per_query()
    with pytest.raises(ValueError, match="NaN"):
        RankingMetrics(MEASURES).update(torch.tensor([torch.nan]), torch.tensor([1]), torch.tensor([0, 1]))


def test_nan_scores_found_late_are_an_error_too():
    """On a GPU `update` does not look; the flag it leaves is read by `compute`."""
    metrics = fill(RankingMetrics(MEASURES), lists(), [(0, 23)])
    metrics.totals[2] += 1
    with pytest.raises(ValueError, match="NaN in 1 batches"):
        metrics.compute()
