"""Every ranker with Lightning's Trainer as it is: its check of the validation lists before the fit, mixed precision."""

import pytest
import torch
from pytorch_lightning import Trainer

import torchrank
from tests.rankers.local import judged
from tests.rankers.small import data
from torchrank import RankingDataModule

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
METRICS = ("MLR", "RMLR", "LowRankMLR", "MetricBaseline")  # distances from query vectors
OPTIONS = {"LGMML": {"metrics": 3, "queries_per_metric": 2}, "LGMMLNet": {"metrics": 3}}


@pytest.mark.parametrize("name", torchrank.RANKERS)
def test_the_default_trainer_fits(name):
    module = with_query_vectors() if name in METRICS else data()
    ranker = getattr(torchrank, name)(module.num_features, **OPTIONS.get(name, {}))
    Trainer(max_epochs=2, accelerator="cpu", devices=1, **QUIET).fit(ranker, datamodule=module)
    val = module.sets["val"][:]
    assert ranker(val.x, val.offsets, index=val.index, queries=val.queries).isfinite().all()


def with_query_vectors():
    return RankingDataModule.from_sets(train=judged(0), val=judged(1))


@pytest.mark.parametrize("name", ["GMML", "LGMML", "DominationRank"])
def test_rounds_are_scored_in_full_precision(name):
    module, found = data(), {}
    for precision in ("32-true", "bf16-mixed"):
        ranker = getattr(torchrank, name)(module.num_features, **OPTIONS.get(name, {}))
        trainer = Trainer(max_epochs=1, accelerator="cpu", devices=1, precision=precision, **QUIET)
        trainer.fit(ranker, datamodule=module)
        found[precision] = trainer.validate(ranker, datamodule=module, verbose=False)
    assert found["32-true"] == found["bf16-mixed"]


@pytest.mark.parametrize("name", ["GMML", "LGMML"])
def test_unfitted_metrics_say_so(name):
    ranker = getattr(torchrank, name)(4, transform=None)
    with pytest.raises(ValueError, match="not fitted"):
        ranker(torch.zeros(2, 4), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="not fitted"):
        ranker.compiled()
