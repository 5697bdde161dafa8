"""Many studies on one board, with an invented run: whose turn it is, the end of the time, what comes after."""

import os
import time

import pytest

from tests.tuning.test_study import plan
from torchrank.record import COSTS, RESULTS
from torchrank.run import keep_inner
from torchrank.tuning.board import Board, Entry
from torchrank.tuning.jobs import COMPLETE, FAILED, Job, Outcome
from torchrank.tuning.leaderboard import ensembles, setting_of, study_folder
from torchrank.tuning.spaces import Range

pytest.importorskip("optuna")
A = {"spaces": {"a": {"model.x": Range.between(0.0, 1.0)}}, "defaults": {"a": {"model.x": "0.5"}}}


def board(folder, later=dict, until=None):
    plans = {name: plan(folder / name, trials=3) for name in ("one", "two")}
    entries = [Entry(name, "1", type(each)(**{**vars(each), **A})) for name, each in plans.items()]
    return Board(entries, later, until)


def test_studies_take_turns_and_ensembles_come_last(tmp_path):
    found = board(tmp_path, lambda: {"ensemble 1": Job((), str(tmp_path / "ensemble"))})
    order = []
    while (job := found.next_job()) is not None:
        order.append(job.folder.removeprefix(str(tmp_path) + "/").partition("/")[0])
        other = found.next_job()  # a second worker
        order.append(other.folder.removeprefix(str(tmp_path) + "/").partition("/")[0] if other else None)
        for each in (job, other):
            if each is not None:
                state = FAILED if each.folder.endswith("ensemble") else COMPLETE
                found.finish(each, Outcome(state, 0.5, "no memory" if state == FAILED else ""))
    assert order == ["one", "two"] * 4 + ["ensemble", None] and found.failures == {"ensemble 1": "no memory"}
    assert all(len(entry.found["trials"]) == 3 and entry.found["winner"] for entry in found.entries)


def test_when_the_time_is_over_winners_are_tested_and_no_trial_begins(tmp_path):
    found = board(tmp_path)
    job = found.next_job()
    found.until = time.monotonic() - 1
    found.finish(job, Outcome(COMPLETE, 0.5))
    final = found.next_job()
    assert final.folder == str(tmp_path / "one" / "winner")
    found.finish(final, Outcome(COMPLETE, 0.5))
    assert found.next_job() is None and [len(entry.found["trials"]) for entry in found.entries] == [1, 0]


def test_the_folds_of_the_training_queries_are_disjoint():
    import numpy as np
    import torch

    from torchrank import RankingDataModule, RankingSet

    held, validated = [], []
    for number in range(1, 5):
        x = torch.arange(22.0)[:, None]
        data = RankingDataModule.from_sets(train=RankingSet(x, torch.ones(22), torch.arange(0, 23, 2)), test=None)
        keep_inner(data, f"{number}/4")
        parts = {split: lists.x[:, 0].numpy() for split, lists in data.sets.items()}
        assert sorted(np.concatenate(list(parts.values()))) == list(range(22)) and data.fold == f"1.{number}"
        held.append(parts["test"])
        validated.append(parts["val"])
    assert sorted(np.concatenate(held)) == list(range(22))
    assert all(np.array_equal(validated[k], held[(k + 1) % 4]) for k in range(4))
    for wrong in ("0/5", "6/5", "1/2", "x", "1"):
        with pytest.raises(ValueError, match=f"such as 2/5, got {wrong}"):
            keep_inner(data, wrong)


def test_the_setting_of_a_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["data=mq2008", "models=gbdt,xgboost,attention", "workers=2"]
    found = setting_of(given)
    assert list(found.composed) == ["gbdt", "xgboost", "attention"] and found.folds == ["1", "2", "3", "4", "5"]
    assert found.budget == {"trials": 12, "cpu_seconds": 120, "minutes": None, "prune": True}
    assert setting_of([*given, "trials=2"], quick=True).budget["trials"] == 2
    assert setting_of(given, quick=True).folds == ["1", "2"] and setting_of([*given, "data.fold=3"]).folds == ["3"]
    assert setting_of(given, quick=True).folder != setting_of(given).folder  # their limits differ
    assert setting_of([*given[1:], "data=synthetic"], quick=True).folds == ["1"]
    assert setting_of([*given[1:], "data=synthetic", "folds=3,7,3"]).folds == ["3", "7"]  # each a new world
    assert setting_of([*given, "defaults=true", "folds=3"]).folds == ["1/3", "2/3", "3/3"]
    for wrong, told in {
        "model=gbdt": "models=a,b",
        "models=gbtd": "unknown model",
        "workers=0": "workers must",
        "defaults=maybe": "defaults",
        "minutes=soon": "minutes",
    }.items():
        with pytest.raises(ValueError, match=told):
            setting_of(["data=mq2008", wrong])
    with pytest.raises(ValueError, match="mq2008 has no fold 6, only 1 to 5"):
        setting_of([*given, "folds=2,6"])
    for wrong in ("folds=2", "folds=1,2"):
        with pytest.raises(ValueError, match="folds must be a number >= 3 with defaults=true"):
            setting_of([*given, "defaults=true", wrong])
    assert not list(tmp_path.iterdir())


def test_an_ensemble_is_made_again_after_one_of_its_members(tmp_path):
    """Its configuration names folders, which stay the same when further trials find another winner."""
    setting = setting_of(["data=mq2008", "models=gbdt", "data.fold=1", f"folder={tmp_path}"])
    study = study_folder(setting, "gbdt", "1")
    members = [study / name / RESULTS for name in ("winner", "seed-1", "seed-2", "seed-3")]
    made = tmp_path / "ensembles" / "gbdt_seeds" / "fold-1"
    for path in (*members, made / RESULTS, made / COSTS):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [job.folder for job in ensembles(setting).values()] == [str(made)] and (made / RESULTS).exists()
    later = (made / RESULTS).stat().st_mtime_ns + 1
    os.utime(members[2], ns=(later, later))
    assert list(ensembles(setting)) == ["gbdt_seeds 1"] and not list(made.iterdir())
