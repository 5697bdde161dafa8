"""Selection by validation alone, and the averages over seeds, folds and queries."""

import json

import numpy as np
import pytest

from tests.report.sweep import write_run, write_sweep
from torchrank.record import read_runs
from torchrank.report.select import paired, select
from torchrank.report.summary import tabulate
from torchrank.report.tables import Bold, sheets

KEY = "default/ndcg@10"


def write(root, name, value, values, **options):
    settings = options.get("settings") or {}
    place = [name, options.get("fold", 1), options.get("seed", 0), *settings.values()]
    return write_run(root / "-".join(map(str, place)), name, value=value, queries={KEY: values}, **options)


def chosen(root):
    (selection,) = select(read_runs(root))
    return {
        (method.name, choice.run.fold, choice.run.seed): choice.run.settings
        for method in selection.methods
        for choice in method.choices
    }


def test_the_best_validation_value_wins_in_each_fold_and_seed(tmp_path):
    validation = {(1, 0): [0.3, 0.5, 0.4], (1, 1): [0.5, 0.4, 0.3], (2, 0): [0.1, 0.2, 0.3], (2, 1): [0.2, 0.3, 0.1]}
    for (fold, seed), values in validation.items():
        for depth, value in zip((2, 10, 3), values, strict=True):
            write(tmp_path, "gbdt", value, [0.0], fold=fold, seed=seed, settings={"model.depth": depth})
    assert {key[1:]: settings["model.depth"] for key, settings in chosen(tmp_path).items()} == {
        (1, 0): 10, (1, 1): 2, (2, 0): 3, (2, 1): 10
    }  # fmt: skip


def test_mode_min_and_nan(tmp_path):
    for l2, value in {1: 0.5, 2: 0.2, 3: float("nan")}.items():
        write(tmp_path, "listnet", value, [1.0], settings={"l2": l2}, selection="val/loss", mode="min")
    assert chosen(tmp_path) == {("listnet", 1, 0): {"l2": 2}}


def test_ties_go_to_the_first_setting_numbers_as_numbers(tmp_path):
    for l2 in (10, 2, 0.5):
        write(tmp_path, "listnet", 0.7, [1.0], settings={"model.l2": l2})
    for loss in ("ranknet", "listnet"):
        write(tmp_path, "neural", 0.7, [1.0], settings={"model.loss": loss})
    assert chosen(tmp_path) == {("listnet", 1, 0): {"model.l2": 0.5}, ("neural", 1, 0): {"model.loss": "listnet"}}


def test_choosing_never_looks_at_test_measures(tmp_path):
    write_sweep(tmp_path, folds=(1, 2))
    before = chosen(tmp_path)
    paths = sorted(tmp_path.rglob("results.json"))
    contents = [json.loads(path.read_text()) for path in paths]
    generator = np.random.default_rng(0)
    for _ in range(5):
        order = generator.permutation(len(paths))
        for path, content, other in zip(paths, contents, order, strict=True):
            path.write_text(json.dumps(content | {"test": contents[other]["test"]}))
        assert chosen(tmp_path) == before


def test_fold_means_average_seeds_first(tmp_path):
    write(tmp_path, "listnet", 0.5, [0.0, 1.0], fold=1, seed=0)
    write(tmp_path, "listnet", 0.5, [0.2, 0.4], fold=1, seed=1)
    write(tmp_path, "listnet", 0.5, [0.9, np.nan, 0.7], fold=2, seed=0)
    ((method,),) = (selection.methods for selection in select(read_runs(tmp_path)))
    assert method.fold_means("default", "ndcg@10") == pytest.approx({1: 0.4, 2: 0.8})
    ids, values = method.per_query("default", "ndcg@10")[1]
    assert ids.tolist() == ["1-0", "1-1"]
    np.testing.assert_allclose(values, [0.1, 0.7])


def test_pairs_are_the_common_queries_whatever_their_order(tmp_path):
    write(tmp_path, "a", 0.5, [0.1, 0.2, 0.3], ids=["x", "y", "z"], fold=1)
    write(tmp_path, "b", 0.5, [0.6, 0.4, 0.5], ids=["z", "x", "w"], fold=1)
    write(tmp_path, "a", 0.5, [0.7, np.nan], ids=["x", "u"], fold=2)  # the same query in another fold is not a new one
    write(tmp_path, "b", 0.5, [0.8, 0.9], ids=["x", "u"], fold=2)
    write(tmp_path, "a", 0.5, [0.5], fold=3)  # only one of them has fold 3
    ((a, b),) = (selection.methods for selection in select(read_runs(tmp_path)))
    first, second = paired(a, b, "default", "ndcg@10")
    np.testing.assert_allclose(np.stack([first, second], 1), [((0.1 + 0.7) / 2, (0.4 + 0.8) / 2), (0.3, 0.6)])


def test_data_sets_are_apart_and_folds_in_their_order(tmp_path):
    for fold in (10, 9, 1):
        write(tmp_path, "listnet", 0.5, [1.0], fold=fold)
    write(tmp_path / "x", "listnet", 0.5, [1.0], fold=None, data="synthetic")
    first, second = select(read_runs(tmp_path))
    assert (first.data, first.folds, second.data, second.folds) == ("mq2008", [1, 9, 10], "synthetic", [None])


def test_what_cannot_be_compared_is_refused(tmp_path):
    write(tmp_path / "a", "listnet", 0.5, [1.0], settings={"l2": 1})
    write(tmp_path / "b", "listnet", 0.5, [1.0], settings={"l2": 2}, selection="val/map")
    with pytest.raises(ValueError, match=r"'listnet' on mq2008 .* val/map \(max\) and val/ndcg@10 \(max\)"):
        chosen(tmp_path)
    write(tmp_path / "nan", "gbdt", float("nan"), [1.0])
    with pytest.raises(ValueError, match="all 1 runs of this fold and seed have a validation measure of nan"):
        chosen(tmp_path / "nan")


def test_seeds_with_different_queries_are_refused(tmp_path):
    write(tmp_path, "listnet", 0.5, [0.5, 1.0], ids=["1", "2"])
    write(tmp_path, "listnet", 0.5, [0.5, 1.0], ids=["1", "3"], seed=1)
    ((method,),) = (selection.methods for selection in select(read_runs(tmp_path)))
    with pytest.raises(ValueError, match="different test queries"):
        method.per_query("default", "ndcg@10")


def untested(folder, name, **options):
    """A run without test lists, as train.py leaves it."""
    write_run(folder, name, **options)
    path = folder / "results.json"
    content = json.loads(path.read_text())
    del content["test"]
    path.write_text(json.dumps(content | {"per_query": None}))
    (folder / "per_query.npz").unlink()


def test_runs_that_were_not_tested_are_told_in_words(tmp_path):
    for fold in (1, 2):
        for name, values in {"a": [0.2, 0.4], "b": [0.6, 0.8]}.items():
            untested(tmp_path / f"{name}{fold}", name, value=0.5, fold=fold, queries={"default/ndcg@10": values})
    (table,) = tabulate(tmp_path)["tables"]
    assert table["split"] == "val" and table["comparisons"] == {}
    assert [method["name"] for method in table["methods"]] == ["b", "a"] and "test" not in table["methods"][0]
    first, chosen = sheets({"tables": [table], "unfinished": []})
    assert first.title == "mq2008: validation measures, convention default" and first.rows[0][1] == Bold(
        "0.7000 ±0.0000"
    )
    assert first.below[0].startswith("Not tested: these are measures of the validation lists")
    assert "pooled" not in " ".join(first.below) and len(chosen.rows) == 4


def test_tested_and_untested_runs_have_tables_of_their_own(tmp_path):
    write_run(tmp_path / "a", "a", value=0.5, queries={"default/ndcg@10": [0.2, 0.4]})
    untested(tmp_path / "b", "b", value=0.9, queries={"default/ndcg@10": [0.9, 0.9]})
    tables = tabulate(tmp_path)["tables"]
    assert [(table["split"], [method["name"] for method in table["methods"]]) for table in tables] == [
        ("test", ["a"]), ("val", ["b"])
    ]  # fmt: skip
