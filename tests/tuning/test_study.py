"""Studies with an invented run: which trials come, what is kept, and that a killed study continues as it would have."""

import json
from dataclasses import replace

import pytest

from torchrank.tuning.jobs import COMPLETE, EXCEEDED, FAILED, PRUNED, Outcome
from torchrank.tuning.spaces import Choices, Range
from torchrank.tuning.study import Plan, Study

pytest.importorskip("optuna")


def plan(folder, **options):
    spaces = {"a": {"model.x": Range.between(0.0, 1.0)}, "b": {"model.y": Choices(("1", "2"))}}
    defaults = {"a": {"model.x": "0.5"}, "b": {"model.y": "1"}}
    common = {"overrides": ("seed=0",), "source": {"root": "/data"}, "monitor": "val/map", "mode": "max"}
    return Plan(folder, spaces, defaults, **(common | options))


def value_of(job):
    """The best x is 0.3; b is always worse."""
    x = [float(text.partition("=")[2]) for text in job.overrides if text.startswith("model.x=")]
    return 0.1 if "model=b" in job.overrides else 1 - abs((x or [0.5])[0] - 0.3)


def carry_out(study, stop_before=None):
    """All jobs of a study, one after the other; or until the process is killed, with a job begun."""
    jobs = []
    while (job := study.next_job()) is not None:
        if len(jobs) == stop_before:
            return jobs
        jobs.append(job)
        study.finish(job, Outcome(COMPLETE, value_of(job), cpu_seconds=1.0))
    return jobs


def test_defaults_come_first_then_trials_then_one_test_of_the_winner(tmp_path):
    study = Study(plan(tmp_path, trials=8))
    jobs = carry_out(study)
    assert [[text for text in job.overrides if text.startswith("model")] for job in jobs[:2]] == [
        ["model=a"],
        ["model=b"],
    ]
    assert all(("test=false" in job.overrides) == job.watched for job in jobs)
    *trials, final = jobs
    assert all(job.watched for job in trials) and not final.watched and final.folder == str(tmp_path / "winner")
    best = max(trials, key=value_of)
    assert value_of(final) == value_of(best) and study.best().value == value_of(best)
    found = study.write()
    assert found == json.loads((tmp_path / "study.json").read_text())
    assert len(found["trials"]) == 8 and found["tests"] == {"winner": 1}
    states = [row["state"] for row in found["trials"]]
    assert states.count("repeated") + len(trials) == 8
    assert (
        study.next_job() is None or final.folder
    )  # nothing was written by the made-up run, so it would be tested again


def test_a_killed_study_continues_with_the_same_trials(tmp_path):
    """Killed in its second trial and in its tenth, the first that is not drawn at random."""
    whole, folder = Study(plan(tmp_path / "whole", trials=11)), tmp_path / "x[/b]y a=b,c 'q' ?#%20 ü"
    carry_out(whole)
    for killed in (1, 9, None):
        again = Study(plan(folder, trials=11))
        carry_out(again, stop_before=killed)
    assert again.rows() == whole.rows() and len(again.rows()) == 11
    assert {row.state for row in again.rows()} == {"complete", "repeated"}


def test_more_trials_can_be_added_and_nothing_else_changed(tmp_path):
    carry_out(Study(plan(tmp_path, trials=3)))
    more = Study(plan(tmp_path, trials=6))
    carry_out(more)
    assert len(more.rows()) == 6
    with pytest.raises(ValueError, match=r"holds another study \(seed is 0 there and 1 here\)"):
        Study(plan(tmp_path, trials=6, seed=1))


def test_what_fails_is_a_row_and_never_wins(tmp_path):
    study = Study(plan(tmp_path, trials=5))
    outcomes = [
        Outcome(FAILED, reason="no memory"),
        Outcome(COMPLETE, float("nan")),
        Outcome(PRUNED, 0.99, "worse"),
        Outcome(EXCEEDED, reason="more than 3 CPU seconds"),
    ]
    while (job := study.next_job()) is not None and job.watched:
        study.finish(job, outcomes.pop(0) if outcomes else Outcome(COMPLETE, 0.5))
    rows = study.rows()
    assert [row.state for row in rows[:4]] == ["failed", "failed", "pruned", "exceeded"]
    assert [row.reason for row in rows[:2]] == [
        "no memory",
        "val/map is nan: does any validation query have a relevant document?",
    ]
    assert study.best() is None or study.best().value == 0.5


def test_a_study_whose_first_trials_fail_alike_gives_up(tmp_path):
    study = Study(plan(tmp_path, trials=50))
    count = 0
    while (job := study.next_job()) is not None:
        study.finish(job, Outcome(FAILED, reason="data not found"))
        count += 1
    assert study.gave_up == "data not found" and count == 3 and study.best() is None


def test_a_hopeless_trial_is_pruned_by_the_trials_of_its_model(tmp_path):
    only = {"spaces": {"a": {"model.x": Range.between(0.0, 1.0)}}, "defaults": {"a": {"model.x": "0.5"}}}
    study = Study(replace(plan(tmp_path, trials=6), **only))
    for best in (0.5, 0.6, 0.7, 0.8):
        job = study.next_job()
        assert all(study.goes_on(job, count, best) for count in (1, 2, 3, 4))
        study.finish(job, Outcome(COMPLETE, best))
    job = study.next_job()
    assert study.goes_on(job, 3, 0.1) and not study.goes_on(job, 4, 0.64) and study.goes_on(job, 4, 0.66)
