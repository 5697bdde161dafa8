"""A user's mistake in one line: what is wrong with a configuration, and the choices near to what was typed."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from torchrank import screen

FLAGS = re.compile(  # of Hydra
    "-(h|c|p|r|m|sc|cp|cn|cd|i)|--(help|hydra-help|version|cfg|resolve|package|run|multirun|shell-completion|"
    "config-path|config-name|config-dir|experimental-rerun|info)"
)
MISTAKES = (ValueError, OSError, ImportError, HydraException, OmegaConfBaseException)


def is_mistake(error: BaseException) -> bool:
    """Whether an error tells the user what to change. Lightning's own is known by its name: importing it takes seconds.

    >>> is_mistake(ValueError("l2 must be >= 0")), is_mistake(ZeroDivisionError())
    (True, False)
    """
    return isinstance(error, MISTAKES) or type(error).__name__ == "MisconfigurationException"


def mistake(error: BaseException, conf: Path) -> str:
    """The line that tells what is wrong; `conf` is the folder of the configuration groups.

    >>> mistake(MissingConfigException("Could not find it", "model/listnets", ["gbdt", "listnet"]), Path("conf"))
    'unknown model=listnets: did you mean listnet?'
    """
    cause, text = error.__cause__, one_line(error)
    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"unknown {group}={name}: {near(name, error.options)}"
    if of_list := re.match(r"In '.*': Could not load '(\w+)/(\w+)'", text):  # logger=[csv,tensorbord]
        group, name = of_list.groups()
        return f"unknown {group}={name}: {near(name, (path.stem for path in (conf / group).glob('*.yaml')))}"
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and text.startswith("Could not override"):
        return _unknown_option(cause)
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: write OPTION=VALUE, with quotes around special characters"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing: give {error.full_key}=VALUE"
    if text.startswith("Ambiguous value"):
        return f"{str(error).splitlines()[0]}: add -m for a sweep over these values, or write a list as key=[a,b]"
    if isinstance(error, InstantiationException) and cause is not None:
        return mistake(cause, conf)
    return f"{text} {one_line(cause)}" if isinstance(cause, OmegaConfBaseException) else text


def one_line(error: BaseException) -> str:
    """The message of an error, without what OmegaConf adds about its own types.

    >>> one_line(ValueError("first\\n  second"))
    'first second'
    """
    return screen.told(error).partition(" full_key: ")[0]


def near(name: str, choices: Iterable[Any], prefix: str = "") -> str:
    """The choices that are spelt alike, or all of them; `prefix` stands before each.

    >>> near("lr", ["lr_decay", "l2"]), near("dept", ["depth", "width"], "model.")
    ('choose one of l2, lr_decay', 'did you mean model.depth?')
    """
    known = sorted(map(str, choices))
    alike = get_close_matches(name, known, n=2)
    shown = [f"{prefix}{choice}" for choice in alike or known]
    return f"did you mean {' or '.join(shown)}?" if alike else f"choose one of {', '.join(shown)}"


def unknown_flag(arguments: Iterable[str]) -> str | None:
    """What is wrong with the first flag that Hydra does not have, such as `--model lgmml`; None if it has all of them.

    >>> unknown_flag(["-m", "model=listnet", "--lr=0.1"])
    'unknown flag --lr: options are written without dashes, as NAME=VALUE, such as model=lgmml'
    """
    flags = (argument.partition("=")[0] for argument in arguments if argument.startswith("-"))
    unknown = next((flag for flag in flags if not FLAGS.fullmatch(flag)), None)
    told = "options are written without dashes, as NAME=VALUE, such as model=lgmml"
    return None if unknown is None else f"unknown flag {unknown}: {told}"


def _unknown_option(error: OmegaConfBaseException) -> str:
    """A key that the configuration does not have: `model.kapa`, or `modle`."""
    path = str(error.full_key)
    choices = list(error.parent_node) if isinstance(error.parent_node, DictConfig) else []
    offered = (choice for choice in choices if not str(choice).startswith("_") and choice != "hydra")
    group, dot, name = path.rpartition(".")
    return f"unknown option {path}: {near(name, offered, group + dot)}"
