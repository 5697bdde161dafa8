"""`torchrank plot`: every kind draws what the collected numbers say; mistakes are one line."""

import json

import numpy as np
import pytest

from tests.report.sweep import write_run, write_sweep
from torchrank.cli import main
from torchrank.cli.plot import KINDS
from torchrank.report.page.collect import collect
from torchrank.report.plots import rankers

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = write_sweep(tmp_path_factory.mktemp("sweep"), folds=(1, 2))
    for folder in root.iterdir():
        (folder / "log").mkdir()
        rows = [f"{epoch},{epoch},{1 / (epoch + 1)},{epoch / 50}" for epoch in range(20)]
        (folder / "log/metrics.csv").write_text("\n".join(["epoch,step,train/loss,val/ndcg@10", *rows]))
    return root


@pytest.fixture(scope="module")
def section(sweep):
    return collect([sweep])["sections"][0]


def test_the_command_and_the_figures_know_the_same_kinds():
    assert set(KINDS) == {*rankers.FIGURES, "curves"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written(sweep, tmp_path, capsys, kind):
    suffix = {"scatter": "svg", "differences": "pdf"}.get(kind, "png")
    out = tmp_path / f"figure.{suffix}"
    assert main(["plot", str(sweep), "--kind", kind, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == kind and told.get("value", told.get("measure")) in ("val/ndcg@10", "ndcg@10")
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix]
    assert out.read_bytes().startswith(start)


def test_points_stand_at_the_means_and_lines_reach_the_interval(section):
    (axes,) = rankers.plot_rankers(section, "map", "letor").axes
    for place, method in enumerate(section["methods"]):
        value = method["test"]["letor"]["measures"]["map"]
        interval, point = axes.lines[2 * place], axes.lines[2 * place + 1]
        assert list(interval.get_xdata()) == [value["low"], value["high"]] and point.get_xdata()[0] == value["mean"]


def test_the_scatter_shows_every_query_once(section):
    (axes,) = rankers.plot_scatter(section, "map", "default", ["single", "gbdt"]).axes
    level, won, lost = (np.asarray(part.get_offsets()) for part in axes.collections)
    drawn = np.concatenate([level, won, lost])
    assert len(drawn) == 2 * (157 - 50) and (won[:, 1] > won[:, 0]).all() and (lost[:, 1] < lost[:, 0]).all()
    assert axes.get_title().endswith(f"{len(won)} won, {len(level)} level, {len(lost)} lost")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("gbdt: map", "single: map")


def test_the_distribution_counts_every_query_and_turns_with_its_rankers(section):
    figures = [rankers.plot_gaps(section, "map", "default", pair) for pair in (["single", "gbdt"], ["gbdt", "single"])]
    heights = [sum(bar.get_height() for bar in figure.axes[0].patches[:-1]) for figure in figures]
    means = [figure.axes[0].lines[-1].get_xdata()[0] for figure in figures]
    assert heights == [2 * (157 - 50)] * 2 and means[0] == -means[1]


def test_validation_numbers_are_named_so(tmp_path):
    folder = write_run(tmp_path / "a", "a", value=0.5, queries={"default/map": [0.25, 0.75]}, selection="val/map")
    content = json.loads((folder / "results.json").read_text())
    del content["test"]
    (folder / "results.json").write_text(json.dumps(content | {"per_query": None}))
    (section,) = collect([tmp_path])["sections"]
    assert rankers.plot_rankers(section, "map", "default").axes[0].get_xlabel() == "validation map, convention default"
    with pytest.raises(ValueError, match="no test part, so there is nothing to compare by query"):
        rankers.plot_scatter(section, "map", "default")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "figure.gif"], "--out must be a file that ends in .png, .pdf, .svg, got figure.gif"),
        (
            ["--out", "f.png", "--measure", "mrr"],
            "no run has the measure mrr in convention default: choose from",
        ),
        (["--out", "f.png", "--convention", "trec"], "no run has the convention trec: choose from default, letor"),
        (["--out", "f.png", "--rankers", "x"], "no ranker x: choose from linear, gbdt, single"),
        (["--out", "f.png", "--kind", "scatter", "--rankers", "gbdt"], "this figure compares two rankers: name two of"),
        (["--out", "f.png", "--kind", "curves", "--value", "x"], "no run has logged x: choose one of train/loss, val/"),
        (["--out", "f.png", "--data", "x"], "no run is on x: choose from mq2008"),
    ],
)
def test_mistakes_are_one_line(sweep, tmp_path, capsys, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(sweep), *arguments]) == 2
    error = capsys.readouterr().err
    assert (
        error.startswith(f"torchrank plot: error: {told}") and error.count("\n") == 1 and not list(tmp_path.iterdir())
    )
