"""`torchrank tune`: a command line as the plan of a study, and the study carried out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchrank.record import alone_in, source_of
from torchrank.screen import say
from torchrank.tuning.configs import OWN, Composed, Line, check_models, check_own, compose_model, folder_of, read_line
from torchrank.tuning.jobs import COMPLETE, EXCEEDED
from torchrank.tuning.pool import run_studies
from torchrank.tuning.study import ABOUT, DATABASE, TRIALS, Plan, Row, Study, import_optuna


def plan_of(arguments: Sequence[str]) -> tuple[Plan, int]:
    """The plan of a command line, and its number of workers; a mistake is told before anything is written."""
    line = read_line(arguments, OWN)
    check_own(line.own)
    check_models(line.models)
    import_optuna()
    composed = [compose_model(model, line) for model in dict.fromkeys(line.models)] or [compose_model(None, line)]
    return make_plan(line, composed, folder_of(line, composed)), line.own["workers"]


def make_plan(line: Line, composed: Sequence[Composed], folder: Path) -> Plan:
    """The plan of a study of these models."""
    first = composed[0]
    return Plan(
        folder=folder,
        spaces={each.model: each.space for each in composed},
        defaults={each.model: each.defaults for each in composed},
        overrides=tuple(line.overrides),
        source=source_of(first.data),
        monitor=first.monitor,
        mode=first.mode,
        seed=first.seed,
        trials=line.own["trials"],
        cpu_seconds=line.own["cpu_seconds"],
        prune=line.own["prune"],
    )


def run_study(plan: Plan, workers: int, *, quiet: bool = False) -> tuple[Study, dict[str, Any]]:
    """Carry out a study, or what is left of it, and test its winner.

    Args:
        plan: what to study.
        workers: processes.
        quiet: print no line for each trial.

    Returns:
        The study, and what study.json holds.
    """
    plan = replace(plan, folder=plan.folder.absolute())
    new, made = not (plan.folder / ABOUT).exists(), not plan.folder.exists()
    with alone_in(plan.folder, "folder="):
        study = Study(plan, (lambda row, best: None) if quiet else say_row)
        run_studies([study], workers)
        found = study.write()
    if study.gave_up and all(row.state != EXCEEDED for row in study.rows()):
        told = f"every trial failed, so the study was given up after {len(study.rows())}: {study.gave_up}"
        if new:
            forget_study(study, made)
        else:
            told = f"{told} (delete {plan.folder} to begin again)"
        raise ValueError(told)
    return study, found


def forget_study(study: Study, made: bool) -> None:
    """Remove what a study has written, and the folders that are empty then; its own one, if it has `made` it."""
    folder = study.plan.folder
    runs = [folder / row.folder for row in study.rows() if row.folder]
    study.close()
    for path in runs:
        shutil.rmtree(path, ignore_errors=True)
    for name in (ABOUT, DATABASE):
        (folder / name).unlink(missing_ok=True)
    for path in (folder / TRIALS, *([folder] if made else [])):
        with suppress(OSError):  # there is something else in it
            path.rmdir()


def say_row(row: Row, best: Any) -> None:
    """A line for a trial that has ended."""
    ended = f"{row.value:.4f}" if row.state == COMPLETE and row.value is not None else f"{row.state}, {row.reason}"
    leads = f" (best: {best.value:.4f}, trial {best.number})" if best is not None else ""
    spent = "" if row.cpu_seconds is None else f", {row.cpu_seconds:.1f} CPU s"
    say(f"trial {row.number} {row.model}: {ended}{leads}{spent}")
