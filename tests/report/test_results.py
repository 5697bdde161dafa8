"""Reading results: what is there, what is broken, what is unfinished."""

import json

import numpy as np
import pytest
from filelock import FileLock, Timeout

from tests.report.sweep import write_run
from torchrank.record import alone_in, finished, forget_results, forget_start, read_runs, unfinished

VALUES = {"default/ndcg@10": [0.5, np.nan, 1.0]}


def test_reads_what_a_run_wrote(tmp_path):
    write_run(tmp_path / "b", "listnet", value=0.7, queries=VALUES, fold=2, seed=3, settings={"model.l2": 0.1})
    write_run(tmp_path / "a" / "deep", "gbdt", value=0.6, queries=VALUES)
    first, second = read_runs(tmp_path)
    assert (first.name, second.name, second.fold, second.seed, second.value) == ("gbdt", "listnet", 2, 3, 0.7)
    assert second.settings == {"model.l2": 0.1} and second.mode == "max" and second.fit_seconds == 2.0
    assert second.test["default"]["measures"] == {"ndcg@10": 0.75} and second.test["default"]["empty"] == 1
    ids, values = second.queries("default", "ndcg@10")
    assert ids.tolist() == ["2-0", "2-1", "2-2"]
    np.testing.assert_array_equal(values, [0.5, np.nan, 1.0])


@pytest.mark.parametrize("broken", ['{"schema": 2, "name": "lis', "", "[]", "3", "null", "\x00\xff", '{"schema": 1}'])
def test_a_broken_results_file_is_named(tmp_path, broken):
    folder = write_run(tmp_path / "run7", "listnet", value=0.7, queries=VALUES)
    (folder / "results.json").write_bytes(broken.encode("latin-1"))
    with pytest.raises(ValueError, match=r"run7.results\.json cannot be read"):
        read_runs(tmp_path)


@pytest.mark.parametrize("key", ["name", "fold", "selection", "test", "per_query", "settings", "certificate"])
def test_a_missing_key_is_named(tmp_path, key):
    path = write_run(tmp_path / "run", "listnet", value=0.7, queries=VALUES) / "results.json"
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"results.json has no '{key}'"):
        read_runs(tmp_path)


def test_broken_per_query_files_are_named(tmp_path):
    folder = write_run(tmp_path / "run", "listnet", value=0.7, queries=VALUES)
    (run,) = read_runs(tmp_path)
    with pytest.raises(ValueError, match=r"per_query\.npz.*default/map"):
        run.queries("default", "map")
    whole = (folder / "per_query.npz").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PK"):
        (folder / "per_query.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"per_query\.npz"):
            run.queries("default", "ndcg@10")
    np.savez(folder / "per_query.npz", **{"query": np.array(["1", {}], object), "default/ndcg@10": np.zeros(2)})
    with pytest.raises(ValueError, match=r"per_query\.npz.*pickle"):
        run.queries("default", "ndcg@10")
    np.savez(folder / "per_query.npz", **{"query": np.array(["1", "1"]), "default/ndcg@10": np.zeros(2)})
    with pytest.raises(ValueError, match=r"1 different query ids of \(2,\)"):
        run.queries("default", "ndcg@10")
    (folder / "per_query.npz").unlink()
    with pytest.raises(ValueError, match=r"per_query\.npz"):
        run.queries("default", "ndcg@10")


def test_the_same_run_twice_is_refused(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name, "listnet", value=0.7, queries=VALUES, settings={"model.l2": 0.1})
    with pytest.raises(ValueError, match=r"one and .*two hold the same run: remove"):
        read_runs(tmp_path)


def test_runs_without_results_are_found(tmp_path):
    write_run(tmp_path / "done", "listnet", value=0.7, queries=VALUES)
    for name in ("done", "killed", "other/killed"):
        (tmp_path / name / ".hydra").mkdir(parents=True)
    assert unfinished(tmp_path) == [tmp_path / "killed", tmp_path / "other" / "killed"]


def test_results_count_as_finished_only_whole_and_for_their_configuration(tmp_path):
    folder = write_run(tmp_path / "run", "listnet", value=0.7, queries=VALUES)
    assert finished(folder, {})["name"] == "listnet" and finished(folder, {"seed": 1}) is None
    path = folder / "results.json"
    whole = json.loads(path.read_text())
    for change in ({"schema": 1}, {"per_query": "lost.npz"}):
        path.write_text(json.dumps(whole | change))
        assert finished(folder, {}) is None
    path.write_text("{")
    assert finished(folder, {}) is None
    forget_results(folder)
    assert list(folder.iterdir()) == [] and finished(folder, {}) is None


def test_a_folder_is_written_by_one_run_at_a_time(tmp_path):
    with alone_in(tmp_path / "new"):
        with alone_in(tmp_path / "other"), pytest.raises(FileExistsError, match=r"Another run is writing to .*new"):
            alone_in(tmp_path / "new").__enter__()
        with pytest.raises(Timeout), alone_in(tmp_path / "other"):
            raise Timeout("a lock of somebody else")
    assert list((tmp_path / "new").iterdir()) == list((tmp_path / "other").iterdir()) == []
    with alone_in(tmp_path / "new"):
        pass


def test_the_start_of_another_run_is_not_forgotten(tmp_path, monkeypatch):
    """A run that is refused removes what it began, but not the folder of the run that has it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    with alone_in(folder):
        (folder / "train.log").touch()
        forget_start(folder)
        assert (folder / "train.log").exists() and (folder / ".lock").exists()
    forget_start(folder)
    assert not folder.exists()


def test_without_locks_of_the_file_system_every_run_is_let_in(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with alone_in(tmp_path), alone_in(tmp_path):
        pass
