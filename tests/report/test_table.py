"""The numbers of the table, typed again plainly, and the two files it is written to."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from tests.report.sweep import TEXT, write_run, write_sweep
from torchrank.record import read_runs
from torchrank.report.summary import tabulate, write
from torchrank.report.tables import markdown, sheets, show


def test_means_deviations_and_pooled_means(tmp_path):
    """Folds of different size: the mean of the fold means and the pooled mean differ."""
    values = {1: [0.0, 1.0, np.nan], 2: [0.75], 3: [0.25, 0.25, 0.25, 1.0]}
    for fold, each in values.items():
        write_run(tmp_path / str(fold), "listnet", value=0.5, queries={"default/map": each}, fold=fold)
    (table,) = tabulate(tmp_path)["tables"]
    (method,) = table["methods"]
    measure = method["test"]["default"]["measures"]["map"]
    assert measure["folds"] == [0.5, 0.75, 0.4375]
    assert measure["mean"] == pytest.approx((0.5 + 0.75 + 0.4375) / 3)
    assert measure["deviation"] == pytest.approx(np.std([0.5, 0.75, 0.4375], ddof=1))
    assert measure["pooled"] == pytest.approx((0 + 1 + 0.75 + 0.75 + 1) / 7)
    assert (method["test"]["default"]["lists"], method["test"]["default"]["empty"]) == (8, 1)
    assert table["test_measure"] is None and table["comparisons"] == {}  # ndcg@10 was not measured


@pytest.mark.parametrize("seeds", [1, 3])
def test_one_fold_shows_the_deviation_over_seeds(tmp_path, seeds):
    for seed in range(seeds):
        queries = {"default/ndcg@10": [0.5 + 0.1 * seed]}
        write_run(tmp_path / str(seed), "a", value=0.5, queries=queries, seed=seed, fold=None)
    document = tabulate(tmp_path)
    measure = document["tables"][0]["methods"][0]["test"]["default"]["measures"]["ndcg@10"]
    assert measure["deviation"] == (pytest.approx(0.1) if seeds == 3 else None)
    page = markdown(sheets(document)[0])
    assert ("**0.6000 ±0.1000 (0.6000)**" if seeds == 3 else "**0.5000 (0.5000)**") in page


def test_paired_tests_and_marks(tmp_path):
    write_sweep(tmp_path)
    document = tabulate(tmp_path)
    (table,) = document["tables"]
    tests = table["comparisons"]["default"]
    assert [method["name"] for method in table["methods"]] == ["linear", "gbdt", "single"]
    assert [(test["a"], test["b"]) for test in tests] == [("linear", "gbdt"), ("linear", "single"), ("gbdt", "single")]
    runs = read_runs(tmp_path)  # in the order of the folds; these two have one setting
    a, b = (
        np.concatenate([run.queries("default", "ndcg@10")[1] for run in runs if run.name == name])
        for name in ("gbdt", "single")
    )
    assert tests[2]["queries"] == 535 and tests[2]["difference"] == pytest.approx(np.nanmean(a - b))
    assert tests[2]["t"] == pytest.approx(stats.ttest_rel(a, b, nan_policy="omit").pvalue, rel=1e-9)
    assert tests[0]["randomisation"] > 0.05 > tests[1]["randomisation_holm"] == pytest.approx(3 / 10_001)
    assert table["best"]["default"]["ndcg@10"] == {"name": "linear", "not_different": ["gbdt"]}
    assert table["best"]["default"]["map"] == {"name": "gbdt", "not_different": []}  # no test, no mark


def test_pages_say_who_loses_and_what_was_counted(tmp_path):
    write_sweep(tmp_path)
    pages = [markdown(sheet) for sheet in sheets(tabulate(tmp_path))]
    assert [page.splitlines()[0] for page in pages] == [
        "### mq2008: test measures, convention default",
        "### mq2008: test measures, convention letor",
        "### mq2008: paired tests of ndcg@10, convention default",
        "### mq2008: paired tests of ndcg@10, convention letor",
        "### mq2008: settings chosen by val/ndcg@10",
    ]
    assert "| linear - single | +0.0808 | 535 |" in pages[2] and "| single loses |" in pages[2]
    assert f"Convention default: {TEXT}.  \n785 queries, 250 of them without relevant documents." in pages[0]
    assert "≈: ndcg@10 not significantly different from the best" in pages[0]
    row = next(line for line in pages[0].splitlines() if line.startswith("| gbdt"))
    assert row.count("**") == 4 and row.count("≈") == 1  # best in ndcg@5 and map, level in ndcg@10
    assert "| linear | 1 | 0 | model.l2=0.01 | 3 | 0.7096 | 2.0 |" in pages[4] and "| gbdt | 1 | 0 | – |" in pages[4]  # noqa: RUF001


@pytest.mark.parametrize("width", [20, 80, 300])
@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_cut_off_on_a_narrow_screen(tmp_path, width, terminal):
    write_sweep(tmp_path, folds=(1, 2))
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    for sheet in sheets(tabulate(tmp_path)):
        show(sheet, console)
    out = file.getvalue()
    assert "…" not in out and out.count("model.l2=") == 2 and "randomisation" in out
    assert out.count("(0.") >= 18 and "**" not in out and ("*: bold." in out) != terminal


def test_missing_folds_are_said_plainly_and_never_best(tmp_path):
    for fold in (1, 2):
        write_run(tmp_path / f"a{fold}", "a", value=0.5, queries={"default/ndcg@10": [0.1, 0.2]}, fold=fold)
    for l2 in (1, 2):
        settings = {"l2": l2}
        write_run(tmp_path / f"b1{l2}", "b", value=0.5, queries={"default/ndcg@10": [0.9, 0.9]}, settings=settings)
    write_run(tmp_path / "c2", "c", value=0.5, queries={"default/ndcg@10": [0.1, 0.1]}, fold=2)
    write_run(tmp_path / "c1", "c", value=0.5, queries={"default/ndcg@10": [0.1, 0.1]}, seed=1, settings={"l2": 3})
    write_run(tmp_path / "c1b", "c", value=0.4, queries={"default/ndcg@10": [0.1, 0.1]}, seed=1, settings={"l2": 4})
    (tmp_path / "b2" / ".hydra").mkdir(parents=True)
    document = tabulate(tmp_path)
    (table,) = document["tables"]
    assert [m["name"] for m in table["methods"]] == ["a", "c", "b"] and table["methods"][2]["missing_folds"] == [2]
    assert table["best"]["default"]["ndcg@10"]["name"] == "a"
    assert {(test["a"], test["b"]): test["queries"] for test in table["comparisons"]["default"]} == {
        ("a", "c"): 4, ("a", "b"): 2, ("c", "b"): 2
    }  # fmt: skip
    text = "\n".join(markdown(sheet) for sheet in sheets(document))
    for part in (
        "| b (1 of 2 folds) |", "Bold: best of the methods with all folds.", "b: no result on fold 2.",
        "c: only 2 of 4 runs (2 folds, 2 seeds).", "c: chosen from 1 settings in one fold and 2 in another.",
        "Unfinished runs, left out: 1\n\nb2", f"Convention default: {TEXT}.",
        "a, c: 4 queries, 0 of them without relevant documents; b: 2 queries, 0 of them",
    ):  # fmt: skip
        assert part in text, part


def test_errors_are_best_when_small(tmp_path):
    for name, error in {"a": 0.2, "b": 0.3}.items():
        queries = {"default/domination_error": [error + 0.001 * q for q in range(40)]}
        write_run(tmp_path / name, name, value=error, queries=queries, selection="val/domination_error", mode="min")
    document = tabulate(tmp_path)
    assert document["tables"][0]["best"]["default"]["domination_error"]["name"] == "a"
    assert "b loses" in markdown(sheets(document)[1])


def test_a_measure_that_one_method_lacks_is_a_gap(tmp_path):
    write_run(tmp_path / "a", "a", value=0.5, queries={"default/ndcg@10": [0.5], "default/map": [0.4]})
    write_run(tmp_path / "b", "b", value=0.5, queries={"default/ndcg@10": [0.4], "trec/map": [0.2]})
    pages = [markdown(sheet) for sheet in sheets(tabulate(tmp_path))]
    assert "| b | 0.4000 (0.4000) ≈ | – | 2.0 |" in pages[0]  # noqa: RUF001
    assert f"Convention trec: a: not measured; b: {TEXT}." in pages[1]


def test_files_are_written_whole_and_strict(tmp_path):
    write_sweep(tmp_path, folds=(1,))
    document = tabulate(tmp_path, measures=["map", "ndcg@5"], conventions=["letor"], test_measure="map")
    write(tmp_path, document, sheets(document))
    assert json.loads((tmp_path / "table.json").read_text(), parse_constant=pytest.fail) == document
    first, _, header, *_ = (tmp_path / "table.md").read_text().splitlines()
    assert first == "### mq2008: test measures, convention letor"
    assert header == "| method | map | ndcg@5 | fit seconds |"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["table.json", "table.md"]
    assert tabulate(tmp_path, measures=["map", "ndcg@5"], conventions=["letor"], test_measure="map") == document


def test_methods_chosen_by_different_measures(tmp_path):
    queries = {"default/ndcg@10": [0.5, 0.6], "default/map": [0.4, 0.3]}
    write_run(tmp_path / "a", "a", value=0.5, queries=queries)
    write_run(tmp_path / "b", "b", value=0.5, queries=queries, selection="val/map")
    assert tabulate(tmp_path)["tables"][0]["test_measure"] is None
    document = tabulate(tmp_path, test_measure="map")
    assert document["tables"][0]["comparisons"]["default"][0]["t"] == 1.0
    assert "settings chosen by each method's validation measure" in sheets(document)[-1].title


def test_results_that_contradict_their_queries_are_refused(tmp_path):
    path = write_run(tmp_path / "a", "a", value=0.5, queries={"default/ndcg@10": [0.5, 0.6]}) / "results.json"
    path.write_text(path.read_text().replace("0.55", "0.56"))
    with pytest.raises(ValueError, match=r"a: default/ndcg@10 is 0\.56.* mean of the per-query values is 0\.55"):
        tabulate(tmp_path)


def test_unknown_names_and_empty_folders(tmp_path):
    with pytest.raises(ValueError, match=r"no results\.json below"):
        tabulate(tmp_path)
    write_sweep(tmp_path, folds=(1,))
    with pytest.raises(ValueError, match=r"no run has the measure ndgc@10: choose from map, ndcg@10, ndcg@5"):
        tabulate(tmp_path, measures=["ndgc@10"])
    with pytest.raises(ValueError, match=r"no run has the convention trec: choose from default, letor"):
        tabulate(tmp_path, conventions=["trec"])


def test_steps_are_shown_where_runs_count_them(tmp_path):
    queries = {"default/ndcg@10": [0.5, 0.6]}
    for fold, steps in ((1, 10), (2, 25)):
        write_run(tmp_path / f"a{fold}", "a", value=0.5, queries=queries, fold=fold, steps=steps)
        write_run(tmp_path / f"b{fold}", "b", value=0.5, queries=queries, fold=fold)
    page = markdown(sheets(tabulate(tmp_path))[0])
    assert "| method | ndcg@10 | fit seconds | steps |" in page and "Steps: optimizer steps" in page
    assert "| 2.0 | 17.5 |" in page and "| 2.0 | – |" in page  # noqa: RUF001
