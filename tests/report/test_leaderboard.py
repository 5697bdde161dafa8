"""The leaderboard's numbers against plain numpy and scipy; its files."""

import json

import numpy as np
import pytest
from scipy.stats import ttest_rel

from tests.report.sweep import write_run
from torchrank.record import read_run
from torchrank.report.leaderboard.files import write_board, write_defaults
from torchrank.report.leaderboard.sheets import default_sheets, sheets
from torchrank.report.leaderboard.tabulate import Candidate, tabulate, tabulate_defaults
from torchrank.report.tables import markdown

MEANS = {"gbdt": 0.5, "gbdt_seeds": 0.52, "a<b>": 0.6, "worse": 0.3}
ABOUT = {"folds": ["1", "2"], "budget": {"trials": 3, "cpu_seconds": 20, "minutes": 6, "prune": True}}


def values_of(name, fold):
    noise = np.random.default_rng([fold, list(MEANS).index(name)]).normal(0, 0.1, size=30)
    values = MEANS[name] + noise
    values[0] = np.nan
    return values


def candidate(root, name, folds=(1, 2)):
    found = Candidate(name, trials=["complete", "pruned", "complete"])
    for fold in folds:
        queries = {"default/ndcg@10": values_of(name, fold), "default/map": values_of(name, fold) / 2}
        folder = write_run(root / f"{name[0]}{len(name)}{fold}", name, value=0.5, queries=queries, fold=fold)
        found.add(read_run(folder / "results.json"), {"microseconds": 2.0, "bytes": 4000}, str(fold))
    return found


@pytest.fixture
def board(tmp_path):
    candidates = [candidate(tmp_path, name) for name in MEANS if name != "worse"]
    partial = candidate(tmp_path, "worse", folds=(1,))
    partial.add(None, {}, "2")
    partial.reasons["2"] = "more than 20 CPU seconds"
    lost = Candidate("lost", reasons={"1": "no query vectors", "2": "no query vectors"}, trials=["failed"])
    found = tabulate([*candidates, partial, lost], ["1", "2"], ("gbdt", "gbdt_seeds"))
    return {**ABOUT, **found}


def test_means_deviations_and_ranks(board):
    rows = {row["name"]: row for row in board["rows"]}
    assert list(rows) == ["a<b>", "gbdt_seeds", "gbdt", "worse", "lost"]
    assert [rows[name]["test_rank"] for name in rows] == [1, 2, 3, None, None]
    for name in ("a<b>", "gbdt"):
        folds = [np.nanmean(values_of(name, fold)) for fold in (1, 2)]
        value = rows[name]["test"]["ndcg@10"]
        assert value["mean"] == pytest.approx(np.mean(folds)) and value["deviation"] == pytest.approx(
            np.std(folds, ddof=1)
        )
    assert rows["worse"]["folds"] == 1 and not rows["worse"]["complete"] and rows["lost"]["against"] == {}
    assert rows["gbdt"]["trials"] == {"complete": 2, "pruned": 1} and rows["gbdt"]["microseconds"] == 2.0


def test_paired_tests_against_each_reference_with_holm(board):
    for reference in ("gbdt", "gbdt_seeds"):
        p, tests = [], []
        for row in board["rows"]:
            if row["name"] in (reference, "lost"):
                assert reference not in row["against"]
                continue
            folds = (1,) if row["name"] == "worse" else (1, 2)
            a, b = (np.concatenate([values_of(name, fold)[1:] for fold in folds]) for name in (row["name"], reference))
            test = row["against"][reference]
            assert test["difference"] == pytest.approx(np.mean(a - b)) and test["queries"] == len(a)
            assert test["t"] == pytest.approx(ttest_rel(a, b).pvalue, abs=1e-12)
            p.append(test["t"])
            tests.append(test)
        order, highest = np.argsort(p), 0.0
        for place, index in enumerate(order):
            highest = max(highest, min(1.0, p[index] * (len(p) - place)))
            assert tests[index]["t_holm"] == pytest.approx(highest)


def test_files(board, tmp_path):
    assert write_board(tmp_path / "out", board) == [f"leaderboard.{end}" for end in ("json", "md", "html", "png")]
    assert json.loads((tmp_path / "out/leaderboard.json").read_text()) == board
    text, page = ((tmp_path / f"out/leaderboard.{end}").read_text() for end in ("md", "html"))
    assert "more than 20 CPU seconds" in text and "no query vectors" in text and "a\\<b>" in text
    assert "3 trials of at most 20 CPU seconds, the first with the defaults; after 6 minutes no further trials" in text
    assert "a&lt;b&gt;" in page and "<script" not in page and "http:" not in page.replace("http-equiv", "")
    assert (tmp_path / "out/leaderboard.png").read_bytes().startswith(b"\x89PNG")
    assert [sheet.title.partition(": ")[2] for sheet in sheets(board)][1:3] == [
        "ndcg@10 against gbdt",
        "ndcg@10 against gbdt_seeds",
    ]


def test_no_result_at_all_is_one_line():
    with pytest.raises(ValueError, match="no ranker has a result: no query vectors"):
        tabulate([Candidate("lost", reasons={"1": "no query vectors"})], ["1"], ("gbdt",))


def test_a_tuned_form_leads_by_a_hundredth_and_two_standard_errors(tmp_path):
    ids = [f"q{number}" for number in range(50)]
    base = np.random.default_rng(0).random(50) / 2
    found = []
    for name, gap in {"leads": 0.05, "little": 0.005, "unsure": 0.02}.items():
        noise = np.random.default_rng(1).normal(0, 0.2 if name == "unsure" else 0.001, size=50)
        forms = [base + gap + noise - noise.mean(), base]
        runs = [
            read_run(
                write_run(tmp_path / f"{name}{k}", name, value=1, queries={"default/ndcg@10": form}, ids=ids)
                / "results.json"
            )
            for k, form in enumerate(forms)
        ]
        found.append(Candidate(name, runs=runs[:1], defaults=runs[1:]))
    table = {
        "folds": ["1/3", "2/3", "3/3"],
        **tabulate_defaults([*found, Candidate("lost", reasons={"1/3": "no memory"})]),
    }
    assert {row["name"]: row["leads"] for row in table["rows"]} == {"leads": True, "unsure": False, "little": False}
    assert table["rows"][0]["difference"] == pytest.approx(0.05) and table["left_out"] == {"lost": "no memory"}
    assert "lost: left out, no memory." in markdown(default_sheets(table)[0])
    assert write_defaults(tmp_path, table) == ["defaults.json", "defaults.md"]


def test_test_lists_without_a_relevant_document_have_no_ranks_and_the_files_are_written(tmp_path):
    def unknown(name, folds):
        found = Candidate(name, trials=["complete"])
        for fold in folds:
            queries = {"default/ndcg@10": np.full(30, np.nan), "default/map": np.full(30, np.nan)}
            folder = write_run(tmp_path / f"{name}{fold}", name, value=0.5, queries=queries, fold=fold)
            found.add(read_run(folder / "results.json"), {}, str(fold))
        return found

    with pytest.warns(RuntimeWarning, match="empty slice"):  # of the runs, as they are written here
        candidates = [unknown("one", (1,)), unknown("gbdt", (1, 2))]
    found = tabulate(candidates, ["1", "2"], ("gbdt",))
    assert [(row["test_rank"], row["test"]["map"]["mean"]) for row in found["rows"]] == [(None, None)] * 2
    lists = [read_run(path).measured["default"]["lists"] for path in sorted(tmp_path.glob("gbdt*/results.json"))]
    assert found["lists"] == sum(lists)  # also where the first ranker lacks a fold
    assert "leaderboard.png" in write_board(tmp_path / "out", {**ABOUT, **found})
