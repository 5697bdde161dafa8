"""The two selections of kNN errors, by loops over all choices."""

import itertools
import json

import numpy as np
import pytest

from tests.report.sweep import write_run
from torchrank.cli import main
from torchrank.report.knn import pages, tabulate_neighbours
from torchrank.report.tables import markdown

CUTS, POINTS = (1, 3, 11), 8


def write(root, name, errors, *, data="points/wine", settings=("model.C", (1, 10, 100)), skip=()):
    """errors (S, F, K, 2): wrong points of 8 on validation and test."""
    for s, f in np.ndindex(errors.shape[:2]):
        if (s, f) in skip:
            continue
        folder = root / f"{data}-{name}-{s}-{f}".replace("/", "-")
        queries = {f"default/knn_error@{k}": np.arange(POINTS) < errors[s, f, place, 1] for place, k in enumerate(CUTS)}
        given = {settings[0]: settings[1][s], "data.source": "wine"}
        write_run(folder, name, value=0.1, queries=queries, fold=f + 1, settings=given, data=data, mode="min")
        content = json.loads((folder / "results.json").read_text())
        val = {f"knn_error@{k}": errors[s, f, place, 0] / POINTS for place, k in enumerate(CUTS)}
        content["val"] = {"default": {"text": "", "lists": 1, "empty": 0, "measures": val}}
        (folder / "results.json").write_text(json.dumps(content))


def plain(errors):
    """Percent and standard error of both selections; every choice is tried, the first of equal ones stays."""
    settings, splits, cuts, _ = errors.shape
    best, at = 99.0, (0, 0)
    for s, k in itertools.product(range(settings), range(cuts)):
        mean = sum(int(errors[s, f, k, 1]) for f in range(splits))
        if mean < best:
            best, at = mean, (s, k)
    chosen = []
    for f in range(splits):
        least, place = 99, (0, 0)
        for s, k in itertools.product(range(settings), range(cuts)):
            if errors[s, f, k, 0] < least:
                least, place = errors[s, f, k, 0], (s, k)
        chosen.append(errors[place[0], f, place[1], 1])
    rows = [errors[at[0], f, at[1], 1] for f in range(splits)], chosen
    return at, [(100 * np.mean(r) / POINTS, 100 * np.std(r, ddof=1) / POINTS / splits**0.5) for r in rows]


@pytest.mark.parametrize("seed", range(5))
def test_both_selections_are_those_of_loops(tmp_path, seed):
    errors = np.random.default_rng(seed).integers(0, 4, size=(3, 6, 3, 2))  # few values: many ties
    write(tmp_path, "mlr_map", errors)
    (table,) = tabulate_neighbours(tmp_path)["tables"]
    (method,) = table["methods"]
    (s, k), expected = plain(errors)
    for selection, (percent, error) in zip(("optimistic", "honest"), expected, strict=True):
        assert method[selection]["percent"] == pytest.approx(percent)
        assert method[selection]["standard_error"] == pytest.approx(error)
    assert method["optimistic"]["chosen"] == {f"C={(1, 10, 100)[s]} k={CUTS[k]}": 1}
    assert sum(method["honest"]["chosen"].values()) == method["splits"] == 6
    assert method["published"] == 1.0 and method["missing_runs"] == 0


def test_sheets_of_several_sets_and_missing_runs(tmp_path, capsys):
    errors = np.random.default_rng(9).integers(0, 4, size=(3, 4, 3, 2))
    errors[2, :, :, 1] = 0  # would be the best, but has not all splits
    write(tmp_path, "mlr_map", errors, skip={(2, 1)})
    write(tmp_path, "nca", errors[:1, :1], data="points/isolet", settings=("model.method", ("nca",)))
    document = tabulate_neighbours(tmp_path)
    first, second, isolet, wine = map(markdown, pages(document))
    assert "| method | points/isolet | points/wine |" in first and "as published" in first and "by validation" in second
    percent = plain(errors[:2])[1][0]
    assert f"{percent[0]:.2f} ±{percent[1]:.2f} [1.0] |" in first and "[" not in second.split("\n\n")[1]
    assert "| nca | " in first and " [10.8] | – |" in first  # noqa: RUF001
    assert "| 4 | 1 | 0 | 0 | 2.0 |" in wine and "k=" in isolet
    assert main(["neighbours", str(tmp_path)]) == 0
    assert "12 runs read; wrote table.md and table.json" in capsys.readouterr().out
    assert json.loads((tmp_path / "table.json").read_text())["runs"] == 12
    assert (tmp_path / "table.md").read_text().startswith("### kNN error %")


def test_fewer_splits_and_fits_that_are_not_proved_are_counted(tmp_path):
    errors = np.random.default_rng(9).integers(0, 4, size=(3, 4, 3, 2))
    write(tmp_path, "mlr_map", errors)
    write(tmp_path, "mlr_auc", errors[:, :3])
    for number, folder in enumerate(sorted(tmp_path.glob("*mlr_map*"))):
        content = json.loads((folder / "results.json").read_text())
        content["certificate"] = {"name": "gap", "found": 0.2, "limit": 0.1, "proved": number >= 5}
        content["findings"] = {"metric": "W = 0"} if number > 9 else {}
        (folder / "results.json").write_text(json.dumps(content))
    first, _, chosen = map(markdown, pages(tabulate_neighbours(tmp_path)))
    rows = {line.split(" | ")[0]: line for line in (first + chosen).splitlines() if line.startswith("| mlr")}
    assert first.count("(3 splits)") == 1 and "(3 splits)" in first.splitlines()[4]
    assert rows["| mlr_auc"].endswith("| 3 | 3 | 0 | 0 | 2.0 |")
    assert rows["| mlr_map"].endswith("| 4 | 0 | 5 | 2 | 2.0 |")


def test_gains_are_those_of_the_splits_in_common(tmp_path):
    draw = np.random.default_rng(4)
    mine, euclidean = draw.integers(0, 4, size=(3, 6, 3, 2)), draw.integers(0, 6, size=(1, 4, 3, 2))
    write(tmp_path, "mlr_map", mine)
    write(tmp_path, "nca", mine[:1, :1])
    write(tmp_path, "euclidean", euclidean, settings=("model.method", ("euclidean",)))
    write(tmp_path, "mlr_auc", mine, data="points/wdbc")
    gains = markdown(pages(tabulate_neighbours(tmp_path))[2])
    chosen = []
    for errors in (mine, euclidean):
        places = [np.unravel_index(errors[:, f, :, 0].argmin(), (len(errors), 3)) for f in range(4)]
        chosen.append([errors[s, f, k, 1] for f, (s, k) in enumerate(places)])
    less = 100 * np.subtract(*chosen) / POINTS
    assert f"| mlr_map | – | {less.mean():+.2f} ±{np.std(less, ddof=1) / 2:.2f} |" in gains  # noqa: RUF001
    assert "| nca | – | " in gains and "nan" not in gains and "mlr_auc" not in gains  # noqa: RUF001


def test_runs_without_knn_errors_are_refused(tmp_path, capsys):
    write_run(tmp_path / "a", "listnet", value=0.5, queries={"default/map": [0.5, 1.0]})
    assert main(["neighbours", str(tmp_path)]) == 2
    assert "has a measure knn_error@k: sweep with measures=[knn_error@1,knn_error@3]" in capsys.readouterr().err


def test_runs_without_validation_or_a_common_k_are_refused(tmp_path):
    write(tmp_path, "mlr", np.ones((2, 3, 3, 2), dtype=int))
    paths = sorted(tmp_path.rglob("results.json"))
    whole = paths[0].read_text()
    paths[0].write_text(json.dumps(json.loads(whole) | {"val": {}}))
    with pytest.raises(ValueError, match="was not validated"):
        tabulate_neighbours(tmp_path)
    paths[0].write_text(whole.replace("knn_error@", "knn_error@10"))
    with pytest.raises(ValueError, match="no knn_error@k with a common k"):
        tabulate_neighbours(tmp_path)
