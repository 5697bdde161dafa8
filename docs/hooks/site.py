"""Hooks of mkdocs: equations as MathML, so that the site needs no scripts from elsewhere; API pages of all exports."""

import inspect
import operator
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torchrank
import torchrank.functional
from torchrank.functional.conventions import Measure, forms
from torchrank.metrics import SingleMetric

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
    """Write the API of all exports of some modules, and the tables of measures, where a page asks for them."""
    for place, write in TABLES.items():
        markdown = markdown.replace(place, write()) if place in markdown else markdown
    return EXPORTS.sub(lambda found: "\n\n".join(map(entry, exports(found["rooms"].split()))), markdown)


def measures_table() -> str:
    """All measures: their names, the class of each and what it is."""
    lines = ["| name | other names | class | measure |", "|---|---|---|---|"]
    for row in torchrank.functional.MEASURES.values():
        others = dict.fromkeys((row.function.__name__, *row.aliases))
        cells = [code(*forms(row)), code(*(name for name in others if name != row.name)), metric_of(row)]
        text = inspect.getdoc(row.function).partition("\n")[0]
        smaller = " Smaller is better." if row.better == "lower" and "maller is better" not in text else ""
        lines.append(f"| {' | '.join(cells)} | {text}{smaller} |")
    return "\n".join(lines)


def metric_of(row: Measure) -> str:
    """How the class of a measure in `torchrank.metrics` is made."""
    if row.metric is None:
        return ""
    known = inspect.signature(getattr(torchrank.metrics, row.metric)).parameters.values()
    shown = [each.name for each in known if each.name in ("k", "max_label")]
    return code(f"{row.metric}({', '.join(shown)})")


def weights_table() -> str:
    """What the weight of an entry means for each measure, as the docstrings say it."""
    meanings: dict[str, list[str]] = {}
    for row in torchrank.functional.MEASURES.values():
        found = re.search(r"^    weights: (.*(?:\n {8}.*)*)", inspect.getdoc(row.function), flags=re.MULTILINE)
        text = " ".join(found[1].split()) if found else "There are no weights of entries."
        meanings.setdefault(re.sub(r"^importance of each entry, `\(N,\)`[,:] ", "", text), []).append(row.name)
    lines = [f"| {code(*names)} | {text} |" for text, names in meanings.items()]
    return "\n".join(["| measure | the importance of an entry |", "|---|---|", *lines])


def measures_from_ranks() -> str:
    """The measures that are known from the ranks of the judged documents."""
    return code(*(row.name for row in torchrank.functional.MEASURES.values() if row.from_ranks))


def code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


TABLES = {
    "{{ measures }}": measures_table,
    "{{ weights of measures }}": weights_table,
    "{{ measures from ranks }}": measures_from_ranks,
}


def entry(name: str) -> str:
    """The API of one name; of classes that are no rankers with their documented methods, which all rankers share."""
    found = operator.attrgetter(name.removeprefix("torchrank."))(torchrank)
    if isinstance(found, type) and issubclass(found, SingleMetric):
        return generated(name, found)
    if not isinstance(found, type) or name.removeprefix("torchrank.") in torchrank.RANKERS:
        return f"::: {name}"
    methods = [key for key, value in vars(found).items() if _is_method(value) and not key.startswith("_")]
    return f"::: {name}\n    options:\n      members: {methods}"


def generated(name: str, metric: type) -> str:
    """The API of a class that is made from the table of measures, where mkdocstrings finds no source."""
    summary, _, rest = inspect.getdoc(metric).partition("\n\nArgs:\n")
    arguments, _, example = rest.partition("\n\nExample:\n")
    listed = re.sub(r"^    (\w+): ", r"- `\1`: ", arguments, flags=re.MULTILINE)
    call = f"{metric.__name__}{inspect.signature(metric)}".replace("typing.", "")
    parts = [f"## `{metric.__name__}` {{ #{name} }}", f"```python\n{call}\n```", summary, listed]
    return "\n\n".join([*parts, f"```pycon\n{inspect.cleandoc(example)}\n```"])


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
