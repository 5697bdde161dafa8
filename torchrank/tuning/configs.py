"""What Hydra and OmegaConf know for a study: the command line in parts, composed configurations, search spaces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from omegaconf import OmegaConf

from torchrank.errors import check_integer, check_number
from torchrank.mistakes import is_mistake, mistake, near
from torchrank.train import CONF
from torchrank.tuning.spaces import Choices, Dimension, Range, Space, as_text

OWN: dict[str, Any] = {  # options of a study, beside those of a run
    "trials": 50,
    "workers": 1,
    "cpu_seconds": None,
    "prune": True,
    "folder": None,
}
REFUSED = {  # options of a run that a study decides
    "train": "a study fits every trial",
    "test": "the winner alone is tested, once",
    "show": "a study prints its own table",
    "ckpt_path": "a study resumes by the same command",
    "hydra.run.dir": "name the folder of the study with folder=",
    "hydra.sweep.dir": "name the folder of the study with folder=",
}
SEARCHED = ("model", "trainer", "callbacks", "distil", "seed")  # the parts of a configuration that a space may have


@dataclass(frozen=True)
class Line:
    """A command line in parts: the options of the study, the models, the overrides of every run, and swept values."""

    own: dict[str, Any]
    models: list[str]
    overrides: list[str]
    swept: Space = field(default_factory=dict)


def read_line(arguments: Sequence[str], own: dict[str, Any]) -> Line:
    """Take a command line apart; a mistake is one line.

    Args:
        arguments: `OPTION=VALUE`, as for `torchrank train`; `model=a,b` names several models.
        own: the options of the command with their defaults.

    Returns:
        The parts. A list of values, `model.l2=1e-4,1e-3`, or `model.lr=interval(1e-4,1e-1)` is a part of the space.
    """
    given, models, overrides, swept = dict(own), [], [], {}
    for each in parse(arguments):
        key = each.key_or_group
        if key in REFUSED:
            raise ValueError(f"{key} cannot be set here: {REFUSED[key]}")
        if key in own:
            given[key] = _value(each)
        elif key == "model":
            models = _texts(each)
        elif each.is_sweep_override():
            _check_searched(key)
            swept[_prefix(each) + key] = _dimension(each)
        else:
            overrides.append(str(each.input_line))
    return Line(given, models, overrides, swept)


def parse(arguments: Sequence[str]) -> list[Override]:
    """The overrides that these texts are."""
    try:
        return OverridesParser.create().parse_overrides(list(arguments))
    except Exception as error:
        if not is_mistake(error):
            raise
        raise ValueError(mistake(error, CONF)) from error


def _prefix(override: Override) -> str:
    """The `+` of an option that is added."""
    return "+" * (override.is_add() + override.is_force_add() * 2)


def _check_searched(key: str) -> None:
    """Refuse to choose what decides on which lists, and by which measure, trials are compared."""
    if key.partition(".")[0] not in SEARCHED or key in SEARCHED[:-1]:
        raise ValueError(
            f"{key} must have one value: trials are compared on the same lists by the same measure. Only options below "
            f"{', '.join(f'{name}.' for name in SEARCHED[:-1])} and {SEARCHED[-1]} can be searched"
        )


def _value(override: Override) -> Any:
    if override.is_sweep_override():
        return ",".join(_texts(override))
    value = override.value()
    return value if isinstance(value, int | float | list | None) else str(value)


def _texts(override: Override) -> list[str]:
    if not override.is_sweep_override():
        value = override.value()
        return [str(each) for each in value] if isinstance(value, list) else [str(value)]
    if not override.is_discrete_sweep() or isinstance(override.value(), Glob):
        raise ValueError(f"{override.input_line} is not a list of values, such as {override.key_or_group}=a,b")
    return list(override.sweep_string_iterator())


def _dimension(override: Override) -> Dimension:
    value = override.value()
    if not isinstance(value, IntervalSweep):
        return Choices(tuple(_texts(override)))
    if value.start is None or value.end is None:
        raise ValueError(f"{override.input_line} needs both ends, such as interval(0, 1)")
    return Range.between(value.start, value.end, log="log" in value.tags)


# ---- composed configurations -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Composed:
    """What a study has to know of the configuration of one model."""

    model: str
    data: dict[str, Any]
    data_name: str
    seed: int
    monitor: str
    mode: str
    space: Space
    defaults: dict[str, str]  # the value of every option of the space, as text of an override


def compose_model(model: str | None, line: Line) -> Composed:
    """The configuration of a run of this model, and its search space under this command line."""
    overrides = [*line.overrides, *([f"model={model}"] if model else [])]
    try:
        GlobalHydra.instance().clear()  # what a caller may have left open
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("train", overrides, return_hydra_config=True)
            choices = config.hydra.runtime.choices
            name = str(choices["model"])
            for key in line.swept:
                compose("train", [*overrides, f"{key}={as_text(None)}"])  # an unknown option is told now
    except Exception as error:
        if not is_mistake(error):
            raise
        told = _own_first(mistake(error, CONF), line.own)
        raise ValueError(f"model={model}: {told}" if model and "model." in told else told) from error
    _check_trainer(config.trainer)
    space = narrowed(search_space(name), line)
    defaults = {key: OmegaConf.select(config, key.lstrip("+")) for key in space}
    plain = {key: OmegaConf.to_object(each) if OmegaConf.is_config(each) else each for key, each in defaults.items()}
    return Composed(
        model=name,
        data=_plain(config.data),
        data_name=str(choices["data"]),
        seed=int(config.seed),
        monitor=str(config.monitor),
        mode=str(config.mode),
        space={key: each.including(plain[key]) for key, each in space.items()},
        defaults={key: as_text(value) for key, value in plain.items()},
    )


def _own_first(told: str, own: Iterable[str]) -> str:
    """What is wrong, with an option of the study if that is what was meant.

    >>> _own_first("unknown option trails: did you mean train?", OWN)
    'unknown option trails: did you mean trials?'
    """
    unknown = re.match(r"unknown option (\w+): ", told)
    alike = get_close_matches(unknown[1], own, 1) if unknown else []
    return f"{unknown[0]}did you mean {alike[0]}?" if unknown and alike else told


def _plain(config: Any) -> dict[str, Any]:
    found = OmegaConf.to_container(config, resolve=True)
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _check_trainer(trainer: Any) -> None:
    if trainer.get("strategy") or trainer.get("devices") not in (1, "1", "auto"):
        raise ValueError(
            f"a trial is fitted in one process, but the trainer asks for devices={trainer.get('devices')}, "
            f"strategy={trainer.get('strategy')}: use trainer=cpu or trainer=gpu."
        )


def known_models() -> list[str]:
    """The names of all models."""
    return sorted(path.stem for path in (CONF / "model").glob("*.yaml"))


# ---- search spaces ---------------------------------------------------------------------------------------------------


def search_space(model: str) -> Space:
    """The space of `conf/search/MODEL.yaml`; empty, if a model has none.

    >>> sorted(search_space("lambdarank"))[0]
    'model.k'
    """
    path = CONF / "search" / f"{model}.yaml"
    content = _plain(OmegaConf.load(path)) if path.is_file() else {}
    return {key: read_dimension(f"{path.name}: {key}", part) for key, part in content.items()}


def read_dimension(where: str, part: Any) -> Dimension:
    """A range `{low, high, log}` or `{choices: [...]}` of a search space.

    >>> read_dimension("x.yaml: model.lr", {"low": 1e-3, "high": 1.0, "log": True})
    Range(low=0.001, high=1.0, log=True, whole=False)
    """
    keys = set(part) if isinstance(part, dict) else set()
    if keys == {"choices"} and isinstance(part["choices"], list) and part["choices"]:
        return Choices(tuple(as_text(value) for value in part["choices"]))
    if not {"low", "high"} <= keys <= {"low", "high", "log"}:
        raise ValueError(f"{where} must be {{choices: [...]}} or {{low: 1, high: 9, log: false}}, got {part}")
    check_number(f"< {part['high']}", **{f"{where}: low": part["low"]})
    return Range.between(part["low"], part["high"], log=bool(part.get("log")))


def narrowed(space: Space, line: Line) -> Space:
    """The space without the options that the command line sets, and with the values that it sweeps."""
    given = [text.lstrip("+~").partition("=")[0] for text in (*line.overrides, *line.swept)]
    free = {key: each for key, each in space.items() if not any(_overlap(key, other) for other in given)}
    return free | line.swept


def _overlap(key: str, other: str) -> bool:
    """Whether one of two options is, or is a part of, the other one."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def check_own(own: dict[str, Any]) -> None:
    """Refuse options of a study that cannot work."""
    check_integer(">= 1", trials=own["trials"], workers=own["workers"])
    if own["cpu_seconds"] is not None:
        check_number(">= 1", cpu_seconds=own["cpu_seconds"])
    if not isinstance(own["prune"], bool):
        raise ValueError(f"prune must be true or false, got {own['prune']}")


def check_models(models: Sequence[str]) -> None:
    """Refuse names that are not those of models."""
    known = known_models()
    for name in models:
        if name not in known:
            raise ValueError(f"unknown model={name}: {near(name, known)}")


def folder_of(line: Line, composed: Sequence[Composed]) -> Path:
    """The folder of a study: the one named, or one that the same command finds again."""
    if line.own["folder"] is not None:
        return Path(str(line.own["folder"]))
    told = [text for text in line.overrides if text.partition("=")[0] not in ("data", "data.root", "experiment")]
    told += [f"{key}={each}" for key, each in line.swept.items()]
    name = ",".join(["+".join(each.model for each in composed), *sorted(told)])
    safe = "".join(char if char.isalnum() or char in "=,.+-_@[]" else "_" for char in name)
    return Path("runs/tune") / composed[0].data_name / safe[:120]
