"""The table of a sweep as text: Markdown in a file, rich on a screen; and what a single run prints at its end."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrank.record import smaller_is_better
from torchrank.report.significance import ALPHA
from torchrank.screen import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NOTHING = "–"  # noqa: RUF001
LEVEL = "≈"
SPLITS = {"test": "test", "val": "validation"}
UNTESTED = (
    "Not tested: these are measures of the validation lists, by which the best state and the settings were chosen, so "
    "they are optimistic. Add test lists for an honest comparison."
)


# what Markdown would read: anywhere, and at the start of a line
MARKS = re.compile(r"[\\|`*<]|(?<!\w)_|_(?!\w)|\[(?=[^\]]*\]\()|&(?=#?\w+;)|~(?=~)")
LEADS = re.compile(r"^([#>=+-]|\d+(?=[.)]))")


class Bold(str):
    """A cell that stands out: bold, or with an asterisk behind it where nothing can be bold."""

    __slots__ = ()


@dataclass
class Sheet:
    """A table of text; a cell that is `Bold` stands out."""

    title: str
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    below: list[str] = field(default_factory=list)


def sheets(document: dict[str, Any]) -> list[Sheet]:
    """The measures of each data set by convention, its paired tests and chosen settings; then the unfinished runs."""
    pages = []
    for table in document["tables"]:
        pages += [_measures(table, convention) for convention in table["measures"]]
        pages += [_tests(table, convention) for convention, tests in table["comparisons"].items() if tests]
        pages.append(_chosen(table))
    if document["unfinished"]:
        names = document["unfinished"]
        pages.append(Sheet(f"Unfinished runs, left out: {len(names)}", below=names))
    return pages


def brief(document: dict[str, Any]) -> list[Sheet]:
    """The measures of each data set in the first convention, and what locality gained in the fits that tried it."""
    pages = []
    for table in (table for table in document["tables"] if table["measures"]):
        sheet = _measures(table, next(iter(table["measures"])))
        chosen = ((method["name"], each) for method in table["methods"] for each in method["chosen"])
        sheet.below += [f"{name}: {each['locality']}." for name, each in chosen if each["locality"]]
        pages.append(sheet)
    return pages


def markdown(sheet: Sheet) -> str:
    """A sheet as Markdown.

    >>> print(markdown(Sheet("mq2008", ["method", "map"], [["listnet", Bold("0.47")]], ["784 queries."])))
    ### mq2008
    <BLANKLINE>
    | method | map |
    |:--|--:|
    | listnet | **0.47** |
    <BLANKLINE>
    784 queries.
    """
    lines = [f"### {as_markdown(sheet.title)}", ""]
    if sheet.header:
        rule = "|:--" + "|--:" * (len(sheet.header) - 1) + "|"
        lines += [_row(sheet.header), rule, *map(_row, sheet.rows), ""]
    return "\n".join([*lines, "  \n".join(LEADS.sub(_lead, as_markdown(line)) for line in sheet.below)])


def as_markdown(text: str) -> str:
    r"""Text as Markdown that shows this text; a `Bold` one is bold.

    >>> print(as_markdown("a|b `c` <i> *d* lgmml_net"))
    a\|b \`c\` \<i> \*d\* lgmml_net
    """
    shown = MARKS.sub(r"\\\g<0>", visible(text))
    return f"**{shown}**" if isinstance(text, Bold) else shown


def _lead(found: re.Match[str]) -> str:
    return f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\"


def show(sheet: Sheet, console: "Console") -> None:
    """Print a sheet. On a narrow screen cells break at spaces; nothing is cut off."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = Text(visible(sheet.title), style="bold")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column, name in enumerate(sheet.header):
        cells = [Text(visible(name)), *(_text(row[column], console.is_terminal) for row in sheet.rows)]
        longest = max((len(word) for cell in cells for word in cell.plain.split()), default=0)
        table.add_column(cells[0], justify="right" if column else "left", min_width=longest)
    for row in sheet.rows:
        table.add_row(*(_text(cell, console.is_terminal) for cell in row))
    if sheet.header:
        console.print(table, width=max(console.width, console.measure(table).minimum), crop=False)
    else:
        console.print(title)
    starred = not console.is_terminal and any(isinstance(cell, Bold) for row in sheet.rows for cell in row)
    for line in [*sheet.below, *(["*: bold."] if starred else [])]:
        console.print(Text(visible(line), style="dim"))
    console.print()


def _text(cell: str, terminal: bool) -> "Text":
    """A cell as it is; bold on a terminal, with an asterisk elsewhere."""
    from rich.text import Text

    if not isinstance(cell, Bold):
        return Text(visible(cell))
    return Text(visible(cell), style="bold") if terminal else Text(f"{visible(cell)} *")


def _measures(table: dict[str, Any], convention: str) -> Sheet:
    names, best = table["measures"][convention], table["best"][convention]
    digits = {"density": 4, "steps": 1}
    told = [name for name in digits if any(method.get(name) is not None for method in table["methods"])]
    header = ["method", *names, "fit seconds", *told]
    title = f"{table['data']}: {SPLITS[table['split']]} measures, convention {convention}"
    sheet = Sheet(title + _folds(table), header)
    for method in table["methods"]:
        part = method[table["split"]][convention]
        values = {name: part["measures"][name] if part else None for name in names}
        cells = [_value(method["name"], value, best.get(name)) for name, value in values.items()]
        numbers = [_number(method["fit_seconds"], 1), *(_number(method[name], digits[name]) for name in told)]
        sheet.rows.append([_method(method, table), *cells, *numbers])
    sheet.below = [*_counts(table, convention), _legend(table)]
    if table["split"] == "val":
        sheet.below.insert(0, UNTESTED)
    if "density" in told:
        sheet.below[-1] += " Density: share of non-zero weights."
    if "steps" in told:
        sheet.below[-1] += " Steps: optimizer steps, or rounds of a ranker that learns by rounds."
    if table["test_measure"] in names and table["comparisons"].get(convention):
        sheet.below[-1] += (
            f" {LEVEL}: {table['test_measure']} not significantly different from the best "
            f"(randomisation test, Holm-adjusted p >= {ALPHA})."
        )
    return sheet


def _value(name: str, value: dict[str, Any] | None, best: dict[str, Any] | None) -> str:
    """Mean, deviation and pooled mean of a method: bold if best, marked if not significantly different from it."""
    if value is None:
        return NOTHING
    deviation = "" if value["deviation"] is None else f" ±{value['deviation']:.4f}"
    pooled = "" if value["pooled"] is None else f" ({value['pooled']:.4f})"
    text = f"{value['mean']:.4f}{deviation}{pooled}"
    if best and name == best["name"]:
        return Bold(text)
    return f"{text} {LEVEL}" if best and name in best["not_different"] else text


def _method(method: dict[str, Any], table: dict[str, Any]) -> str:
    if not method["missing_folds"]:
        return str(method["name"])
    return f"{method['name']} ({len(method['folds'])} of {len(table['folds'])} folds)"


def _counts(table: dict[str, Any], convention: str) -> list[str]:
    """The convention in words, and the number of queries."""
    parts = {method["name"]: method[table["split"]][convention] for method in table["methods"]}
    texts = {name: part["text"] if part else "not measured" for name, part in parts.items()}
    counts = {
        name: f"{part['lists']} queries, {part['empty']} of them without relevant documents"
        for name, part in parts.items()
        if part
    }
    return [f"Convention {convention}: {_agreed(texts)}.", f"{_agreed(counts)}."]


def _agreed(texts: dict[str, str]) -> str:
    """The text that all methods share, or each text with its methods."""
    methods: dict[str, list[str]] = {}
    for name, text in texts.items():
        methods.setdefault(text, []).append(name)
    if len(methods) == 1:
        return next(iter(methods))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in methods.items())


def _folds(table: dict[str, Any]) -> str:
    """How many folds the rows have, for the heading of a table that lacks some."""
    if not any(method["missing_folds"] for method in table["methods"]):
        return ""
    counts = sorted({len(method["folds"]) for method in table["methods"]})
    return f", {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} of {len(table['folds'])} folds"


def _legend(table: dict[str, Any]) -> str:
    folds = len(table["folds"])
    pooled = " (pooled mean over all queries)" if table["split"] == "test" else ""
    if folds > 1:
        own = "the fold means of each row" if _folds(table) else f"{folds} fold means"
        text = f"Mean of {own} ±standard deviation over the folds{pooled}."
    elif any(len(method["seeds"]) > 1 for method in table["methods"]):
        text = f"One fold: mean over the seeds ±standard deviation over the seeds{pooled}."
    else:
        text = f"One fold, one seed: mean{pooled}."
    incomplete = any(method["missing_folds"] for method in table["methods"])
    return f"{text} Bold: best{' of the methods with all folds' if incomplete else ''}."


def _tests(table: dict[str, Any], convention: str) -> Sheet:
    measure, tests = table["test_measure"], table["comparisons"][convention]
    header = ["pair", "difference", "queries", "t test p (Holm)", "randomisation p (Holm)", "verdict"]
    sheet = Sheet(f"{table['data']}: paired tests of {measure}, convention {convention}{_folds(table)}", header)
    for test in tests:
        difference = NOTHING if test["difference"] is None else f"{test['difference']:+.4f}"
        values = [f"{_p(test[name])} ({_p(test[f'{name}_holm'])})" for name in ("t", "randomisation")]
        pair = f"{test['a']} - {test['b']}"
        sheet.rows.append([pair, difference, str(test["queries"]), *values, _verdict(test, measure)])
    sheet.below = [
        "Difference of the means over the queries that both have, folds pooled (a query in several folds counts once, "
        "with its mean), seeds averaged; two-sided tests, "
        f"Holm over {len(tests)} {'pairs' if len(tests) > 1 else 'pair'}. "
        f"Verdict: Holm-adjusted randomisation p < {ALPHA}."
    ]
    return sheet


def _verdict(test: dict[str, Any], measure: str) -> str:
    if test["randomisation_holm"] is None or test["randomisation_holm"] >= ALPHA:
        return "undecided"
    a_wins = (test["difference"] < 0) == smaller_is_better(measure)
    return f"{test['b'] if a_wins else test['a']} loses"


def _chosen(table: dict[str, Any]) -> Sheet:
    by = table["selection"] or "each method's validation measure"
    header = ["method", "fold", "seed", "settings", "of", "validation", "fit seconds"]
    sheet = Sheet(f"{table['data']}: settings chosen by {by}{_folds(table)}", header)
    for method in table["methods"]:
        for chosen in method["chosen"]:
            settings = ", ".join(f"{key}={chosen['settings'].get(key, 'default')}" for key in method["varied"])
            place = [NOTHING if chosen["fold"] is None else str(chosen["fold"]), str(chosen["seed"])]
            numbers = [_number(chosen["validation"]), _number(chosen["fit_seconds"], 1)]
            sheet.rows.append([method["name"], *place, settings or NOTHING, str(chosen["candidates"]), *numbers])
    sheet.below = ["Of: the number of settings compared.", *(n for method in table["methods"] for n in _gaps(method))]
    return sheet


def _gaps(method: dict[str, Any]) -> list[str]:
    """Notes on what the sweep lacks for this method."""
    candidates = [chosen["candidates"] for chosen in method["chosen"]]
    folds, seeds = len(method["folds"]), len(method["seeds"])
    notes = []
    if method["missing_folds"]:
        notes.append(f"no result on fold {', '.join(map(str, method['missing_folds']))}.")
    if len(candidates) < folds * seeds:
        notes.append(f"only {len(candidates)} of {folds * seeds} runs ({folds} folds, {seeds} seeds).")
    if min(candidates) < max(candidates):
        notes.append(f"chosen from {min(candidates)} settings in one fold and {max(candidates)} in another.")
    if unproved := sum(chosen.get("proved") is False for chosen in method["chosen"]):
        notes.append(f"{unproved} of {len(candidates)} chosen fits stopped before their certificate.")
    return [f"{method['name']}: {note}" for note in notes]


def _number(value: float | None, digits: int = 4) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _p(value: float | None) -> str:
    return "<0.0001" if value is not None and value < 1e-4 else _number(value)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(map(as_markdown, cells)) + " |"


def show_run(results: dict[str, Any], folder: Path, console: "Console") -> None:
    """Print the results of a run: its test measures (validation, if it was not tested), a row per convention."""
    from rich.table import Table
    from rich.text import Text

    split = "test" if "test" in results else "val"  # test=false, or data without test lists
    parts = results[split]
    measures = list(dict.fromkeys(measure for part in parts.values() for measure in part["measures"]))
    rows = [[name, *(_number(part["measures"].get(m)) for m in measures)] for name, part in parts.items()]
    cells = [["convention", *measures], *rows]
    width = sum(3 + max(map(len, column)) for column in zip(*cells, strict=True))
    if width >= console.width:  # many measures: one per line
        cells = [list(column) for column in zip(*cells, strict=True)]
    title = f"{results['name']} on {results['data']}, fold {results['fold']}, {SPLITS[split]}"
    table = Table(title=Text(visible(title), style="italic"))
    for cell in cells[0]:
        table.add_column(Text(visible(cell)))
    for row in cells[1:]:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console.print(table)
    for line in _about(results, parts, split, folder):
        console.print(Text(visible(line)))


def _about(results: dict[str, Any], parts: dict[str, Any], split: str, folder: Path) -> list[str]:
    """What a run says below its table."""
    lines = [UNTESTED] if split == "val" else []
    for name, part in parts.items():
        lines.append(f"{name}: {part['text']}; {part['empty']} of {part['lists']} queries have no relevant document.")
    if results["certificate"] is not None:
        lines.append(f"Certificate: {results['certificate']['text']}")
    if results["density"] is not None:
        lines.append(f"Non-zero weights: {results['density']:.2%}")
    lines += [f"{name}: {value}" for name, value in results["findings"].items()]
    selection, seconds, memory = results["selection"], results["seconds"], results["peak_memory_mb"]
    peak = "" if memory is None else f", peak memory {memory:.0f} MB"
    lines.append(
        f"{selection['measure']} {selection['value']:.4f}; data {seconds['data']:.1f} s, fit {seconds['fit']:.1f} s, "
        f"evaluation {seconds['test']:.1f} s{peak}. Results in {folder}"
    )
    return lines
