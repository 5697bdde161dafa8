"""The door of `python train.py` and `torchrank train`: Hydra composes a configuration, `run.py` carries it out."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from torchrank.mistakes import is_mistake, mistake, unknown_flag
from torchrank.screen import settle_streams

PACKAGE = Path(__file__).resolve().parent
CONF = next(folder for folder in (PACKAGE / "conf", PACKAGE.parent / "conf") if folder.is_dir())

FULL, SHORT = "HYDRA_FULL_ERROR", "TORCHRANK_SHORT_ERRORS"

NOISE = (  # warnings of Lightning about its own internals
    ".*isinstance.treespec, LeafSpec.*",
    ".*exists and is not empty.*",
    ".*Initializing zero-element tensors is a no-op.*",
    ".*recommended to use `self.log.*sync_dist=True.*",  # measures cover all processes already
    ".*dirpath has changed.*",
    ".*`broadcast_buffers` is deprecated.*",  # older versions of torch have no other name for it
)


log = logging.getLogger(__name__)


def main() -> None:
    """`torchrank train` and `python train.py`: a run, or with -m a sweep. A mistake is one line and exit code 2."""
    settle_streams()
    if told_in_full():
        train()
        return
    os.environ |= {FULL: "1", SHORT: "1"}  # Hydra then raises what went wrong; the second is for processes started here
    try:
        if (wrong := unknown_flag(sys.argv[1:])) is not None:
            raise ValueError(wrong)
        train()
    except KeyboardInterrupt:
        print("torchrank train: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not is_mistake(error):  # in the configuration, or told already by the runs of a sweep
            raise
        print(f"torchrank train: error: {mistake(error, CONF)}", file=sys.stderr)
        sys.exit(2)


def told_in_full() -> bool:
    """Whether the user has asked for tracebacks with HYDRA_FULL_ERROR=1."""
    return FULL in os.environ and SHORT not in os.environ


def refuse(error: BaseException) -> int:
    """Tell a mistake in one line, on stderr and in the log of the run, and return the exit code."""
    log.error(f"torchrank train: error: {mistake(error, CONF)}")
    return 2


def crash() -> int:
    """Show where the run failed, on stderr and in its log, and return the exit code."""
    log.exception("The run failed:")
    return 1


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def train(config: DictConfig) -> float | None:
    """Run, and return the monitored validation measure for sweepers that optimise it."""
    folder, single = Path(HydraConfig.get().runtime.output_dir), HydraConfig.get().mode == RunMode.RUN
    keep_log()
    try:
        from torchrank.run import run_once

        results = run_once(config, folder, keep=single)
    except (KeyboardInterrupt, SystemExit):  # an interrupt
        forget(folder)
        raise
    except Exception as error:
        told = is_mistake(error) and not told_in_full()
        code = refuse(error) if told else crash()
        if not single:
            raise  # the sweep goes on, and counts the failed runs at its end
        if told:
            forget(folder)
        raise SystemExit(code) from None
    return None if results is None else results["selection"]["value"]


def forget(folder: Path) -> None:
    """End the log of a run that will not go on, and remove its folder if it holds nothing of use."""
    from torchrank.record import forget_start

    logging.shutdown()
    logging.disable()  # or what libraries log at their end would open the file again
    forget_start(folder)


def carry_out(overrides: Sequence[str], task: Callable[[DictConfig, Path], None]) -> None:
    """Compose one run and hand its configuration and folder to `task`: in a process that carries out many, as trials.

    What the task raises, and what Hydra finds wrong, is raised here.
    """

    def inside(config: DictConfig) -> None:  # its file gives the log its name
        keep_log()
        task(config, Path(HydraConfig.get().runtime.output_dir))

    os.environ |= {FULL: "1", SHORT: "1"}
    sys.argv = [__file__, *overrides]
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")(inside)()


def keep_log() -> None:
    """Warnings go to train.log, and without the line of code that they come from to stderr."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for noise in NOISE:
        warnings.filterwarnings("ignore", noise)
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}"
    logging.captureWarnings(True)


if __name__ == "__main__":
    main()
