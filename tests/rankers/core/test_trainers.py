"""Rankers with Lightning's Trainer as it is; resume, precisions and sanity checks are in tests/laws/test_rankers.py."""

import pytest
import torch
from pytorch_lightning import Trainer
from torch.nn.parallel import DistributedDataParallel

import torchrank
from tests.rankers.small import FEATURES, data, lists, measured, trainer
from torchrank import LambdaRank, ListNet, RankingEvaluation, SingleFeature, TrainingLists

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
OPTIONS = {"LGMML": {"groups": "random", "metrics": 3, "queries_per_metric": 2}}


@pytest.mark.parametrize("name", ["GMML", "LGMML", "DominationRank"])
def test_rounds_are_scored_in_full_precision(name):
    module, found = data(), {}
    for precision in ("32-true", "bf16-mixed"):
        ranker = getattr(torchrank, name)(module.num_features, **OPTIONS.get(name, {}))
        runner = Trainer(max_epochs=1, accelerator="cpu", devices=1, precision=precision, **QUIET)
        runner.fit(ranker, datamodule=module)
        found[precision] = runner.validate(ranker, datamodule=module, verbose=False)
    assert found["32-true"] == found["bf16-mixed"]


def validations(tmp_path, ranker, **options):
    class Counted(RankingEvaluation):
        count = 0

        def on_validation_epoch_end(self, runner, module, split="val"):
            super().on_validation_epoch_end(runner, module, split)
            self.count += 1

    evaluation = Counted(every_round=options.pop("every_round", False))
    runner = trainer(tmp_path, 20, callbacks=[evaluation], **options)
    runner.fit(ranker, datamodule=data())
    return evaluation.count, runner


def test_a_certified_fit_is_validated_at_its_end_by_itself(tmp_path):
    ranker = ListNet(FEATURES, rounds=7, tolerance=1e-300)
    count, runner = validations(tmp_path / "one", ranker)
    assert count == 1 and runner.current_epoch == 7
    at_the_end = measured(runner, "val")["measures"]
    runner.validate(ranker, datamodule=data(), verbose=False)
    assert measured(runner, "val")["measures"] == at_the_end
    assert runner.check_val_every_n_epoch == 1  # as it was
    count, runner = validations(tmp_path / "two", ListNet(FEATURES, rounds=7, tolerance=1e-300), every_round=True)
    assert count == 7


def test_the_last_round_is_validated_whatever_the_interval(tmp_path):
    ranker = torchrank.RankBoost(FEATURES, rounds=7)
    count, runner = validations(tmp_path, ranker, check_val_every_n_epoch=5)
    assert count == 2 and runner.check_val_every_n_epoch == 5


def test_totals_are_additive_and_reduce_every_tensor(tmp_path):
    sums = {}

    class Probe(SingleFeature):
        def round(self, lists: TrainingLists, number):
            batch = lists.lists[:]
            pair = lists.total(lambda b: (b.labels.double().sum(), b.x.double().sum(0)))
            sums["parts"] = lists.total(self.quality), pair
            sums["whole"] = self.quality(batch), (batch.labels.double().sum(), batch.x.double().sum(0))
            into = (torch.zeros(FEATURES, dtype=torch.float64),)
            lists.total(lambda b, into: into[0].add_(b.x.double().sum(0)), into)
            sums["into"] = into[0]
            return super().round(lists, number)

    Probe(FEATURES).fit(lists(0), batch_documents=7)
    torch.testing.assert_close(sums["parts"], sums["whole"])
    torch.testing.assert_close(sums["into"], sums["whole"][1][1])


def test_a_ranker_brings_its_evaluation_and_keeps_that_of_the_trainer(tmp_path):
    runner = Trainer(max_epochs=2, accelerator="cpu", devices=1, **QUIET)
    runner.fit(ListNet(FEATURES), datamodule=data())
    assert {"val/ndcg@10", "val/map", "val/mrr"} <= runner.callback_metrics.keys()
    own = Trainer(max_epochs=2, accelerator="cpu", devices=1, callbacks=[RankingEvaluation(["p@3"])], **QUIET)
    own.fit(ListNet(FEATURES), datamodule=data())
    assert {name for name in own.callback_metrics if name.startswith("val/")} == {"val/p@3"}
    (tested,) = own.test(ListNet(FEATURES).fit(lists(0)), datamodule=data(), verbose=False)
    assert tested.keys() == {"test/p@3"}


def test_ddp_does_not_send_the_transform_before_every_step(tmp_path):
    ranker = LambdaRank(FEATURES, transform="quantile")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        sent = DistributedDataParallel(ranker).modules_buffers
    finally:
        torch.distributed.destroy_process_group()
    knots = {id(buffer) for buffer in ranker.transform.buffers()}
    assert knots and not knots & {id(buffer) for buffer in sent}
