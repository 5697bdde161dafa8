"""Every config composes and instantiates; its defaults are those of the code."""

import inspect
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

import torchrank
from torchrank.data.catalogue import CATALOGUE
from torchrank.data.datamodule import LOADERS
from torchrank.errors import check_numbers
from torchrank.mistakes import mistake
from torchrank.rankers.core import evaluation, fitting
from torchrank.train import CONF

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
DATA = sorted(path.stem for path in (CONF / "data").glob("*.yaml") if path.stem not in ("lists", "letor"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
NEEDED = {"files": ["data.train=a.txt"], "table": ["data.train=a.csv"], "retrieval": ["data.file=a.npz"]}
NEEDED |= {"embeddings": ["data.root=folder"]}


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


@pytest.mark.parametrize("name", MODELS)
def test_defaults_of_a_model_are_those_of_its_class(name):
    """A config that extends another one (lgmml_query) says itself in what it differs."""
    given = OmegaConf.to_container(composed(f"model={name}", "seed=0").model, resolve=True)
    ranker = getattr(torchrank, given.pop("_target_").rpartition(".")[2])
    own = OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{name}.yaml"))
    changed = set(own) if own.pop("defaults", None) else set()
    parameters = dict(inspect.signature(ranker).parameters)
    del parameters["num_features"]
    assert given.keys() == parameters.keys()
    for option, parameter in parameters.items():
        default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        assert option in changed or given[option] == default, f"{name}: {option}"


@pytest.mark.parametrize("name", MODELS)
def test_text_for_a_number_is_one_line_that_names_the_option(name):
    """Of every option whose default is a number, or whose class takes one."""
    config = composed(f"model={name}", "seed=0").model
    kind = get_class(config._target_)
    declared = {each for each, part in inspect.signature(kind).parameters.items()
                if re.search(r"\b(int|float)\b", str(part.annotation))}  # fmt: skip
    numbers = {each for each, value in config.items() if type(value) in (int, float)}
    for option in sorted((declared | numbers) & config.keys()):
        wrong = OmegaConf.merge(config, {option: "abc"})
        with pytest.raises((ValueError, InstantiationException)) as told:
            check_numbers(kind, wrong, "model.")
            instantiate(wrong, num_features=7, _convert_="all")
        line = mistake(told.value, Path("conf"))
        assert option in line and ("abc" in line or "needs" in line) and "\n" not in line, line
        assert "not supported" not in line, line


def test_a_fit_without_a_trainer_has_the_limits_of_the_configs():
    config = composed("model=lambdarank")
    assert config.trainer.max_epochs == fitting.EPOCHS
    assert config.callbacks.early_stopping.patience == fitting.PATIENCE
    assert {config.callbacks.early_stopping.monitor, config.callbacks.best.monitor} == {f"val/{fitting.MONITOR}"}
    assert {config.callbacks.early_stopping.mode, config.callbacks.best.mode} == {"max"}
    defaults = inspect.signature(torchrank.Ranker.fit).parameters
    assert config.data.batch_documents == defaults["batch_documents"].default
    assert config.seed == defaults["seed"].default
    assert config.measures == list(evaluation.MEASURES)


@pytest.mark.parametrize("name", DATA)
def test_data(name):
    data = instantiate(composed(f"data={name}", *NEEDED.get(name, [])).data, _convert_="all")
    assert data.name == name


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_defaults_of_a_data_set_are_those_of_its_loader(name):
    given = OmegaConf.to_container(composed(f"data={name}", "seed=0", *NEEDED.get(name, [])).data, resolve=True)
    defaults = {
        **inspect.signature(torchrank.RankingDataModule).parameters,
        **inspect.signature(LOADERS[name]).parameters,
    }
    needed = {option.removeprefix("data.").partition("=")[0] for option in NEEDED.get(name, [])}
    assert given.keys() - {"_target_"} == defaults.keys() - {"source"} | ({"source"} & given.keys())
    for option in given.keys() - {"_target_", "name", *needed}:
        default = defaults[option].default
        assert given[option] == (list(default) if isinstance(default, tuple) else default), f"{name}: {option}"


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


def test_measures_and_conventions_reach_the_evaluation():
    config = composed("measures=[map,p@5]", "conventions=[letor,sklearn]")
    found = instantiate(config.callbacks.evaluation, _convert_="all")
    assert isinstance(found, torchrank.RankingEvaluation) and not found.every_round
    assert (found.measures, found.conventions) == (["map", "p@5"], ["letor", "sklearn"])
    assert found.names() == ["val/map", "val/p@5"]  # scikit-learn has neither
    assert not {"measures", "conventions"} & config.data.keys()


def test_lines_are_short():
    for group in ("experiment", "model"):
        for path in (CONF / group).glob("*.yaml"):
            assert max(map(len, path.read_text().splitlines())) <= 120, path.name
