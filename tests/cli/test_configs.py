"""Every config composes and instantiates; every group has the options that the README names."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import OmegaConf

import torchrank
from torchrank.data.catalogue import CATALOGUE
from torchrank.data.datamodule import LOADERS
from torchrank.train import CONF

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
DATA = sorted(path.stem for path in (CONF / "data").glob("*.yaml") if path.stem not in ("lists", "letor"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
NEEDED = {"files": ["data.train=a.txt"], "retrieval": ["data.file=a.npz"]}


@pytest.fixture(autouse=True)
def conf():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*overrides: str):
    """The config of a run, with what Hydra itself sets in a run."""
    config = compose("train", ["hydra.runtime.output_dir=out", *overrides], return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    OmegaConf.set_readonly(config.hydra, False)
    return config


def test_there_is_a_config_for_every_exported_ranker():
    targets = {composed(f"model={name}").model._target_ for name in MODELS}
    assert targets == {f"torchrank.{name}" for name in torchrank.RANKERS}


def test_there_is_a_config_for_every_data_set():
    assert set(DATA) == {"synthetic", *LOADERS, *CATALOGUE}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    ranker = instantiate(composed(f"model={name}").model, num_features=7, _convert_="all")
    assert ranker.num_features == 7


@pytest.mark.parametrize("name", DATA)
def test_data(name):
    data = instantiate(composed(f"data={name}", *NEEDED.get(name, [])).data, _convert_="all")
    assert data.name == name and data.measures == ["ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr"]


@pytest.mark.parametrize("name", ["cpu", "gpu", "ddp", "ddp_cpu"])
@pytest.mark.parametrize("model", ["listnet", "lambdarank"])
def test_trainers(name, model):
    config = composed(f"trainer={name}", f"model={model}").trainer
    assert config.max_epochs == (500 if model == "listnet" else 100)
    assert config.num_sanity_val_steps == 0 and config.use_distributed_sampler is False
    assert config.accelerator == ("gpu" if name in ("gpu", "ddp") else "cpu")


@pytest.mark.parametrize("name", ["csv", "tensorboard", "wandb"])
def test_loggers(name):
    assert composed(f"logger={name}").logger[name]._target_.startswith("pytorch_lightning.loggers.")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments(name):
    assert composed(f"experiment={name}").name


def test_callbacks(tmp_path):
    config = composed(f"hydra.runtime.output_dir={tmp_path}")
    for part in config.callbacks.values():
        instantiate(part)
    assert Path(config.callbacks.best.dirpath) == tmp_path / "checkpoints"
