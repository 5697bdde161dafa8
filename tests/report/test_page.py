"""The report: numbers counted again plainly, texts that must stay harmless, and what it says without a test part."""

import json
import re

import numpy as np
import pytest

from tests.report.sweep import write_run, write_sweep
from torchrank.cli import main
from torchrank.report.page.collect import collect
from torchrank.report.page.intervals import mean_intervals
from torchrank.report.page.page import embed, render
from torchrank.report.significance import bootstrap_interval

EVIL = '</script><script>alert("x")</script><!-- &\u2028 é'


def test_intervals_are_those_of_resampled_means():
    generator = np.random.default_rng(0)
    columns = list(generator.beta(2, 3, size=(3, 80)))
    columns[1][:30] = np.nan
    for column, interval in zip(columns, mean_intervals(columns), strict=True):
        own = column[~np.isnan(column)]
        means = [generator.choice(own, len(own)).mean() for _ in range(4000)]
        assert interval == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.004)
    assert np.isnan(mean_intervals([np.full(4, np.nan)])).all() and mean_intervals([]) == []


@pytest.mark.parametrize("queries", [1, 7, 700])
def test_intervals_are_those_of_compare(queries):
    a, b, c = np.random.default_rng(2).random((3, queries))
    found = mean_intervals([a - b, np.append(np.nan, a - c), a[:-1]])
    assert found[0] == pytest.approx(bootstrap_interval(a, b), abs=1e-12)
    assert found[1] == pytest.approx(bootstrap_interval(a, c), abs=1e-12)


def test_a_sweep_is_collected_as_select_chooses(tmp_path):
    write_sweep(tmp_path)
    (section,) = collect([tmp_path])["sections"]
    assert main(["select", str(tmp_path)]) == 0
    (table,) = json.loads((tmp_path / "table.json").read_text())["tables"]
    assert [method["name"] for method in section["methods"]] == [method["name"] for method in table["methods"]]
    for ours, theirs in zip(section["methods"], table["methods"], strict=True):
        for convention, part in theirs["test"].items():
            for name, value in part["measures"].items():
                found = ours["test"][convention]["measures"][name]
                assert {key: found[key] for key in value} == value
                assert found["low"] < found["pooled"] < found["high"]
    assert {each["name"]: each["candidates"] for each in section["methods"]} == {"linear": 15, "gbdt": 5, "single": 5}
    assert section["swept"] and section["comparisons"] == table["comparisons"]


def test_differences_and_values_of_queries(tmp_path):
    a, b = [0.9, 0.5, float("nan"), 0.1], [0.4, 0.5, 0.3, 0.2]
    facts = {"length": [9, 8, 7, 6], "relevant": [4, 3, 2, 1]}
    write_run(tmp_path / "a", "a", value=0.5, queries={"default/ndcg@10": a}, ids=["w", "x", "y", "z"],
              facts={**facts, "group": [0, 1, 1, -1]})  # fmt: skip
    write_run(tmp_path / "b", "b", value=0.4, queries={"default/ndcg@10": b[::-1]}, ids=["z", "y", "x", "w"])
    (section,) = collect([tmp_path / "a", tmp_path / "b"])["sections"]
    assert section["queries"] == {"id": ["w", "x", "y", "z"], "fold": [1] * 4, **facts, "groups": {"a": [0, 1, 1, -1]}}
    assert section["values"]["default"]["ndcg@10"] == [[0.9, 0.5, None, 0.1], b]
    (pair,) = section["pairs"]["default"]["ndcg@10"]
    assert (pair["wins"], pair["ties"], pair["losses"], pair["queries"]) == (1, 1, 1, 3)
    assert pair["difference"] == pytest.approx(np.mean([0.5, 0.0, -0.1])) and pair["low"] < pair["difference"]


def test_smaller_errors_win(tmp_path):
    for name, values in (("a", [0.0, 0.0, 1.0]), ("b", [1.0, 1.0, 1.0])):
        write_run(tmp_path / name, name, value=0.5, queries={"default/knn_error@3": values}, mode="min",
                  selection="val/knn_error@3")  # fmt: skip
    (section,) = collect([tmp_path])["sections"]
    (pair,) = section["pairs"]["default"]["knn_error@3"]
    assert (pair["wins"], pair["ties"], pair["losses"]) == (2, 1, 0) and section["smaller"] == ["knn_error@3"]


def test_runs_named_one_by_one_are_all_shown(tmp_path):
    for lr, value in ((0.1, 0.5), (0.2, 0.7)):
        write_run(tmp_path / f"lr{lr}", "net", value=value, queries={"default/map": [0.5, value]},
                  settings={"model.lr": lr, "model.depth": 2})  # fmt: skip
    single = [str(tmp_path / "lr0.1"), str(tmp_path / "lr0.2"), str(tmp_path / "lr0.2")]
    (section,) = collect(single)["sections"]
    assert {method["name"] for method in section["methods"]} == {"net (lr=0.1)", "net (lr=0.2)"}
    (section,) = collect([tmp_path])["sections"]  # the same runs as a sweep: validation chooses
    (method,) = section["methods"]
    assert method["chosen"][0]["settings"]["model.lr"] == 0.2 and method["candidates"] == 2


def test_a_run_without_a_test_part_has_validation_numbers_only(tmp_path):
    folder = write_run(tmp_path / "a", "a", value=0.5, queries={"default/map": [0.25, 0.75]})
    content = json.loads((folder / "results.json").read_text())
    del content["test"]
    (folder / "results.json").write_text(json.dumps(content | {"per_query": None}))
    (section,) = collect([tmp_path])["sections"]
    assert not section["tested"] and section["methods"][0]["val"]["default"]["measures"] == {"map": 0.5}
    assert section["methods"][0]["test"] is None and section["queries"]["id"] == []
    assert "These are validation numbers" in render(collect([tmp_path]))


def test_no_text_leaves_its_script(tmp_path):
    write_run(tmp_path / "a", EVIL, value=0.5, queries={"default/map": [0.5, 1.0]}, ids=[EVIL, "2"], data=EVIL,
              settings={"model.x": EVIL})  # fmt: skip
    document = collect([tmp_path])
    page = render(document, title=EVIL)
    assert page.count("</script>") == 2 and "<script>alert" not in page and "<!--" not in page
    inside = re.search(r'id="content">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(inside)["sections"] == document["sections"]
    assert json.loads(embed(EVIL)) == EVIL and "\u2028" not in embed(EVIL)


def test_a_page_loads_nothing(tmp_path):
    write_sweep(tmp_path, folds=(1,))
    page = render(collect([tmp_path]))
    links = re.findall(r'\b(?:src|href)="([^#"][^"]*)"', page)
    assert links == ["data:,"] and "url(" not in page and "@import" not in page and "default-src 'none'" in page


def test_the_command_writes_a_page_and_says_so(tmp_path, capsys):
    write_sweep(tmp_path / "sweep", folds=(1, 2))
    (tmp_path / "sweep/unfinished/.hydra").mkdir(parents=True)
    out = tmp_path / "new folder" / "page.html"
    assert main(["report", str(tmp_path / "sweep"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"3 rankers of 10 runs: wrote {out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["report", str(tmp_path / "sweep"), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == str(out) and found["unfinished"] == [str(tmp_path / "sweep/unfinished")]
    assert "values" not in found["sections"][0] and found["sections"][0]["methods"][2]["name"] == "single"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "folder not found: nowhere"),
        (["."], "no results.json below . (0 unfinished runs): train first"),
        ([".", "--out", "page.txt"], "--out must be a file that ends in .html, got page.txt"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    assert capsys.readouterr().err == f"torchrank report: error: {told}\n" and not list(tmp_path.iterdir())
