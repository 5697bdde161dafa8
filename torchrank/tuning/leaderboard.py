"""Every ranker that fits the data, tuned within a budget on every fold, its winner tested once: the leaderboard."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchrank.errors import check_choice, check_number
from torchrank.record import COSTS, RESULTS, Run, alone_in, forget_results, read_run
from torchrank.screen import quoted, say
from torchrank.tuning.board import Board, Entry
from torchrank.tuning.configs import Composed, Line, check_models, check_own, compose_model, known_models, read_line
from torchrank.tuning.jobs import Job
from torchrank.tuning.pool import run_studies
from torchrank.tuning.spaces import as_text
from torchrank.tuning.studies import make_plan
from torchrank.tuning.study import DEFAULT, WINNER, import_optuna

OWN: dict[str, Any] = {
    "models": None,  # all
    "folds": None,  # all
    "trials": 12,
    "cpu_seconds": 120,
    "workers": None,  # the number of cores
    "prune": True,
    "folder": None,
    "minutes": None,  # after which no further trials begin
    "defaults": False,  # the table of defaults and tuned forms
}
QUICK: dict[str, Any] = {"trials": 3, "cpu_seconds": 20, "minutes": 6}
QUICK_FOLDS = 2
LEFT_OUT = ("ensemble", "neural")  # made of others at the end; another name of mlp
LINEAR = ("listnet", "lambdarank", "domination")  # half of the fixed ensemble; the other half are the trees
REFERENCE, SEEDS, ENSEMBLE = "gbdt", "gbdt_seeds", "ensemble"
NUM_SEEDS, INNER, FEWEST_INNER = 4, 5, 3


@dataclass(frozen=True)
class Setting:
    """A leaderboard to make."""

    line: Line
    composed: dict[str, Composed]  # by name on the board
    folds: list[str]
    folder: Path
    workers: int
    until: float | None
    defaults: bool

    @property
    def budget(self) -> dict[str, Any]:
        """What every ranker was given."""
        return {name: self.line.own[name] for name in ("trials", "cpu_seconds", "minutes", "prune")}


def setting_of(arguments: Sequence[str], quick: bool = False) -> Setting:
    """The leaderboard of a command line; a mistake is told before anything is written."""
    line = read_line(arguments, {**OWN, **(QUICK if quick else {})})
    workers = (os.cpu_count() or 1) if line.own["workers"] is None else line.own["workers"]
    check_own({**line.own, "workers": workers})
    check_number(">= 0", minutes=line.own["minutes"])
    check_choice((True, False), defaults=line.own["defaults"])
    if line.models or line.swept:
        raise ValueError("a leaderboard has many models: name some with models=a,b instead of model=, without sweeps")
    import_optuna()
    every = sorted(known_models(), key=lambda name: name not in (REFERENCE, *LINEAR))  # if time is short, these have it
    names = _list(line.own["models"]) or [name for name in every if name not in LEFT_OUT]
    check_models(names)
    composed = {name: compose_model(name, line) for name in names}
    first = next(iter(composed.values()))
    defaults = line.own["defaults"] is True
    folds = _folds(first, line, defaults)
    if quick and not defaults and line.own["folds"] is None:
        folds = folds[:QUICK_FOLDS]
    name = f"{first.data_name}-quick" if quick else first.data_name  # whose limits are not those of a whole one
    folder = line.own["folder"] or Path("runs/defaults" if defaults else "runs/leaderboard", name)
    minutes = line.own["minutes"]
    until = None if minutes is None else time.monotonic() + 60 * float(minutes)
    return Setting(line, composed, folds, Path(folder).absolute(), workers, until, defaults)


def _list(given: Any) -> list[str]:
    if given is None:
        return []
    return [str(each).strip() for each in (given if isinstance(given, list) else str(given).split(","))]


def _folds(first: Composed, line: Line, defaults: bool) -> list[str]:
    """The folds of the data; with defaults those of its training queries."""
    given = _list(line.own["folds"])
    if defaults:
        inner = given[0] if given else str(INNER)
        if len(given) > 1 or not inner.isdecimal() or int(inner) < FEWEST_INNER:
            told = f"folds must be a number >= {FEWEST_INNER} with defaults=true, of inner folds"
            raise ValueError(f"{told}, got folds={','.join(given)}")
        return [f"{number}/{inner}" for number in range(1, int(inner) + 1)]
    from torchrank.data.catalogue import count_folds

    fixed = [text.partition("=")[2] for text in line.overrides if text.startswith("data.fold=")]
    count = count_folds(first.data)
    known = list(map(str, range(1, count + 1)))
    if unknown := [fold for fold in given if fold not in known and count > 1]:
        raise ValueError(f"folds={','.join(given)}: {first.data_name} has no fold {unknown[0]}, only 1 to {count}")
    return fixed or list(dict.fromkeys(given)) or known


# ---- the runs --------------------------------------------------------------------------------------------------------


def run_leaderboard(setting: Setting, *, quiet: bool = False) -> dict[str, Any]:
    """Carry out all studies, or what is left of them, and return the document of the leaderboard."""
    board = Board(
        [entry_of(setting, name, fold) for name in setting.composed for fold in setting.folds],
        (lambda: {}) if setting.defaults else lambda: ensembles(setting),
        setting.until,
        (lambda entry: None) if quiet else _say,
    )
    with alone_in(setting.folder, "folder="):
        run_studies([board], setting.workers)
    return document(setting, board)


def entry_of(setting: Setting, name: str, fold: str) -> Entry:
    """The study of one ranker on one fold."""
    place = f"inner={quoted(fold)}" if setting.defaults else f"data.fold={fold}"
    line = replace(setting.line, overrides=[*setting.line.overrides, place])
    plan = make_plan(line, [setting.composed[name]], study_folder(setting, name, fold))
    finals: dict[str, tuple[str, ...]] = {WINNER: ()}
    if setting.defaults:
        finals[DEFAULT] = ()
    elif name == REFERENCE:
        finals |= {f"seed-{plan.seed + k}": (f"seed={plan.seed + k}",) for k in range(1, NUM_SEEDS)}
    return Entry(name, fold, replace(plan, finals=finals, costs=True))


def study_folder(setting: Setting, name: str, fold: str) -> Path:
    """Where the study of a ranker on a fold is kept."""
    return setting.folder / "studies" / name / f"fold-{fold.replace('/', '-of-')}"


def ensembles(setting: Setting) -> dict[str, Job]:
    """The average of the trees over seeds, and the fixed ensemble, half linear and half trees: by name and fold."""
    if ENSEMBLE not in known_models():
        return {}
    jobs = {}
    for fold in setting.folds:
        trees = [str(path.parent) for path in sorted(study_folder(setting, REFERENCE, fold).glob(f"*/{RESULTS}"))]
        linear = [str(study_folder(setting, name, fold) / WINNER) for name in LINEAR]
        made = {SEEDS: trees} if len(trees) == NUM_SEEDS else {}
        if made and all((Path(each) / RESULTS).exists() for each in linear):
            made[ENSEMBLE] = [linear, trees]  # type: ignore[list-item]
        for name, members in made.items():
            jobs[f"{name} {fold}"] = _ensemble(setting, name, fold, members)
    return jobs


def _ensemble(setting: Setting, name: str, fold: str, members: Any) -> Job:
    folder = setting.folder / "ensembles" / name / f"fold-{fold}"
    if _is_older(folder, members):  # its configuration would be the same
        forget_results(folder)
    own = [f"model={ENSEMBLE}", f"model.members={as_text(members)}", f"name={name}", f"data.fold={fold}"]
    place = f"hydra.run.dir={quoted(str(folder))}"
    return Job((*setting.line.overrides, *own, "show=false", place), str(folder), costs=True)


def _is_older(folder: Path, members: Any) -> bool:
    """Whether one of the members was fitted again after the ensemble in this folder was made."""
    if isinstance(members, list):
        return any(_is_older(folder, each) for each in members)
    made = folder / RESULTS
    return made.exists() and (Path(members) / RESULTS).stat().st_mtime_ns > made.stat().st_mtime_ns


def _say(entry: Entry) -> None:
    found = entry.found or {}
    winner = found.get("winner")
    told = f"{found.get('monitor')} {winner['value']:.4f}" if winner else f"no winner: {why(found)}"
    say(f"{entry.name}, fold {entry.fold}: {told}, {len(found.get('trials', []))} trials")


def why(found: dict[str, Any]) -> str:
    """Why a study has no winner, or its test no result."""
    rows = found.get("trials", [])
    if not rows:
        return "out of time before its first trial"
    failures = found.get("failures") or {}
    return str(found.get("gave_up") or next(iter(failures.values()), "") or rows[0]["reason"] or rows[0]["state"])


# ---- what came of them -----------------------------------------------------------------------------------------------


def document(setting: Setting, board: Board) -> dict[str, Any]:
    """The numbers of the leaderboard, or of the table of defaults."""
    from torchrank.report.leaderboard.tabulate import Candidate, tabulate, tabulate_defaults

    found: dict[str, Candidate] = {}
    for entry in board.entries:
        candidate = found.setdefault(entry.name, Candidate(entry.name))
        candidate.trials += [row["state"] for row in (entry.found or {}).get("trials", [])]
        candidate.add(read(entry.plan.folder / WINNER), costs_of(entry.plan.folder / WINNER), entry.fold)
        if setting.defaults and (run := read(entry.plan.folder / default_of(entry))) is not None:
            candidate.defaults.append(run)
        if not (entry.plan.folder / WINNER / RESULTS).exists():
            candidate.reasons[entry.fold] = why(entry.found or {})
    for name in (SEEDS, ENSEMBLE) if not setting.defaults else ():
        for fold in setting.folds:
            folder = setting.folder / "ensembles" / name / f"fold-{fold}"
            if folder.is_dir():
                candidate = found.setdefault(name, Candidate(name))
                candidate.add(read(folder), costs_of(folder), fold)
                if reason := board.failures.get(f"{name} {fold}"):
                    candidate.reasons[fold] = reason
    about = {"folds": setting.folds, "budget": setting.budget, "overrides": setting.line.overrides}
    if setting.defaults:
        return {**about, **tabulate_defaults(list(found.values()))}
    return {**about, **tabulate(list(found.values()), setting.folds, (REFERENCE, SEEDS))}


def default_of(entry: Entry) -> str:
    """The folder of the run with the defaults; the winner's, if it has them."""
    winner = (entry.found or {}).get("winner") or {}
    return WINNER if winner.get("number") == 0 else DEFAULT


def read(folder: Path) -> Run | None:
    """The run in a folder, if it has finished."""
    return read_run(folder / RESULTS, tested=False) if (folder / RESULTS).exists() else None


def costs_of(folder: Path) -> dict[str, float]:
    """What was measured of the ranker of a run: microseconds per document, bytes."""
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / COSTS).read_text(encoding="utf-8")))
    return {}
