"""One run: read the data, fit, select by validation, test once, write the results.

`train.py` imports this when a configuration is composed: Lightning takes seconds to import.
"""

import gc
import io
import logging
import shlex
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from hydra.utils import get_class, instantiate
from lightning_fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning import Callback, Trainer, seed_everything
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.utilities.exceptions import SIGTERMException

from torchrank.data.datamodule import RankingDataModule
from torchrank.errors import DataError, check_integer, check_numbers
from torchrank.rankers.core.checkpoints import load, read_checkpoint
from torchrank.rankers.core.evaluation import UNJUDGED, RankingEvaluation
from torchrank.rankers.core.own import import_from_here
from torchrank.rankers.core.queries import query_facts
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.core.stopping import is_lost_process
from torchrank.rankers.ensemble.distil import distilled
from torchrank.record import (
    OF_SOURCE,
    RESULTS,
    alone_in,
    finished,
    forget_results,
    parse_monitor,
    record,
    smaller_is_better,
    write_results,
)
from torchrank.report.gain import gain
from torchrank.report.tables import show_run
from torchrank.screen import console, one_line, quoted, say

GROUPS = ("data", "model", "experiment", "trainer", "callbacks", "logger", "debug")
NOT_SETTINGS = (*GROUPS, "name", "seed", "data.fold", "inner", *OF_SOURCE)

log = logging.getLogger(__name__)


def tell(text: str) -> None:
    """Print a line and keep it in the log."""
    say(text)
    log.info(text)


def run_once(
    config: DictConfig, folder: Path, watchers: Sequence[Callback] = (), *, keep: bool = False
) -> dict[str, Any] | None:
    """`run`, unless its results exist, or the package of its model does not and `skip_missing` is set.

    With `keep`, the results of another run in the folder are not replaced, except by a fit that goes on or a test.
    """
    results = finished(folder, plain(config))
    if results is not None:
        tell(f"Skipping: results for this configuration already exist in {folder}: remove it to run again")
        return results
    if keep and config.ckpt_path is None and (folder / RESULTS).exists():
        raise FileExistsError(
            f"{folder} holds the results of a run with other options: name another folder with hydra.run.dir, or "
            "remove this one"
        )
    try:
        return run(config, folder, watchers)
    except (ImportError, InstantiationException) as error:
        missing = error if isinstance(error, ImportError) else error.__cause__
        if not config.skip_missing or not isinstance(missing, ImportError):
            raise
        tell(f"Skipping {config.name}: {missing}")
        return None


def run(config: DictConfig, folder: Path, watchers: Sequence[Callback] = ()) -> dict[str, Any]:
    """Fit and test. The first process writes and prints the results. Watchers are further callbacks."""
    check_config(config)
    seed_everything(config.seed, workers=True, verbose=False)
    trainer, evaluation = make_trainer(config, watchers)
    check_monitor(config.monitor, evaluation)
    if config.train and config.ckpt_path is not None:
        keep_checkpoints_in(Path(config.ckpt_path).parent, trainer)
    if not trainer.is_global_zero:
        with told_endings(trainer):
            return fit_and_test(config, trainer, evaluation)[0]
    with ExitStack() as locks:
        places = {folder.resolve(), *(checkpoint_folders(trainer) if config.train else ())}
        for place in sorted(places):  # in one order, or two runs could refuse each other
            locks.enter_context(alone_in(place))
        forget_results(folder)
        with told_endings(trainer):
            results, facts = fit_and_test(config, trainer, evaluation)
        write_results(folder, results, evaluation.measured, facts)
    screen = console(soft_wrap=True, record=True, file=None if config.show else io.StringIO())
    show_run(results, folder, screen)
    log.info(screen.export_text())
    return results


def check_config(config: DictConfig) -> None:
    """Refuse options that cannot work before anything is read."""
    hydra_config = HydraConfig.get()
    given = any(override.startswith("model=") for override in hydra_config.overrides.task) or config.ckpt_path
    swept = any(hydra_config.sweeper.get(key) for key in ("grids", "params"))
    if hydra_config.mode == RunMode.RUN and swept and not given:
        name = hydra_config.runtime.choices.get("experiment")
        raise ValueError(f"experiment={name} defines a sweep: run it with -m, or pick one run with model=NAME.")
    if not config.train and config.ckpt_path is None:
        raise ValueError("train=false tests a checkpoint: name it with ckpt_path=FILE.")
    if config.ckpt_path is not None and not Path(config.ckpt_path).is_file():
        raise FileNotFoundError(f"ckpt_path not found: {config.ckpt_path}")
    check_integer(">= -1", **{"trainer.max_epochs": config.trainer.max_epochs})
    for name in ("measures", "conventions"):
        if not OmegaConf.is_list(config[name]):
            raise ValueError(f"{name} must be a list, such as {name}=[{config[name]}], got {config[name]}")
    if config.mode == "max" and smaller_is_better(config.monitor):
        raise ValueError(f"monitor={config.monitor} is an error measure: set mode=min.")


def check_monitor(monitor: str, evaluation: RankingEvaluation) -> None:
    """Refuse a monitor that validation does not measure."""
    if monitor not in evaluation.names():
        choices = ", ".join(evaluation.names())
        raise ValueError(f"monitor={monitor} is not measured: choose one of {choices}, or add it to measures.")


def fit_and_test(config: DictConfig, trainer: Trainer, evaluation: RankingEvaluation) -> tuple[dict[str, Any], Any]:
    """The content of `results.json`, and what is known about each test query."""
    clock, used = [time.perf_counter()], [time.process_time()]
    data = read_data(config)
    clock.append(time.perf_counter())
    used.append(time.process_time())
    if own := own_names(config.model):
        import_from_here()
    if config.train:
        check_numbers(get_class(config.model._target_), config.model, "model.")
        ranker = instantiate(config.model, num_features=data.num_features, _convert_="all")
        if config.distil.teacher is not None:
            data.sets["train"] = distilled(student=ranker, train=data.sets["train"], **plain(config.distil))
        state = fit(config, trainer, ranker, data)
    else:
        ranker, state = load(config.ckpt_path, **own), config.ckpt_path  # the other options of model= are ignored
    clock.append(time.perf_counter())
    used.append(time.process_time())
    trainer.validate(ranker, datamodule=data, ckpt_path=state, weights_only=True, verbose=False)
    if config.test and "test" in data.sets:
        trainer.test(ranker, datamodule=data, ckpt_path=state, weights_only=True, verbose=False)
        tested = evaluation.measured["test"][evaluation.conventions[0]]
        if UNJUDGED in tested:
            ranker.findings[UNJUDGED] = f"{tested[UNJUDGED]:.1f} documents of a query, which count as irrelevant"
        if (baseline := ranker.baseline()) is not None:
            ranker.findings |= gained(config, trainer, baseline, data, evaluation)
    clock.append(time.perf_counter())
    used.append(time.process_time())
    seconds, cpu = ({name: of[i + 1] - of[i] for i, name in enumerate(("data", "fit", "test"))} for of in (clock, used))
    name = method_name(config, ranker)
    results = record(name, plain(config), settings(config), ranker, data, evaluation, seconds)
    results["cpu_seconds"] = cpu  # of this process, all threads
    return results, query_facts(ranker, data.sets["test"], evaluation.conventions[0]) if "test" in data.sets else {}


def gained(
    config: DictConfig, trainer: Trainer, baseline: Any, data: RankingDataModule, evaluation: RankingEvaluation
) -> dict[str, str]:
    """What a baseline reaches, which is tested now, and what the ranker that was just tested gained, in words."""
    found = evaluation.measured["test"]
    trainer.test(baseline, datamodule=data, verbose=False)
    other, evaluation.measured["test"] = evaluation.measured["test"], found
    _, convention, measure = parse_monitor(config.monitor, evaluation.conventions)
    ours, theirs = (each[convention]["per_query"][measure] for each in (found, other))
    return {"before": f"{np.nanmean(theirs):.4f} {measure}", "gain": str(gain(measure, ours, theirs))}


def own_names(model: DictConfig) -> dict[str, str]:
    """The dotted names of the user's own network and loss, which a checkpoint names but does not import."""
    options = {**(model.get("base_options") or {}), **model}
    return {name: options[name] for name in ("scorer", "loss") if "." in str(options.get(name))}


def read_data(config: DictConfig) -> RankingDataModule:
    """The data of a run, with validation lists."""
    data: RankingDataModule = instantiate(config.data, _convert_="all")
    data.setup()
    if "val" not in data.sets:
        raise DataError("a run selects by validation, but this data has no val lists: hold out some queries.")
    counted = ", ".join(f"{len(lists)} {split} lists" for split, lists in data.sets.items())
    log.info(f"{config.name} on {data.title}: {counted}, {data.num_features} features")
    if config.inner is not None:
        keep_inner(data, str(config.inner))
    return keep_few(data, config.max_queries) if config.max_queries is not None else data


def keep_inner(data: RankingDataModule, part: str) -> None:
    """Fold 2 of 5 of the training queries ("2/5") takes the place of the data, whose other lists are not looked at."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(count) >= 3 and 1 <= int(number) <= int(count)):
        raise ValueError(f"inner must be a fold of at least 3, such as 2/5, got {part}")
    train = data.sets["train"]
    if len(train) < int(count):
        raise DataError(f"inner={part} needs at least {count} training queries, got {len(train)}")
    parts = np.array_split(np.random.default_rng(0).permutation(len(train)), int(count))
    test, val = parts.pop(int(number) - 1), parts.pop(int(number) % int(count) - (int(number) < int(count)))
    taken = {"train": np.concatenate(parts), "val": val, "test": test}
    data.sets = {split: train.subset(np.sort(lists)) for split, lists in taken.items()}
    data.fold = f"{data.fold}.{number}"  # type: ignore[assignment]


def keep_few(data: RankingDataModule, count: int) -> RankingDataModule:
    """At most so many queries of each split, evenly spaced, for a try (debug=fast)."""
    check_integer(">= 2", max_queries=count)
    for split, lists in data.sets.items():
        if len(lists) > count:
            data.sets[split] = lists.subset(np.linspace(0, len(lists) - 1, count).astype(int))
    warnings.filterwarnings("ignore", ".*stopped before its certificate.*")
    tell(f"A try with at most {count} queries of each split: its measures mean nothing.")
    return data


def fit(config: DictConfig, trainer: Trainer, ranker: Ranker, data: RankingDataModule) -> str | None:
    """Fit, and return the checkpoint that is tested: the best one, or None for the last state of a certified fit."""
    if ranker.certified:
        callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
        callbacks[:] = [callback for callback in callbacks if not isinstance(callback, EarlyStopping)]
    if ranker.own.keys() & {"members", "start"}:  # fitted rankers, which stay in evaluation mode
        warnings.filterwarnings("ignore", ".*in eval mode at the start of training")
    if config.ckpt_path:
        read_checkpoint(config.ckpt_path)  # says what is wrong with it; Lightning would not
    trainer.fit(ranker, datamodule=data, ckpt_path=config.ckpt_path, weights_only=True)
    stopper: Any = trainer.early_stopping_callback
    if trainer.is_global_zero and stopper is not None and stopper.stopped_epoch:
        tell(f"Stopped early: no better {stopper.monitor} in the last {stopper.patience} validations.")
    best: Any = trainer.checkpoint_callback
    return None if ranker.certified else best.best_model_path


@contextmanager
def told_endings(trainer: Trainer) -> Iterator[None]:
    """A signal, or the end of another process, is one line that says how to resume, and an exit code."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:  # Lightning turns signals into the second
        gc.freeze()  # or the interpreter would spend a second on collecting its modules before it ends
        log.warning(f"Interrupted after {trainer.current_epoch} epochs.{how_to_resume(trainer)}")
        if isinstance(end, SIGTERMException):  # its own exit code is 0
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends another when the first process has ended
            raise SystemExit(128 + signal.SIGTERM) from None
        if isinstance(end, KeyboardInterrupt) or isinstance(end.__context__, KeyboardInterrupt):
            raise SystemExit(128 + signal.SIGINT) from None
        raise
    except RuntimeError as error:
        if not is_lost_process(trainer, error):
            raise
        gc.freeze()
        told = f"Another process of this fit has ended after {trainer.current_epoch} epochs, so this one ends too."
        log.error(f"torchrank train: error: {told}{how_to_resume(trainer)}")
        raise SystemExit(1) from None


def how_to_resume(trainer: Trainer) -> str:
    """The option that resumes a fit, if it has written a checkpoint."""
    kept = [path for folder in checkpoint_folders(trainer) if (path := folder / "last.ckpt").exists()]
    return "".join(f" Resume with {shlex.quote(f'ckpt_path={quoted(str(path))}')}." for path in kept)


def method_name(config: DictConfig, ranker: Ranker) -> str:
    """The name in tables; with train=false the class of the checkpoint, since model= is ignored."""
    given = config.train or config.name != HydraConfig.get().runtime.choices["model"]
    return config.name if given else type(ranker).__name__


def settings(config: DictConfig) -> dict[str, Any]:
    """The settings that tell this run from others of a sweep: its overrides without folds, seeds and folders."""
    keys = [override.lstrip("+").partition("=")[0] for override in HydraConfig.get().overrides.task]
    return {key: plain(OmegaConf.select(config, key)) for key in keys if key not in NOT_SETTINGS}


def plain(config: Any) -> Any:
    """A config as plain dicts, lists and values."""
    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config


def keep_checkpoints_in(folder: Path, trainer: Trainer) -> None:
    """Keep writing where the best checkpoint of a resumed fit is; in another folder Lightning would forget it."""
    callback: Any
    for callback in trainer.checkpoint_callbacks:
        callback.dirpath = str(folder.resolve())


def checkpoint_folders(trainer: Trainer) -> set[Path]:
    """The folders on this machine that checkpoints are written to."""
    callbacks: Any = trainer.checkpoint_callbacks
    return {Path(one.dirpath).resolve() for one in callbacks if one.dirpath and "://" not in str(one.dirpath)}


def make_trainer(config: DictConfig, watchers: Sequence[Callback] = ()) -> tuple[Trainer, RankingEvaluation]:
    """The trainer of a run, and the callback that measures it."""
    callbacks = [instantiate(callback, _convert_="all") for callback in config.callbacks.values()] + [*watchers]
    loggers = [make_logger(name, part) for name, part in config.logger.items()]
    try:
        trainer = instantiate(config.trainer, callbacks=callbacks, logger=loggers, _convert_="all")
    except InstantiationException as error:
        if not isinstance(error.__cause__, MisconfigurationException):
            raise
        choice = HydraConfig.get().runtime.choices["trainer"]
        raise ValueError(f"trainer={choice}: {one_line(error.__cause__)}{without_gpu(config)}") from None
    if any(name in str(config.trainer.get("strategy")) for name in ("spawn", "fork", "notebook")):
        raise ValueError(
            f"trainer.strategy={config.trainer.strategy} fits in processes that do not return their results: use "
            "trainer=ddp, which starts this script once per process."
        )
    if trainer.world_size > 1 and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise ValueError(
            f"-m with {trainer.world_size} processes would start the whole sweep in each of them: use trainer=cpu or "
            "trainer=gpu, or start single runs without -m."
        )
    evaluation = next((callback for callback in callbacks if isinstance(callback, RankingEvaluation)), None)
    if evaluation is None:
        raise ValueError("callbacks must have a torchrank.RankingEvaluation, which measures the run")
    return trainer, evaluation


def make_logger(name: str, config: DictConfig) -> Any:
    """A logger of Lightning; a missing package is named with the extra that brings it."""
    try:
        return instantiate(config)
    except InstantiationException as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        raise ImportError(f"logger={name} needs {name}: pip install 'torchrank-ltr[loggers]'") from error


def without_gpu(config: DictConfig) -> str:
    """What to choose on a machine without a GPU, if one was asked for."""
    if config.trainer.accelerator not in ("gpu", "cuda") or torch.cuda.is_available():
        return ""
    several = "strategy" in config.trainer
    return f" On a machine without a GPU use trainer={'ddp_cpu' if several else 'cpu'}."
