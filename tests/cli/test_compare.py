"""`torchrank compare`: p-values of scipy and ranx, queries matched by id, folders, runs and score files together."""

import json

import numpy as np
import pytest
from scipy import stats

from tests.data.test_trec import random_files, texts
from tests.report.sweep import write_run, write_sweep
from torchrank import read_qrels, read_run
from torchrank.cli import main
from torchrank.functional import evaluate
from torchrank.report.comparison import System, compare, matched
from torchrank.report.significance import bootstrap_interval, effect_size


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys, *arguments):
    assert main(["compare", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def runs(folder, names=("a", "b", "c")):
    """Runs of different seeds on the judgements of one, as files."""
    _, qrels = random_files(0)
    for seed, name in enumerate(names):
        run = random_files(seed)[0]
        (folder / f"{name}.run").write_text(texts(run, qrels)[0])
    (folder / "qrels").write_text(texts({}, qrels)[1])


def test_runs_have_the_p_values_of_scipy(here, capsys):
    runs(here)
    found = told(capsys, "a.run", "b.run", "c.run", "--qrels", "qrels", "--measures", "map", "ndcg@5")
    assert found["convention"] == "trec" and list(found["measures"]) == ["map", "ndcg@5"]
    qrels, values = read_qrels("qrels"), {}
    for name in ("a.run", "b.run", "c.run"):
        judged = read_run(name).judge(qrels)
        measured = evaluate(**judged.lists, measures=["map"], convention="trec")["map"].tolist()
        values[name] = dict(zip(judged.query_ids, measured, strict=True))
    for row in found["measures"]["map"]["pairs"]:
        common = sorted(values[row["a"]].keys() & values[row["b"]].keys())
        a, b = (np.array([values[row[side]][query] for query in common]) for side in "ab")
        assert row["queries"] == len(common) and row["difference"] == pytest.approx((a - b).mean(), abs=1e-12)
        assert row["t"] == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=1e-9)
        exact = stats.permutation_test(
            (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
        )
        assert row["randomisation"] == pytest.approx(exact.pvalue, abs=1e-9)  # few queries: all patterns
        assert (row["wins"], row["ties"], row["losses"]) == ((a > b).sum(), (a == b).sum(), (a < b).sum())
        assert row["effect_size"] == pytest.approx((a - b).mean() / (a - b).std(ddof=1), abs=1e-9)
        assert row["interval"][0] <= row["difference"] <= row["interval"][1]
    p = sorted(row["t"] for row in found["measures"]["map"]["pairs"])
    adjusted = sorted(row["t_holm"] for row in found["measures"]["map"]["pairs"])
    assert adjusted == pytest.approx(np.maximum.accumulate(np.minimum(1, np.array(p) * [3, 2, 1])), abs=1e-12)


@pytest.mark.peers
def test_p_values_are_those_of_ranx():
    tests = pytest.importorskip("ranx.statistical_tests")
    generator = np.random.default_rng(0)
    a = generator.beta(2, 2, 80)
    b = np.clip(a + generator.normal(0.02, 0.1, 80), 0, 1)
    ids = np.arange(80).astype(str)
    row = compare([System("a", {None: (ids, a)}), System("b", {None: (ids, b)})])["pairs"][0]
    assert row["t"] == pytest.approx(tests.paired_student_t_test(a, b)[0], abs=1e-9)
    theirs = tests.fisher_randomization_test(a, b, n_permutations=20_000)[0]
    assert row["randomisation"] == pytest.approx(theirs, abs=4 * np.sqrt(theirs * (1 - theirs) * (1 / 1e4 + 1 / 2e4)))


def test_bootstrap_intervals_are_those_of_scipy():
    generator = np.random.default_rng(1)
    a, b = generator.random((2, 60))
    theirs = stats.bootstrap(((a - b),), np.mean, method="percentile", n_resamples=10_000, random_state=0)
    assert bootstrap_interval(a, b) == pytest.approx(theirs.confidence_interval, abs=0.01)
    assert effect_size(a, a) == 0 and effect_size(a + 1, a) > 1e6 and np.isnan(effect_size(a[:1], b[:1]))


def test_folders_of_folds_are_matched_fold_by_fold(here, capsys):
    write_sweep(here / "sweep")
    document = told(capsys, "sweep")
    names = [each["name"] for each in document["measures"]["ndcg@10"]["systems"]]
    assert names == ["gbdt", "linear", "single"] and document["convention"] == "default"
    from torchrank.report.summary import tabulate

    expected = tabulate(here / "sweep")["tables"][0]["comparisons"]["default"]
    ours = {frozenset((row["a"], row["b"])): row for row in document["measures"]["ndcg@10"]["pairs"]}
    for row in expected:
        same = ours[frozenset((row["a"], row["b"]))]
        sign = 1 if same["a"] == row["a"] else -1
        assert same["difference"] == pytest.approx(sign * row["difference"], abs=1e-12)
        for test in ("t", "t_holm"):
            assert same[test] == pytest.approx(row[test], abs=1e-12)
        assert same["queries"] == row["queries"]


def test_a_query_of_two_folds_counts_once():
    ids = np.array(["q1", "q2"])
    a = System("a", {1: (ids, np.array([0.0, 1.0])), 2: (ids, np.array([1.0, np.nan]))})
    b = System("b", {1: (ids, np.array([1.0, 0.0])), 2: (ids, np.array([1.0, 1.0]))})
    found, first, second = matched(a, b)
    assert list(found) == ["q1", "q2"] and first.tolist() == [0.5, 1] and second.tolist() == [1, 0]
    run = System("run", {None: (np.array(["q2", "q1"]), np.array([0.25, 0.5]))})
    found, first, second = matched(a, run)
    assert first.tolist() == [0.5, 1] and second.tolist() == [0.5, 0.25]


def test_queries_in_one_system_only_are_told(here, capsys):
    values = {"first": [0.25, 1.0, 0.5, np.nan], "second": [0.5, 0.75, 1.0]}
    for name, ids in (("first", ["1", "2", "3", "4"]), ("second", ["2", "4", "9"])):
        queries = {"default/knn_error": values[name]}
        write_run(here / name, name, value=0.5, queries=queries, ids=ids, selection="val/knn_error", mode="min")
    row = told(capsys, "first", "second")["measures"]["knn_error"]["pairs"][0]
    assert (row["queries"], row["only_a"], row["only_b"], row["undefined"]) == (1, 2, 1, 1)
    assert (row["difference"], row["wins"], row["losses"]) == (0.5, 0, 1)  # of an error less is better
    assert main(["compare", "first", "second"]) == 0
    assert "queries left out: 2 in first only, 1 in second only, 1 without a value" in capsys.readouterr().out


def test_forms_of_the_output(here, capsys):
    runs(here, ("x_1", "b"))
    arguments = ["compare", "x_1.run", "b.run", "--qrels", "qrels"]
    assert main([*arguments, "--plot", "d.png"]) == 0 and (here / "d.png").read_bytes().startswith(b"\x89PNG")
    assert "x_1.run - b.run" in capsys.readouterr().out
    assert main([*arguments, "--markdown"]) == 0 and "| x_1.run - b.run |" in capsys.readouterr().out
    assert main([*arguments, "--latex"]) == 0 and r"x\_1.run - b.run &" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.run"], "give --qrels FILE or --labels FILE"),
        (["a.run", "--qrels", "qrels"], "needs two or more systems, got 1"),
        (["a.run", "a.run", "--qrels", "qrels"], "a.run is given twice"),
        (["a.run", "missing", "--qrels", "qrels"], "file not found: missing"),
        (["."], "no results.json below ."),
        (["a.run", "b.run", "--qrels", "qrels", "--plot", "d.gif"], "--plot must end with .png, .svg or .pdf"),
        (["a.run", "b.run", "--qrels", "qrels", "--measures", "mapp"], "unknown measure 'mapp'"),
    ],
)
def test_mistakes_are_told_in_one_line(here, capsys, arguments, message):
    runs(here, ("a", "b"))
    assert main(["compare", *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1
