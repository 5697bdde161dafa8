"""Optimizers and schedules by name: what torch itself makes of the same options."""

import pytest
import torch
from pytorch_lightning import Trainer
from torch import nn

from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import LambdaRank, LGMMLNet, ListNet, LowRankMLR, NeuralRanker
from torchrank.rankers.core.optimizers import Optimization


def rates(choice, steps):
    """Learning rates of the next steps."""
    made = choice.make([nn.Parameter(torch.zeros(1))])
    found = []
    for _ in range(steps):
        found.append(made["optimizer"].param_groups[0]["lr"])
        made["optimizer"].step()
        made["lr_scheduler"]["scheduler"].step()
    return found


def test_adam_without_a_schedule_is_the_default():
    made = Optimization(lr=0.3, weight_decay=0.1).make([nn.Parameter(torch.zeros(2))])
    assert made.keys() == {"optimizer"} and type(made["optimizer"]) is torch.optim.Adam
    group = made["optimizer"].param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.3, 0.1)


@pytest.mark.parametrize(
    "option", ["AdamW", "adamw", {"name": "AdamW", "betas": [0.8, 0.9]}, {"name": "SGD", "lr": 0.5}, "Rprop", "LBFGS"]
)
def test_any_optimizer_of_torch_by_name(option):
    made = Optimization(option, lr=0.1).make([nn.Parameter(torch.zeros(2))])["optimizer"]
    name = option if isinstance(option, str) else option["name"]
    assert type(made).__name__.lower() == name.lower()
    group = made.param_groups[0]
    assert group["lr"] == (0.5 if isinstance(option, dict) and "lr" in option else 0.1)
    if isinstance(option, dict) and "betas" in option:
        assert group["betas"] == (0.8, 0.9)


def test_a_schedule_after_a_linear_warm_up():
    choice = Optimization(scheduler={"name": "StepLR", "step_size": 2, "gamma": 0.5, "warmup": 3}, lr=1.0)
    assert rates(choice, 8) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.5, 0.25])


def test_a_warm_up_alone():
    assert rates(Optimization(scheduler={"warmup": 2}, lr=1.0), 5) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1])


def test_schedules_are_those_of_torch():
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    expected = []
    for _ in range(5):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(Optimization(scheduler={"name": "CosineAnnealingLR", "T_max": 5}, lr=0.1), 5) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "Adamm"}, r"unknown optimizer 'Adamm': choose one of .*AdamW"),
        ({"optimizer": {"momentum": 0.9}}, "unknown optimizer None"),
        ({"optimizer": {"name": "SGD", "betas": [0.1, 0.2]}}, "options of SGD: .*betas"),
        ({"optimizer": 3}, "optimizer must be a name, or a dict"),
        ({"optimizer": "Rprop", "weight_decay": 0.1}, "options of Rprop: .*weight_decay"),
        ({"scheduler": "Cosine"}, "unknown scheduler 'Cosine': choose one of .*CosineAnnealingLR"),
        ({"scheduler": {"name": "StepLR"}}, "options of StepLR: .*step_size"),
        (
            {"scheduler": {"name": "StepLR", "step_size": 2, "interval": "batch"}},
            "scheduler.interval='batch': choose one of epoch, step",
        ),
        (
            {"scheduler": {"name": "StepLR", "step_size": 2, "warmup": -1}},
            "scheduler.warmup must be >= 0, got -1",
        ),
        ({"scheduler": {"name": "ReduceLROnPlateau", "warmup": 2}}, "cannot be combined with ReduceLROnPlateau"),
        ({"scheduler": {"interval": "step"}}, "scheduler needs a name"),
    ],
)
def test_wrong_options_are_refused_when_the_ranker_is_made(options, message):
    with pytest.raises(ValueError, match=message):
        LambdaRank(FEATURES, **options)


@pytest.mark.parametrize(
    "make", [LambdaRank, NeuralRanker, LGMMLNet, LowRankMLR, lambda *a, **o: ListNet(*a, solver="gradient", **o)]
)
def test_every_gradient_ranker_takes_them(make):
    ranker = make(FEATURES, optimizer={"name": "SGD", "momentum": 0.9}, scheduler={"name": "StepLR", "step_size": 1})
    made = ranker.configure_optimizers()
    assert type(made["optimizer"]).__name__ == "SGD" and made["lr_scheduler"]["interval"] == "epoch"


SCHEDULES = {
    "step": {"name": "StepLR", "step_size": 2, "warmup": 3, "interval": "step"},
    "epoch": {"name": "ExponentialLR", "gamma": 0.5},
    "plateau": {"name": "ReduceLROnPlateau", "patience": 0, "threshold": 9.0, "threshold_mode": "abs"},
    "cycle": {"name": "OneCycleLR", "max_lr": 0.2, "total_steps": 40, "interval": "step"},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_resume_where_they_were(name, tmp_path):
    def made():
        torch.manual_seed(0)
        return LambdaRank(FEATURES, lr=0.1, scheduler=SCHEDULES[name])

    whole, cut, resumed = made(), made(), made()
    trainer(tmp_path / "whole", 6).fit(whole, datamodule=data())
    trainer(tmp_path / "cut", 3).fit(cut, datamodule=data())
    again = trainer(tmp_path / "cut", 6)
    again.fit(resumed, datamodule=data(), ckpt_path=tmp_path / "cut/last.ckpt", weights_only=True)
    assert torch.equal(resumed.scorer.weight, whole.scorer.weight)
    fixed = LambdaRank(FEATURES, lr=0.1)
    trainer(tmp_path / "fixed", 6).fit(fixed, datamodule=data())
    assert not torch.equal(fixed.scorer.weight, whole.scorer.weight)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_fit_without_lightning_follows_the_same_schedule(name, tmp_path):
    through, own = (LambdaRank(FEATURES, lr=0.1, scheduler=SCHEDULES[name]) for _ in range(2))
    trainer(tmp_path, 5).fit(through, datamodule=data())
    own.fit(lists(0), epochs=5, batch_documents=40, **{"val": lists(1)} if name == "plateau" else {})
    if name != "plateau":  # whose best epoch is kept
        torch.testing.assert_close(own.scorer.weight, through.scorer.weight, rtol=1e-6, atol=1e-7)


def test_a_plateau_is_one_of_the_measure_that_is_watched():
    for monitor, mode in (("val/ndcg@10", "max"), ("val/knn_error@3", "min")):
        made = Optimization(scheduler={"name": "ReduceLROnPlateau", "monitor": monitor}).make(
            [nn.Parameter(torch.zeros(1))]
        )
        assert made["lr_scheduler"]["scheduler"].mode == mode and made["lr_scheduler"]["monitor"] == monitor


def test_a_plateau_needs_validation_lists():
    with pytest.raises(ValueError, match="ReduceLROnPlateau watches val/ndcg@10"):
        LambdaRank(FEATURES, scheduler="ReduceLROnPlateau").fit(lists(0), epochs=2)


def test_clipping_and_accumulation_come_from_the_trainer(tmp_path):
    plain, clipped = LambdaRank(FEATURES, optimizer="SGD", lr=0.1), LambdaRank(FEATURES, optimizer="SGD", lr=0.1)
    settings = {"gradient_clip_val": 1e-3, "accumulate_grad_batches": 2}
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    for ranker, options in ((plain, {}), (clipped, settings)):
        Trainer(max_epochs=2, accelerator="cpu", devices=1, **quiet | options).fit(ranker, datamodule=data())
    assert 0 < clipped.scorer.weight.norm() <= 2 * 2 * 0.1 * 1e-3 + 1e-9 < plain.scorer.weight.norm()


def test_no_weight_decay_means_none_for_every_optimizer():
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    for name, decay in (("AdamW", 0.0), ("AdamW", 0.02), ("Adam", 0.0), ("SGD", 0.0)):
        made = Optimization(name, weight_decay=decay).make(parameters)["optimizer"]
        assert made.param_groups[0]["weight_decay"] == decay
    assert "weight_decay" not in Optimization("LBFGS").make(parameters)["optimizer"].param_groups[0]
