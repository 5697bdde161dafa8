"""Every benchmark still runs, and the suite shows what it found."""

import importlib
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES, best
from benchmarks.page import keep, with_tables
from benchmarks.plot import draw
from benchmarks.scaling import grown
from benchmarks.suite import MissingPeerError, Row, Setting, table

# also with --quick; the weekly workflow runs them
LONG = {
    "mslr30k",
    "processes",
    "scaling",
    "startup",
    "networks",
    "localrank_search",
    "score",
    "lgmml",
    "reader",
    "export",
    "search",
}
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LONG])
def test_a_benchmark_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = list(importlib.import_module(f"benchmarks.{name}").rows(Setting(quick=True)))
    except MissingPeerError as error:
        pytest.skip(str(error))
    assert rows and all(row.name for row in rows)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_what_it_prints(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "domination"]
    command += ["--json", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "ratios.png")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert all(row["name"] in done.stdout for row in rows) and len(rows) == 8
    assert (tmp_path / "ratios.png").stat().st_size > 1000


def test_a_name_that_is_none_is_told():
    command = [sys.executable, "-m", "benchmarks", "measure"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "no benchmark is called measure" in done.stderr


def test_the_table():
    rows = [
        Row("a|b", 0.002, peer="peer", theirs=0.004, bar=0.4),
        Row("memory", 1234.0, "MB", "limit", 2000.0, bar=1, note="fine"),
        Row("absent", note="x is not installed"),
    ]
    lines = table(rows).splitlines()[2:]
    assert lines[0] == r"| a\|b | 2 ms | peer 4 ms | 0.5 | <= 0.4 | **missed** |"
    assert lines[1] == "| memory | 1,234 MB | limit 2,000 MB | 0.617 | <= 1 | fine |"
    assert lines[2] == "| absent |  |  |  |  | x is not installed |"


def test_a_page_is_made_from_the_files_beside_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n\n<!-- table: one -->\nold\n<!-- end -->\n\nBetween.\n\n<!-- table: targets -->\n<!-- end -->\n"
    )
    rows = [Row("one: a", 3.0, peer="b", theirs=2.0, bar=1, note="why"), Row("two: c", 1.0, earlier=0.5)]
    run = {"cores": 2, "processor": "x", "torch": "2", "load": 3.0, "device": "cpu", "threads": 1}
    keep(rows, page, ["one", "two"], run, ["--threads", "1"])
    text = page.read_text()
    assert "`python -m benchmarks --threads 1 one`, 2 cores (x), torch 2, cpu, CPU time of one thread, beside" in text
    assert "| a | 3 s | b 2 s | 1.5 | <= 1 | **missed**; why |" in text and "| one: a | b | 1.5 | <= 1 |" in text
    assert "Before." in text and "Between." in text and "old" not in text
    assert with_tables(page) == text


def test_the_page_of_the_documentation_is_made_from_its_files():
    page = ROOT / "docs" / "benchmarks.md"
    assert with_tables(page) == page.read_text()


def test_the_best_row_of_each_name():
    rows = [Row("a", 2.0), Row("a", 1.0, peer="x", theirs=3.0), Row("a", 4.0), Row("b", None)]
    assert best(rows) == {"a": rows[1]}


def test_an_exponent_is_the_slope_of_logarithms(tmp_path):
    row = grown("squares", [2, 4, 8], [0.5, 2.0, 8.0], 1.1)
    assert row.ours == pytest.approx(2.0) and row.missed
    draw([row], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_functions_take_turns():
    calls = []
    times = Setting().race(lambda: calls.append("a"), lambda: calls.append("b"), repeats=3)
    assert calls == list("ababab") and all(time >= 0 for time in times)
