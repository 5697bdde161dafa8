"""`torchrank plot`: one figure of runs, for papers and slides."""

import argparse
from pathlib import Path
from typing import Any

from torchrank.cli.shared import add_json, print_json
from torchrank.files import write_atomically

EXAMPLES = """
torchrank plot runs/first --out measures.png
torchrank plot runs/first --kind scatter --rankers lgmml gbdt --measure map --out scatter.pdf
torchrank plot runs/first --kind curves --value val/ndcg@5 --out curves.svg
"""
FORMATS = (".png", ".pdf", ".svg")
KINDS = {
    "measures": "means of the rankers with their intervals",
    "scatter": "two rankers query by query",
    "differences": "distribution of the differences of two rankers",
    "costs": "means against the time of a fit",
    "curves": "what the fits logged in their rounds",
}


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = "; ".join(f"{name}: {what}" for name, what in KINDS.items())
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or sweeps, in which validation chooses")
    parser.add_argument("--out", required=True, help="the figure to write: .png, .pdf or .svg")
    parser.add_argument("--kind", default="measures", choices=list(KINDS), help=f"{kinds} (default: measures)")
    parser.add_argument("--measure", metavar="NAME", help="default: that of selection")
    parser.add_argument("--convention", metavar="NAME", help="default: the first in the files")
    parser.add_argument("--rankers", nargs="+", default=[], metavar="NAME", help="default: all, or the two best")
    parser.add_argument("--value", metavar="NAME", help="of curves, such as train/loss; default: that of selection")
    parser.add_argument("--data", metavar="NAME", help="the data set, if the runs are of several")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.report.page.collect import collect
    from torchrank.report.plots.rankers import FIGURES, plot_curves

    out = Path(options.out)
    if out.is_dir() or out.suffix.lower() not in FORMATS:
        raise ValueError(f"--out must be a file that ends in {', '.join(FORMATS)}, got {options.out}")
    section = section_of(collect(options.runs)["sections"], options.data)
    shown = chosen(section, options)
    if options.kind == "curves":
        figure = plot_curves(section, shown["value"], options.rankers)
    else:
        figure = FIGURES[options.kind](section, shown["measure"], shown["convention"], options.rankers)
    kind = out.suffix[1:].lower()
    write_atomically(out, lambda file: figure.savefig(file, format=kind, dpi=160, metadata=_undated(kind)))
    if options.json:
        print_json({"out": str(out), "kind": options.kind, "data": section["data"], **shown})
    else:
        print(f"wrote {out}")


def _undated(kind: str) -> dict[str, Any] | None:
    """Metadata without the time, so that equal figures are equal files."""
    return {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)


def section_of(sections: list[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """The data set of this name; without a name there must be one only."""
    found = [section for section in sections if name in (None, section["data"])]
    names = ", ".join(dict.fromkeys(section["data"] for section in sections))
    if not found:
        raise ValueError(f"no run is on {name}: choose from {names}")
    if name is None and len({section["data"] for section in found}) > 1:
        raise ValueError(f"the runs are on {names}: choose one with --data")
    return found[0]


def chosen(section: dict[str, Any], options: argparse.Namespace) -> dict[str, str]:
    """The measure and convention of a figure, or the logged value of curves."""
    if options.kind == "curves":
        return {"value": options.value or section["selection"] or "train/loss"}
    measures: dict[str, list[str]] = section["measures"]["test" if section["tested"] else "val"]
    convention = options.convention or next(iter(measures))
    if convention not in measures:
        raise ValueError(f"no run has the convention {convention}: choose from {', '.join(measures)}")
    known = measures[convention]
    usual = section["selection"].rpartition("/")[2]
    measure = options.measure or (usual if usual in known else known[0])
    if measure not in known:
        raise ValueError(f"no run has the measure {measure} in convention {convention}: choose from {', '.join(known)}")
    return {"measure": measure, "convention": convention}
