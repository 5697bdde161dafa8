"""Hooks of mkdocs: equations as MathML, so that the site needs no scripts from elsewhere; API pages of all exports."""

import operator
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torchrank
import torchrank.functional

EXPORTS = re.compile(r"^\{\{ exports (?P<rooms>[\w. ]+) \}\}$", flags=re.MULTILINE)


def on_config(config: Any) -> Any:
    """Render ```math blocks by `math`."""
    fence = {"name": "math", "class": "math", "format": math}
    config["mdx_configs"].setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def math(source: str, *rest: Any, **options: Any) -> str:
    """An equation in LaTeX as a block of MathML."""
    from latex2mathml.converter import convert

    return f'<div class="math">{convert(source.strip(), display="block")}</div>'


def on_page_markdown(markdown: str, **options: Any) -> str:
    """Write the API of all exports of some modules where a page asks for it."""
    return EXPORTS.sub(lambda found: "\n\n".join(map(entry, exports(found["rooms"].split()))), markdown)


def entry(name: str) -> str:
    """The API of one name; of classes that are no rankers with their documented methods, which all rankers share."""
    found = operator.attrgetter(name.removeprefix("torchrank."))(torchrank)
    if not isinstance(found, type) or name.removeprefix("torchrank.") in torchrank.RANKERS:
        return f"::: {name}"
    methods = [key for key, value in vars(found).items() if _is_method(value) and not key.startswith("_")]
    return f"::: {name}\n    options:\n      members: {methods}"


def _is_method(value: Any) -> bool:
    return isinstance(value, (FunctionType, classmethod, staticmethod, property)) and bool(value.__doc__)


def exports(rooms: list[str]) -> Iterator[str]:
    """Exported names whose modules lie in some rooms, in alphabetical order, rankers apart from their machinery."""
    named = {f"torchrank.{name}": module for name, module in torchrank.EXPORTS.items()}
    named |= {f"torchrank.functional.{name}": "torchrank.functional" for name in torchrank.functional.__all__}
    named |= {f"torchrank.{name}": "torchrank.errors" for name in torchrank.__all__ if _is_error(name)}
    named |= {f"torchrank.{name}": "torchrank.rankers.of_papers" for name in torchrank.RANKERS}
    for name, module in sorted(named.items(), key=lambda pair: pair[0].lower()):
        if room_of(module) in rooms:
            yield name


def _is_error(name: str) -> bool:
    return name not in torchrank.EXPORTS and isinstance(getattr(torchrank, name), type)


def room_of(module: str) -> str:
    """The part of the API that a module belongs to."""
    parts = module.split(".")[1:]
    if parts[0] == "rankers":
        return "rankers" if parts[1] == "of_papers" else "training"
    return parts[0] if parts[0] in ("data", "functional", "errors", "metrics") else "others"
