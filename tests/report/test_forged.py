"""Foreign, damaged and forged results: each is named in one line, and never changes the rows of the others."""

import copy
import json
import os
import random

import numpy as np
import pytest

from tests.report.sweep import write_run
from torchrank.cli import main
from torchrank.record import finished, read_run, read_runs, source_of
from torchrank.report.page.collect import collect
from torchrank.report.summary import plain, tabulate
from torchrank.report.tables import brief, markdown, sheets

ODD = [None, True, -1, 0, 3, 1e308, -1e308, float("nan"), float("inf"), 10**400, 2**70, "", "x[/b]y", "nan", "\ud800",
       "../../etc/passwd", "/dev/zero", [], [1], [[]], {}, {"a": 1}, {"": None}]  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    for place, name in enumerate(("a", "b")):
        for fold in (1, 2):
            queries = {"default/ndcg@10": [0.5, 0.25 * place], "letor/ndcg@10": [0.5, 0.5]}
            write_run(tmp_path / f"{name}{fold}", name, value=0.5, queries=queries, fold=fold)
    return tmp_path


def places(value, path=()):
    """The path of every value inside a document."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def mutated(content, chance):
    """A document with a value replaced, removed or added, or its text damaged."""
    document = copy.deepcopy(content)
    *path, last = chance.choice([place for place in places(content) if place])
    parent = document
    for key in path:
        parent = parent[key]
    kind = chance.randrange(4)
    if kind == 0:
        del parent[last]
    elif kind == 1 and isinstance(parent, dict):
        parent[chance.choice(["x", "", "measures", "default"])] = chance.choice(ODD)
    else:
        parent[last] = chance.choice(ODD)
    text = json.dumps(document)
    if kind == 3 and chance.random() < 0.3:
        cut = chance.randrange(len(text))
        text = text[:cut] + chance.choice(["", "}", "[" * 9, "\x00", "é"]) + text[cut + chance.randrange(3) :]
    return text.encode()


def rows(document, names):
    """The test measures of these methods."""
    methods = [method for table in document["tables"] if table["split"] == "test" for method in table["methods"]]
    return {method["name"]: method["test"]["default"] for method in methods if method["name"] in names}


def test_two_thousand_mutations_are_refused_by_name_or_change_no_other_row(sweep):
    chance = random.Random(0)
    path = sweep / "b2" / "results.json"
    content = json.loads(path.read_text())
    intact = rows(tabulate(sweep), "a")
    refused = 0
    for number in range(2000):
        path.write_bytes(mutated(content, chance))
        try:
            read_run(path, tested=False)
            read_runs(sweep)
        except ValueError as error:
            refused += 1
            assert str(path.parent) in str(error), error
            continue
        finally:
            finished(path.parent, {})
        if number % 10:
            continue
        try:
            document = tabulate(sweep)
        except ValueError as error:
            assert "b" in str(error)
            continue
        assert rows(document, "a") == intact, path.read_text()
        text = "".join(markdown(sheet) for sheet in [*sheets(document), *brief(document)])
        assert "a" in text and json.dumps(plain(document), allow_nan=False)
    assert refused > 800


FOREIGN = {
    "list": lambda path: path.write_text("[1, 2]"),
    "other": lambda path: path.write_text('{"accuracy": 0.9}'),
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "deep": lambda path: path.write_text("[" * 100_000 + "]" * 100_000),
    "deep object": lambda path: path.write_text('{"schema": 2, "a": ' + "[" * 900 + "]" * 900 + "}"),
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("command", ["select", "compare", "neighbours", "report", "plot"])
def test_a_foreign_file_is_named_in_one_line(kind, command, sweep, capsys):
    (sweep / "foreign").mkdir()
    path = sweep / "foreign" / "results.json"
    FOREIGN[kind](path)
    out = {"report": ["--out", str(sweep / "r.html")], "plot": ["--out", str(sweep / "p.png")]}.get(command, [])
    assert main([command, str(sweep), *out]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and str(path) in shown.err and not shown.out
    assert not {"table.md", "r.html", "p.png"} & {each.name for each in sweep.iterdir()}


def test_a_link_to_nowhere_is_no_result(sweep, capsys):
    (sweep / "results.json").symlink_to(sweep / "results.json")
    (sweep / "again").symlink_to(sweep)
    assert main(["select", str(sweep)]) in (0, 2)  # versions of Python differ in what they list
    assert "Traceback" not in capsys.readouterr().err


def test_forged_values_per_query_are_named(sweep):
    path = sweep / "b2" / "per_query.npz"
    ids = np.array(["1", "2"])
    for arrays in ({"query": ids.reshape(2, 1), "default/ndcg@10": np.zeros((2, 1))},
                   {"query": ids, "default/ndcg@10": np.array(["x", "y"])},
                   {"query": ids, "default/ndcg@10": np.zeros(2), "length": np.array([1, np.inf])}):  # fmt: skip
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=r"b2.*per_query\.npz"):
            collect([sweep])
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"b2.*per_query\.npz"):
        tabulate(sweep)


# ---- headings, and which data ---------------------------------------------------------------------------------------


def test_headings_of_an_unfinished_sweep_say_how_many_folds(tmp_path):
    for name, folds in {"a": range(1, 6), "b": range(1, 4)}.items():
        for fold in folds:
            write_run(tmp_path / f"{name}{fold}", name, value=0.5, queries={"default/ndcg@10": [0.5, 0.1]}, fold=fold)
    document = tabulate(tmp_path)
    pages = [sheet for sheet in (*sheets(document), *brief(document))]
    assert all(sheet.title.endswith(", 3 to 5 of 5 folds") for sheet in pages)
    assert "Mean of 5 fold means" not in "".join(map(markdown, pages))


def place(folder, **data):
    """Write the configuration of the data into a result folder, as runs of older versions have it."""
    path = folder / "results.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"config": {"data": data}, "settings": {"data.root": data.get("root")}}))


def test_two_data_sets_of_one_title_have_tables_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, root in (("a1", "one"), ("b1", str(tmp_path / "one")), ("a2", "two")):
        value = {"default/ndcg@10": [0.5, 0.1]}
        place(write_run(tmp_path / "runs" / name, name[0], value=0.5, queries=value), root=root)
    tables = tabulate("runs")["tables"]
    assert [(table["data"], [method["name"] for method in table["methods"]]) for table in tables] == [
        (f"mq2008 (root {tmp_path / 'one'})", ["a", "b"]), (f"mq2008 (root {tmp_path / 'two'})", ["a"]),
    ]  # fmt: skip


def test_sources_are_files_wherever_they_are_named_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    same = [{"root": "shop", "train": "a.txt"}, {"root": None, "train": "shop/a.txt"}]
    same += [{"root": str(tmp_path / "link"), "train": "a.txt"}, {"root": "x", "train": str(tmp_path / "shop/a.txt")}]
    assert len({str(source_of(data)) for data in same}) == 1
    other = [{"root": "shop", "train": "b.txt"}, {**same[0], "test": "t.txt"}, {**same[0], "val": "t.txt"}]
    assert len({str(source_of(data)) for data in (same[0], *other)}) == 4
    folds = [{"root": f"shop/Fold{fold}", "train": "train.txt", "fold": fold} for fold in (1, 2)]
    assert source_of(folds[0]) == source_of(folds[1]) != source_of({**folds[1], "fold": 1})
    assert source_of({"name": "synthetic", "num_queries": 3}) == {}


def test_a_finished_run_is_that_of_its_data(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", "a", value=0.5, queries={"default/ndcg@10": [0.5]})
    content = json.loads((folder / "results.json").read_text())
    config = {"data": {"root": "data", "clean": "none"}}
    monkeypatch.chdir(tmp_path)
    content |= {"config": config, "source": source_of(config["data"])}
    (folder / "results.json").write_text(json.dumps(content))
    absolute = {"data": {"root": str(tmp_path / "data"), "clean": "none"}}
    assert finished(folder, config) and finished(folder, absolute)
    assert finished(folder, {"data": {"root": "data", "clean": "all"}}) is None
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert finished(folder, config) is None and finished(folder, absolute)
