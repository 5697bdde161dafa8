"""The run behind `python train.py`: compose, fit, choose on validation, test once, leave results behind."""

import logging
import os
import signal
import sys
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from pytorch_lightning import LightningDataModule, Trainer, seed_everything
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException

from torchrank.functional.conventions import parse_measure
from torchrank.rankers.core.checkpoints import load, read_checkpoint
from torchrank.rankers.core.ranker import Ranker
from torchrank.report.tables import smaller_is_better
from torchrank.results import alone_in, finished, forget_results, print_results, record, write_results

PACKAGE = Path(__file__).resolve().parent
CONF = next(folder for folder in (PACKAGE / "conf", PACKAGE.parent / "conf") if folder.is_dir())

GROUPS = ("data", "model", "experiment", "trainer", "callbacks", "logger")
NOT_SETTINGS = (*GROUPS, "name", "seed", "data.fold", "data.root")

NOISE = (  # of Lightning, about its own internals
    ".*isinstance.treespec, LeafSpec.*",
    ".*exists and is not empty.*",
    ".*Initializing zero-element tensors is a no-op.*",
    ".*recommended to use `self.log.*sync_dist=True.*",  # measures are those of all processes already
    ".*dirpath has changed.*",
    ".*`broadcast_buffers` is deprecated.*",  # older versions of torch have no other name for it
)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def main(config: DictConfig) -> float | None:
    """Returns the monitored validation measure, for sweepers that optimise it."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for noise in NOISE:
        warnings.filterwarnings("ignore", noise)
    folder = Path(HydraConfig.get().runtime.output_dir)
    return with_short_errors(config, folder)["selection"]["value"]


def with_short_errors(config: DictConfig, folder: Path) -> dict[str, Any]:
    """`run`; of bad input only what is wrong is printed, not the way through Hydra and Lightning to it."""
    try:
        results = finished(folder, plain(config))
        if results is not None:
            print(f"{folder} holds the results of this configuration already: nothing to do")
            return results
        return run(config, folder)
    except (ValueError, OSError, InstantiationException, MissingMandatoryValue, MisconfigurationException) as error:
        cause = error.__cause__ if isinstance(error, InstantiationException) else error
        told = isinstance(cause, ValueError | OSError | ImportError | MissingMandatoryValue | MisconfigurationException)
        if not told or HydraConfig.get().mode == RunMode.MULTIRUN or "HYDRA_FULL_ERROR" in os.environ:
            raise
        raise SystemExit(f"{type(cause).__name__}: {cause}\n(HYDRA_FULL_ERROR=1 shows where)") from None


def run(config: DictConfig, folder: Path) -> dict[str, Any]:
    check_sweep(config)
    if not config.train and config.ckpt_path is None:
        raise ValueError("train=false tests a checkpoint: name it with ckpt_path=FILE.")
    if config.ckpt_path is not None and not Path(config.ckpt_path).is_file():
        raise FileNotFoundError(f"ckpt_path={config.ckpt_path} is no file")
    if config.mode == "max" and smaller_is_better(config.monitor.rpartition("/")[2]):
        raise ValueError(f"monitor={config.monitor} is better when it is smaller: say mode=min.")
    seed_everything(config.seed, workers=True, verbose=False)
    trainer = make_trainer(config)
    if config.train and config.ckpt_path is not None:
        keep_checkpoints_in(Path(config.ckpt_path).parent, trainer)
    if not trainer.is_global_zero:
        return fit_and_test(config, trainer)[0]
    with ExitStack() as alone:
        for place in {folder.resolve(), *(checkpoint_folders(trainer) if config.train else ())}:
            alone.enter_context(alone_in(place))
        forget_results(folder)
        results, ranker, data = fit_and_test(config, trainer)
        write_results(folder, results, ranker, data)
    print_results(results, folder)
    return results


def check_sweep(config: DictConfig) -> None:
    """Refuse a sweep that is started as one run, unless that says which model it means."""
    hydra_config = HydraConfig.get()
    given = any(override.startswith("model=") for override in hydra_config.overrides.task) or config.ckpt_path
    swept = any(hydra_config.sweeper.get(key) for key in ("grids", "params"))
    if hydra_config.mode == RunMode.RUN and swept and not given:
        name = hydra_config.runtime.choices.get("experiment")
        raise ValueError(f"experiment={name} is a sweep of many runs: add -m, or name the model= of the one you mean.")


def fit_and_test(config: DictConfig, trainer: Trainer) -> tuple[dict[str, Any], Ranker, LightningDataModule]:
    """What `results.json` holds, and what the values per query are read off."""
    seconds, clock = {}, time.perf_counter()
    data = instantiate(config.data, _convert_="all")
    data.setup()
    if "val" not in data.sets:
        raise ValueError("a run chooses by validation, and this data has no val lists: hold some queries out for it.")
    check_monitor(config.monitor, data)
    seconds["data"], clock = time.perf_counter() - clock, time.perf_counter()

    if config.train:
        ranker = instantiate(config.model, num_features=data.num_features, _convert_="all")
    else:
        ranker = load(config.ckpt_path)  # with its own options, whatever model= says
    if ranker.certified:
        callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
        callbacks[:] = [callback for callback in callbacks if not isinstance(callback, EarlyStopping)]
    state = config.ckpt_path
    if config.train:
        if state:
            read_checkpoint(state)  # refused here if it is none: Lightning would not say why
        try:
            trainer.fit(ranker, datamodule=data, ckpt_path=state, weights_only=True)
        except (KeyboardInterrupt, SystemExit) as end:  # the second is what Lightning makes of signals
            kept = [path for folder in checkpoint_folders(trainer) if (path := folder / "last.ckpt").exists()]
            go_on = "".join(f" Go on with 'ckpt_path=\"{path}\"'" for path in kept)
            print(f"interrupted after {trainer.current_epoch} epochs.{go_on}", file=sys.stderr)
            if isinstance(end, SIGTERMException):  # its own code is that of success
                raise SystemExit(128 + signal.SIGTERM) from None
            raise
        stopper: Any = trainer.early_stopping_callback
        if trainer.is_global_zero and stopper is not None and stopper.stopped_epoch:
            print(f"stopped early: no better {stopper.monitor} in the last {stopper.patience} validations")
        best: Any = trainer.checkpoint_callback
        state = None if ranker.certified else best.best_model_path
    seconds["fit"], clock = time.perf_counter() - clock, time.perf_counter()

    trainer.validate(ranker, datamodule=data, ckpt_path=state, weights_only=True, verbose=False)
    if config.test and "test" in data.sets:
        trainer.test(ranker, datamodule=data, ckpt_path=state, weights_only=True, verbose=False)
    seconds["test"] = time.perf_counter() - clock
    name = method_name(config, ranker)
    return record(name, plain(config), settings(config), ranker, data, seconds), ranker, data


def method_name(config: DictConfig, ranker: Ranker) -> str:
    """The name in tables; where a checkpoint is tested, model= says nothing of what it holds."""
    given = config.train or config.name != HydraConfig.get().runtime.choices["model"]
    return config.name if given else type(ranker).__name__


def settings(config: DictConfig) -> dict[str, Any]:
    """What this run sets differently from its siblings in a sweep: its overrides, less folds, seeds and places."""
    keys = [override.lstrip("+").partition("=")[0] for override in HydraConfig.get().overrides.task]
    return {key: plain(OmegaConf.select(config, key)) for key in keys if key not in NOT_SETTINGS}


def plain(config: Any) -> Any:
    """Dictionaries, lists and values without Hydra."""
    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config


def check_monitor(monitor: str, data: Any) -> None:
    """Refuse what validation does not measure, before a fit that would end with it."""
    for measure in data.measures:
        parse_measure(measure, data.conventions[0])
    choices = [f"val/{measure}" for measure in data.measures]
    choices += [f"val/{name}/{measure}" for name in data.conventions[1:] for measure in data.measures]
    if monitor not in choices:
        raise ValueError(f"monitor={monitor} is not measured: choose one of {', '.join(choices)}, or add to measures")


def keep_checkpoints_in(folder: Path, trainer: Trainer) -> None:
    """A resumed fit goes on where its best state lies; in another folder Lightning would forget it."""
    callback: Any
    for callback in trainer.checkpoint_callbacks:
        callback.dirpath = str(folder.resolve())


def checkpoint_folders(trainer: Trainer) -> set[Path]:
    """Where checkpoints are written on this machine."""
    callbacks: Any = trainer.checkpoint_callbacks
    return {Path(one.dirpath).resolve() for one in callbacks if one.dirpath and "://" not in str(one.dirpath)}


def make_trainer(config: DictConfig) -> Trainer:
    parts = {
        "callbacks": [instantiate(callback) for callback in config.callbacks.values()],
        "logger": [instantiate(logger) for logger in config.logger.values()],
    }
    try:
        trainer = instantiate(config.trainer, **parts, _convert_="all")
    except InstantiationException as error:
        if not isinstance(error.__cause__, MisconfigurationException):
            raise
        choice = HydraConfig.get().runtime.choices["trainer"]
        raise SystemExit(f"trainer={choice}: {error.__cause__}") from None
    if any(name in str(config.trainer.get("strategy")) for name in ("spawn", "fork", "notebook")):
        raise SystemExit(
            f"trainer.strategy={config.trainer.strategy} fits in processes whose results do not come back: use "
            "trainer=ddp, which starts this script once for each process."
        )
    if trainer.world_size > 1 and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise SystemExit(
            f"-m with {trainer.world_size} processes would start the whole sweep in each of them: sweep with "
            "trainer=cpu or trainer=gpu, or start the runs one by one without -m."
        )
    return trainer


if __name__ == "__main__":
    main()
