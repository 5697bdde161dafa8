"""Figures of runs: a test measure against a swept option, with the deviation over folds or seeds as a band; and the
values that single fits have logged.

All other swept options are chosen by validation within each fold and seed, as in the tables.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchrank.record import Run, tell_apart
from torchrank.report.select import Method, measured, natural, select
from torchrank.report.training import read_training
from torchrank.screen import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SECONDS = "fit_seconds"
DASHES = ("--", ":", "-.")  # tell references of one colour apart


@dataclass(frozen=True)
class Line:
    """One method of one group: a point for each value of the option, or a single reference value (`x` is empty)."""

    label: str
    group: Any  # lines of one group have one colour
    x: list[Any]
    mean: NDArray[np.float64]  # (points,) mean of the fold means; seeds are averaged within a fold
    deviation: NDArray[np.float64]  # (points,) over the fold means, n-1; over the seeds where there is one fold


def plot_sweep(
    runs: Iterable[Run], option: str, measure: str, *, group: str = "name", convention: str = "default"
) -> "Figure":
    """Plot a test measure, or "fit_seconds", against a swept option such as "model.metrics".

    `group` sets the colours: "name" (the method), "data", or another swept option. Runs without the option are
    horizontal dashed lines. Set scales and limits on `figure.axes[0]`, for example `set_xscale("log")`.

    >>> plot_sweep([], "model.metrics", "map")
    Traceback (most recent call last):
    ...
    ValueError: none of 0 runs sets model.metrics: they set nothing
    """
    lines = sweep_lines(runs, option, measure, group=group, convention=convention)
    figure = blank(7, 4.5)
    axes = figure.add_subplot(xlabel=literal(option), ylabel=literal(named(measure, convention)))
    groups = sorted({line.group for line in lines}, key=natural)
    drawn: dict[Any, int] = defaultdict(int)  # number of references of each group
    for line in lines:
        colour = f"C{groups.index(line.group)}"
        if line.x:
            axes.plot(line.x, line.mean, color=colour, marker="o", markersize=4, label=literal(line.label))
            low, high = line.mean - line.deviation, line.mean + line.deviation
            axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
        else:  # its deviation is in the legend, since bands of several references would hide the lines
            dashes = DASHES[drawn[line.group] % len(DASHES)]
            deviation = f" ±{line.deviation[0]:.3f}" if np.isfinite(line.deviation[0]) else ""
            axes.axhline(line.mean[0], color=colour, linestyle=dashes, label=literal(line.label + deviation))
            drawn[line.group] += 1
    axes.grid(alpha=0.3)
    legend(axes, fontsize="small")
    return figure


def blank(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches, without a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'torchrank-ltr[plots]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def literal(text: object) -> str:
    r"""A name for a figure: dollars are no formula, control characters no layout.

    >>> print(literal("$x_$"))
    \$x_\$
    """
    return visible(text).replace("$", r"\$")


def legend(axes: "Axes", **options: Any) -> None:
    """The legend of all lines with a label, also of labels that begin with an underscore, which matplotlib hides."""
    lines = [line for line in axes.get_lines() if not re.fullmatch(r"_child\d+", str(line.get_label()))]
    names = [str(line.get_label()) for line in lines]
    drawn = axes.legend(lines, [f"\u2060{name}" if name.startswith("_") else name for name in names], **options)
    for text, name in zip(drawn.get_texts(), names, strict=True):
        text.set_text(name)


def sweep_lines(
    runs: Iterable[Run], option: str, measure: str, *, group: str = "name", convention: str = "default"
) -> list[Line]:
    """The numbers of `plot_sweep`: swept lines first, then references, each in the order of their groups.

    >>> from pathlib import Path
    >>> settings, test = {"model.metrics": 8}, {"default": {"measures": {"map": 0.5}}}
    >>> run = Run(Path("."), "lgmml", "LGMML", "mq2008", 1, 0, settings, "val/map", 0.4, "max", test, 2.0, "")
    >>> sweep_lines([run], "model.metrics", "map")
    [Line(label='lgmml', group='lgmml', x=[8], mean=array([0.5]), deviation=array([nan]))]
    """
    runs = tell_apart(list(runs))
    _check(runs, option, measure, group, convention)
    swept: dict[tuple[Any, str], list[Run]] = defaultdict(list)
    references: dict[tuple[Any, str], list[Run]] = defaultdict(list)
    for run in runs:
        (swept if option in run.settings else references)[_group(run, group), run.name].append(run)
    methods = {name for _, name in swept}
    lines = []
    for (value, name), members in sorted(swept.items(), key=_order):
        points: dict[Any, list[Run]] = defaultdict(list)
        for run in members:
            points[_number_or_text(run.settings[option])].append(run)
        x = sorted(points, key=_place)
        lines.append(_line(_label(name, group, value), value, x, [points[each] for each in x], measure, convention))
    for (value, name), members in sorted(references.items(), key=_order):
        default = f" (default {option})" if name in methods else ""
        lines.append(_line(_label(name, group, value) + default, value, [], [members], measure, convention))
    if any(isinstance(value, str) for line in lines for value in line.x):  # then all are texts
        return [replace(line, x=[str(value) for value in line.x]) for line in lines]
    return lines


def _line(label: str, group: Any, x: list[Any], points: list[list[Run]], measure: str, convention: str) -> Line:
    """The chosen runs of each point, summarised; the label says if points have different numbers of runs."""
    methods = [select(members)[0].methods[0] for members in points]
    counts = sorted({len(method.choices) for method in methods})
    if len(counts) > 1:
        label += f" ({counts[0]} to {counts[-1]} repetitions)"
    mean, deviation = np.array([_summary(method, measure, convention) for method in methods]).T
    return Line(label, group, x, mean, deviation)


def _summary(method: Method, measure: str, convention: str) -> tuple[float, float]:
    folds = [[_value(run, measure, convention) for run in runs] for runs in method.folds.values()]
    means = [float(np.mean(values)) for values in folds]
    repetitions = means if len(means) > 1 else folds[0]
    deviation = float(np.std(repetitions, ddof=1)) if len(repetitions) > 1 else float("nan")
    return float(np.mean(means)), deviation


def _check(runs: list[Run], option: str, measure: str, group: str, convention: str) -> None:
    """Refuse wrong figures: nothing swept, nothing measured, different data in one line."""
    options = sorted({key for run in runs for key in run.settings})
    if not any(option in run.settings for run in runs):
        raise ValueError(f"none of {len(runs)} runs sets {option}: they set {', '.join(options) or 'nothing'}")
    if all(np.isnan(_value(run, measure, convention)) for run in runs):
        parts = {(key, name) for run in runs for key, part in run.test.items() for name in part["measures"]}
        found = [*(f"{name} ({key})" for key, name in sorted(parts)), SECONDS]
        raise ValueError(f"no run has {measure} in convention {convention}: choose one of {', '.join(found)}")
    data = sorted({run.data for run in runs})
    if len(data) > 1 and group != "data":
        raise ValueError(f"the runs are on {', '.join(data)}: set group='data', or pass the runs of one of them")
    for key in options:
        if key.startswith("data.") and key not in (option, group):
            _check_same_data(runs, key)


def _check_same_data(runs: list[Run], key: str) -> None:
    """Refuse to let validation choose an option of the data: easier data would win."""
    found: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        found[run.data].add(str(run.settings.get(key, "default")))
    for data, values in found.items():
        if len(values) > 1:
            raise ValueError(
                f"{key} of {data} is {', '.join(sorted(values, key=natural))}: these are different data. Group by it, "
                "pass the runs of one value, or sweep data.fold for repetitions."
            )


def _value(run: Run, measure: str, convention: str) -> float:
    return run.fit_seconds if measure == SECONDS else measured(run, convention, measure)


def named(measure: str, convention: str) -> str:
    """The label of an axis."""
    return "seconds of the fit" if measure == SECONDS else f"test {measure}, convention {convention}"


def _group(run: Run, group: str) -> Any:
    if group in ("name", "data"):
        return run.name if group == "name" else run.data
    return _number_or_text(run.settings.get(group, "default"))


def _label(name: str, group: str, value: Any) -> str:
    """The label of a line.

    >>> _label("lgmml", "name", "lgmml"), _label("lgmml", "data.centres", 10), _label("lgmml", "data", "mq2008")
    ('lgmml', 'lgmml, centres=10', 'lgmml, mq2008')
    """
    if group == "name":
        return name
    return f"{name}, {value}" if group == "data" else f"{name}, {group.rpartition('.')[2]}={value}"


def _order(item: tuple[tuple[Any, str], Any]) -> list[tuple[int, str]]:
    return [natural(part) for part in item[0]]


def _number_or_text(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _place(value: Any) -> tuple[bool, float, str]:
    """A sort key: numbers by value, then texts."""
    return (True, 0.0, value) if isinstance(value, str) else (False, value, "")


# ---- single fits -----------------------------------------------------------------------------------------------------


def plot_training(folders: Mapping[str, str | Path], values: Sequence[str]) -> "Figure":
    """Plot logged values, one panel per value and one line per run.

    `plot_training({"l1": "runs/a", "induction": "runs/b"}, ["train/objective", "val/map", "train/density"])` shows the
    loss, the precision and the density along two fits.
    """
    figure = blank(4.2 * len(values), 3.6)
    for place, value in enumerate(values):
        axes = figure.add_subplot(1, len(values), place + 1, xlabel="round", title=literal(value))
        for label, folder in folders.items():
            axes.plot(*read_training(folder, value), marker=".", label=literal(label))
        axes.grid(alpha=0.3)
    legend(figure.axes[0], fontsize="small")
    return figure
