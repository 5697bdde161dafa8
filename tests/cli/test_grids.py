"""The sweeper of tables on a tiny Hydra application: which jobs run, and in which folders."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
APPLICATION = """
import json, os, time, hydra
from hydra.core.hydra_config import HydraConfig
from pathlib import Path

@hydra.main(version_base="1.3", config_path="conf", config_name="main")
def main(config):
    hydra = HydraConfig.get()
    line = {"overrides": list(hydra.overrides.task), "folder": Path(hydra.runtime.output_dir).name}
    line |= {"model": dict(config.model), "fold": config.data.fold, "seed": config.seed}
    line |= {"process": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")}
    done = Path(hydra.runtime.output_dir) / "done"
    if done.exists():
        return
    if config.data.fold == 2 and Path("broken").exists():
        raise ValueError("fold 2 is broken")
    if "TORCHRANK_SWEEP_TAKEN" in os.environ:
        time.sleep(0.3)  # so that both workers find jobs
    done.touch()
    with open("jobs.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")

main()
"""
FILES = {
    "main.yaml": """
        defaults: [{model: listnet}, {data: mq2008}, {experiment: null}, _self_]
        seed: 0
        hydra:
          job: {config: {override_dirname: {exclude_keys: [experiment]}}}
          sweep: {dir: sweep, subdir: "${hydra.job.override_dirname}"}""",
    "model/listnet.yaml": "{name: listnet, l2: 1.0}",
    "model/gbdt.yaml": "{name: gbdt, trees: 10, rate: null}",
    "data/mq2008.yaml": "{name: mq2008, fold: 1}",
    "experiment/table.yaml": """
        # @package _global_
        defaults: [{override /hydra/sweeper: torchrank_grids}]
        hydra:
          sweeper:
            params: {data.fold: "1,2"}
            grids:
              - {model: listnet, model.l2: "1e-4,1e-3"}
              - {model: gbdt, model.rate: null}""",
}


@pytest.fixture
def sweep(tmp_path):
    """Runs the application with overrides and returns its jobs, or its error text."""
    (tmp_path / "application.py").write_text(APPLICATION)
    for name, text in FILES.items():
        path = tmp_path / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).strip())

    def run(*overrides: str, fails: bool = False):
        command = [sys.executable, "application.py", "-m", *overrides]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else [json.loads(x) for x in (tmp_path / "jobs.jsonl").read_text().splitlines()]

    return run


def settings(jobs):
    return [(job["model"]["name"], job["fold"], job["model"].get("l2")) for job in jobs]


def test_union_of_grids_over_the_folds(sweep):
    jobs = sweep("experiment=table")
    linear = [("listnet", fold, l2) for fold in (1, 2) for l2 in (1e-4, 1e-3)]
    assert settings(jobs) == [*linear, ("gbdt", 1, None), ("gbdt", 2, None)]
    assert jobs[0]["overrides"] == ["data.fold=1", "model=listnet", "model.l2=0.0001", "experiment=table"]
    assert jobs[0]["folder"] == "data.fold=1,model.l2=0.0001,model=listnet"
    assert len({job["folder"] for job in jobs}) == 6
    assert jobs[-1]["model"] == {"name": "gbdt", "trees": 10, "rate": None}


def test_command_line_replaces_where_the_key_stands_and_adds_elsewhere(sweep):
    jobs = sweep("experiment=table", "data.fold=2", "model.l2=5,6,7", "seed=3")
    assert settings(jobs) == [("listnet", 2, 5), ("listnet", 2, 6), ("listnet", 2, 7), ("gbdt", 2, None)]
    assert {job["seed"] for job in jobs} == {3}


def test_model_on_the_command_line_keeps_its_grids(sweep):
    assert settings(sweep("experiment=table", "model=gbdt", "data.fold=1")) == [("gbdt", 1, None)]


def test_several_models_on_the_command_line_are_not_crossed_with_the_grids(sweep):
    jobs = sweep("experiment=table", "model=gbdt,listnet", "data.fold=1", "model.l2=2")
    assert settings(jobs) == [("listnet", 1, 2), ("gbdt", 1, None)]


def test_a_grid_of_several_models_is_narrowed_and_a_common_job_runs_once(sweep):
    grids = "hydra.sweeper.grids=[{model: 'listnet,gbdt'},{model: listnet},{seed: 4}]"
    jobs = sweep("experiment=table", grids, "model=listnet", "data.fold=1")
    assert [(job["model"]["name"], job["seed"]) for job in jobs] == [("listnet", 0), ("listnet", 4)]


def test_without_grids_it_is_hydras_own_sweeper(sweep):
    jobs = sweep("hydra/sweeper=torchrank_grids", "data.fold=3,4", "seed=1,2")
    assert [(job["fold"], job["seed"]) for job in jobs] == [(3, 1), (3, 2), (4, 1), (4, 2)]


@pytest.mark.slow
def test_parallel_jobs_are_the_jobs_one_by_one(sweep, tmp_path):
    """Each job once, with the numbers and folders that it has alone; few processes, with their share of the cores."""
    expected = sweep("experiment=table", "hydra.sweep.dir=alone")
    (tmp_path / "jobs.jsonl").unlink()
    dated = "hydra.sweep.dir='side ${now:%f}'"  # the same folder for all workers, whenever they start
    jobs = sweep("experiment=table", "hydra.sweeper.jobs=2", dated)
    assert len(jobs) == 6 and len({job["process"] for job in jobs}) == 2 and len(list(tmp_path.glob("side *"))) == 1
    names = ("overrides", "folder", "model", "fold", "seed")
    assert sorted(str([job[name] for name in names]) for job in jobs) == sorted(
        str([job[name] for name in names]) for job in expected
    )
    given = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))
    assert {job["threads"] for job in jobs} == {given}


@pytest.mark.slow
def test_a_parallel_sweep_resumes_where_it_broke(sweep, tmp_path):
    (tmp_path / "broken").touch()
    text = sweep("experiment=table", "hydra.sweeper.jobs=2", fails=True)
    assert "fold 2 is broken" in text and "of 2 workers failed" in text  # one may do all
    assert {json.loads(line)["fold"] for line in (tmp_path / "jobs.jsonl").read_text().splitlines()} == {1}
    (tmp_path / "broken").unlink()
    jobs = sweep("experiment=table", "hydra.sweeper.jobs=2")
    assert sorted(job["fold"] for job in jobs) == [1, 1, 1, 2, 2, 2]


@pytest.mark.usefixtures("sweep")
def test_a_sweep_that_is_killed_takes_its_workers_along(tmp_path):
    command = [sys.executable, "application.py", "-m", "experiment=table", "hydra.sweeper.jobs=2"]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
    )
    lines = tmp_path / "jobs.jsonl"
    while not lines.exists() and running.poll() is None:
        time.sleep(0.05)
    running.terminate()
    running.communicate(timeout=60)  # ends when the workers have closed the pipe too
    done = lines.read_text().count("\n")
    assert running.returncode == 143 and done < 6
    time.sleep(0.5)
    assert lines.read_text().count("\n") == done


def test_errors_come_before_the_first_job(sweep):
    assert "no grid of this sweep has" in sweep(
        "experiment=table", "hydra.sweeper.grids=[{model: listnet}]", "model=gbdt", fails=True
    )
    assert "fodl" in sweep("experiment=table", "data.fodl=1", fails=True)
    assert "fodl" in sweep("experiment=table", "data.fodl=1", "hydra.sweeper.jobs=2", fails=True)
    assert "hydra.sweeper.jobs must be >= 1, got 0" in sweep("experiment=table", "hydra.sweeper.jobs=0", fails=True)
