"""A resumed fit draws what an uninterrupted one would: dropout, and whatever else uses the global generators."""

import random

import numpy as np
import pytest
import torch
from pytorch_lightning import seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint

from tests.rankers.small import FEATURES, data, trainer
from torchrank import NeuralRanker
from torchrank.rankers.core.random_state import random_state, restore


def network(seed: int) -> NeuralRanker:
    seed_everything(seed, verbose=False)
    return NeuralRanker(FEATURES, scorer_options={"hidden": [8], "dropout": 0.5}, lr=0.05)


@pytest.mark.parametrize("sanity", [0, 2])
def test_dropout_is_resumed_between_epochs_and_within(tmp_path, sanity):
    every = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False)
    whole = network(0)
    fit = trainer(tmp_path / "whole", 3, callbacks=[every], num_sanity_val_steps=sanity)
    fit.fit(whole, datamodule=data())
    trainer(tmp_path / "cut", 2).fit(network(0), datamodule=data())
    checkpoints = [tmp_path / "cut" / "last.ckpt", *sorted(tmp_path.glob("*.ckpt"))[:-1]]
    assert len(checkpoints) > 3
    for checkpoint in checkpoints:
        resumed = network(7)
        again = trainer(tmp_path / "again", 3, num_sanity_val_steps=sanity)
        again.fit(resumed, datamodule=data(), ckpt_path=checkpoint, weights_only=True)
        for name, value in whole.named_parameters():
            assert torch.equal(value, resumed.get_parameter(name)), checkpoint.name


def test_all_global_generators_are_restored():
    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(()).item()]

    draw()
    state = random_state()
    first = draw()
    draw()
    restore(state)
    assert draw() == first


def test_the_state_of_other_numbers_of_processes_is_left_alone():
    state, before = random_state(), torch.get_rng_state()
    torch.manual_seed(5)
    restore(state * 2)
    assert not torch.equal(before, torch.get_rng_state())
