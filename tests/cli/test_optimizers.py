"""Optimizers and schedules of gradient rankers, chosen on the command line: fitted, resumed, refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.running import SMALL, quick_train, results

LR, STEPS = 0.05, 4  # of the model; batches of an epoch
OPTIONS = [*SMALL, "data.batch_documents=60", "model=lambdarank", f"model.lr={LR}"]


def fit(cwd: Path, name: str, *options: str, epochs: int) -> dict[str, Any]:
    done = quick_train(*OPTIONS, *options, f"trainer.max_epochs={epochs}", f"hydra.run.dir={name}", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return results(cwd / name)


def last(cwd: Path, name: str) -> dict[str, Any]:
    return torch.load(cwd / name / "checkpoints/last.ckpt", weights_only=True)


def resumed_and_whole(cwd: Path, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last checkpoints of a fit of 2 + 2 epochs, and of one of 4."""
    fit(cwd, "out", *options, epochs=2)
    again = fit(cwd, "more", *options, "ckpt_path=out/checkpoints/last.ckpt", epochs=4)
    whole = fit(cwd, "whole", *options, epochs=4)
    assert again["steps"] == whole["steps"]
    return last(cwd, "out"), last(cwd, "whole")  # a resumed fit writes where it began


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.pop("_extra_state") == other.pop("_extra_state")
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def learning_rate(steps: int, warmup: int = 3, step_size: int = 2) -> float:
    """Rises over `warmup` steps, then falls to a tenth after every `step_size` steps."""
    return LR * (steps + 1) / (warmup + 1) if steps < warmup else LR * 0.1 ** ((steps - warmup) // step_size)


def test_adamw_with_warmup_and_steps(tmp_path):
    schedule = "model.scheduler={name: StepLR, step_size: 2, warmup: 3, interval: step}"
    resumed, whole = resumed_and_whole(tmp_path, "model.optimizer=AdamW", schedule)
    assert_same(resumed["state_dict"], whole["state_dict"])
    assert resumed["optimizer_states"][0]["param_groups"] == whole["optimizer_states"][0]["param_groups"]
    (group,) = whole["optimizer_states"][0]["param_groups"]
    assert group["weight_decay"] == 0  # that of the ranker, not the default of AdamW
    assert whole["global_step"] == 4 * STEPS and group["lr"] == pytest.approx(learning_rate(4 * STEPS))


def test_sgd_with_clipped_and_accumulated_gradients(tmp_path):
    options = ["model.optimizer={name: SGD, momentum: 0.9}", "model.scheduler={name: StepLR, step_size: 3}"]
    options += ["+trainer.gradient_clip_val=1", "+trainer.accumulate_grad_batches=2"]
    resumed, whole = resumed_and_whole(tmp_path, *options)
    assert_same(resumed["state_dict"], whole["state_dict"])
    (group,) = whole["optimizer_states"][0]["param_groups"]
    assert group["momentum"] == 0.9 and group["lr"] == pytest.approx(LR / 10)  # once in 4 epochs
    assert whole["global_step"] == 4 * STEPS // 2


def test_reduce_lr_on_plateau_runs_and_is_resumed(tmp_path):
    """With this threshold no epoch is an improvement: each of them halves the learning rate."""
    schedule = "{name: ReduceLROnPlateau, mode: min, patience: 0, factor: 0.5, threshold: 10, monitor: val/map}"
    fit(tmp_path, "out", f"model.scheduler={schedule}", epochs=3)
    (group,) = last(tmp_path, "out")["optimizer_states"][0]["param_groups"]
    assert group["lr"] == pytest.approx(LR / 8)
    fit(tmp_path, "more", f"model.scheduler={schedule}", "ckpt_path=out/checkpoints/last.ckpt", epochs=5)
    (group,) = last(tmp_path, "out")["optimizer_states"][0]["param_groups"]
    assert group["lr"] == pytest.approx(LR / 32)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.optimizer=Adamm", "ASGD, Adadelta, Adafactor, Adagrad, Adam, AdamW"),
        ("model.scheduler={name: StepLRR, step_size: 2}", "ReduceLROnPlateau"),
        ("model.optimizer={name: SGD, momentun: 0.9}", "momentun"),
    ],
)
def test_a_misspelt_name_is_one_line_with_the_choices(tmp_path, option, message):
    done = quick_train(*OPTIONS, option, cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("torchrank train: error: ") and message in line
