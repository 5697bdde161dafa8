"""The tables of a page of the documentation, made from the JSON files of runs: the prose around them stays.

`docs/benchmarks.md` shows `docs/benchmarks/losses.json` between the lines `<!-- table: losses -->` and `<!-- end -->`.
`<!-- table: targets -->` collects the rows of all files that have a bar.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from benchmarks.suite import Row, table

MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def keep(rows: Sequence[Row], page: Path, names: Sequence[str], run: dict[str, Any], options: Sequence[str]) -> None:
    """Write the rows of each benchmark into a file of its own beside the page, then make the tables of the page."""
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    against = "-against" if "--against" in options else ""
    for name in names:
        own = [
            replace(row, name=row.name.removeprefix(f"{name}: ")) for row in rows if row.name.startswith(f"{name}: ")
        ]
        command = " ".join(["python -m benchmarks", *options, name])
        content = {"command": command, "run": run, "rows": [plain(row) for row in own]}
        (folder / f"{name}{against}.json").write_text(json.dumps(content, indent=1) + "\n")
    page.write_text(with_tables(page))


def with_tables(page: Path) -> str:
    """The text of the page with tables made anew."""
    contents = {path.stem: json.loads(path.read_text()) for path in sorted(page.with_suffix("").glob("*.json"))}

    def made(found: re.Match[str]) -> str:
        opening, name, end = found.groups()
        if name == "targets":
            return f"{opening}{targets(contents)}\n{end}"
        return f"{opening}{section(contents[name]) if name in contents else 'Not measured yet.'}\n{end}"

    return MARKED.sub(made, page.read_text())


def section(content: dict[str, Any]) -> str:
    """The command, what it ran on, and its rows."""
    return f"`{content['command']}`, {told(content['run'])}:\n\n{table(list(read(content)))}"


def told(run: dict[str, Any]) -> str:
    """What the figures were measured on, in words."""
    clock = "CPU time of one thread" if run["threads"] == 1 and run["device"] == "cpu" else "time that passes"
    busy = f", beside other programs (load {run['load']:.1f})" if run["load"] > 0.5 else ""
    return f"{run['cores']} cores ({run['processor']}), torch {run['torch']}, {run['device']}, {clock}{busy}"


def targets(contents: dict[str, dict[str, Any]]) -> str:
    """All rows that have a bar, those above it with what is known about the reason."""
    lines = ["| what | beside | ratio | wanted | |", "|---|---|---|---|---|"]
    for content in contents.values():
        name = content["command"].split()[-1]
        for row in read(content):
            if row.bar is not None and row.ratio is not None:
                told = f"**missed** {row.note}".strip() if row.missed else ""
                cells = (f"{name}: {row.name}", row.peer, f"{row.ratio:.3g}", f"<= {row.bar:.3g}", told)
                lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def plain(row: Row) -> dict[str, Any]:
    """A row for JSON, without what it does not say."""
    given = {each.name: getattr(row, each.name) for each in fields(Row) if each.name != "earlier"}
    ratio = {} if row.ratio is None else {"ratio": row.ratio}
    return {name: value for name, value in given.items() if name == "unit" or value not in (None, "", ())} | ratio


def read(content: dict[str, Any]) -> Iterator[Row]:
    for row in content["rows"]:
        yield Row(**{name: value for name, value in row.items() if name != "ratio"})
