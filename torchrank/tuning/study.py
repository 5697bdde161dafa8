"""A study: which trial comes next, what came of it, and the winner, which alone is tested. Optuna keeps the trials."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchrank.files import write_atomically
from torchrank.record import RESULTS
from torchrank.screen import quoted
from torchrank.tuning.jobs import COMPLETE, EXCEEDED, FAILED, PRUNED, REPEATED, Job, Outcome
from torchrank.tuning.pruning import is_hopeless
from torchrank.tuning.spaces import Space, draw, first_values

ABOUT, DATABASE, TRIALS, WINNER = "study.json", "study.db", "trials", "winner"
DEFAULT = "default"  # the run with the defaults, beside the winner's, where defaults are judged
SAME = 3  # first trials that fail by the same mistake before the study gives up
STARTUP = 5  # trials of each model that are drawn at random before the sampler learns from them


@dataclass(frozen=True)
class Plan:
    """What a study is about. Two plans with the same `about` are the same study: the second resumes the first."""

    folder: Path
    spaces: dict[str, Space]  # by model
    defaults: dict[str, dict[str, str]]
    overrides: tuple[str, ...]  # of every run
    source: dict[str, Any]  # what names the data
    monitor: str
    mode: str
    seed: int = 0
    trials: int = 50
    cpu_seconds: float | None = None
    prune: bool = True
    finals: dict[str, tuple[str, ...]] = field(default_factory=lambda: {WINNER: ()})  # folder: overrides of a test
    costs: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """What must not change when a study is resumed; the number of trials may."""
        spaces = {model: {key: str(each) for key, each in space.items()} for model, space in self.spaces.items()}
        kept = {"overrides": list(self.overrides), "data": self.source, "monitor": self.monitor, "mode": self.mode}
        limits = {"seed": self.seed, "cpu_seconds": self.cpu_seconds, "prune": self.prune}
        return {"spaces": spaces, **kept, **limits}


@dataclass
class Row:
    """A trial as a row of the study's table."""

    number: int
    model: str
    settings: dict[str, str]
    state: str
    value: float | None = None
    reason: str = ""
    cpu_seconds: float | None = None
    validations: int = 0
    folder: str = ""


class Study:
    """Asks Optuna for settings, and tells it what became of them.

    Args:
        plan: what to study.
        tell: called with every row that has ended.
    """

    def __init__(self, plan: Plan, tell: Any = lambda row, best: None):
        self.plan, self.tell = plan, tell
        self.closing = False  # no further trials: the winner of those that ended is tested
        self.gave_up = ""  # why, if the first trials have failed alike
        _keep_about(plan)
        self.study = open_study(plan)
        self.running: dict[str, Any] = {}  # folder of a job -> trial of Optuna, or None for a final test
        self.orphans = [trial for trial in self._frozen() if trial.state.name == "RUNNING"]
        self.done: set[str] = set()  # final tests of this process
        self.failures: dict[str, str] = {}  # those that failed, and why
        self._check_start()

    # ---- jobs ---------------------------------------------------------------------------------------------------

    def next_job(self) -> Job | None:
        """A trial, as long as there are any; then the tests of the winner."""
        while self.orphans or (not self.closing and len(self._begun()) < self.limit):
            if (job := self._next_trial()) is not None:
                return job
        return None if self.running else self._next_final()

    @property
    def limit(self) -> int:
        """The number of trials: no more than there are settings."""
        sizes = [_size(space) for space in self.plan.spaces.values()]
        return self.plan.trials if None in sizes else min(self.plan.trials, sum(size or 0 for size in sizes))

    def _next_trial(self) -> Job | None:
        """The job of the next trial; None, if its settings have been tried already."""
        import optuna

        if self.orphans:  # of a process that was killed: the same settings again
            trial = optuna.Trial(self.study, self.orphans.pop(0)._trial_id)
        else:
            self.study.sampler = sampler(self.plan, len(self._frozen()))
            trial = self.study.ask()
        model, settings = draw(trial, self.plan.spaces)
        settings = [text for text in settings if text.partition("=")[2] != self._default(model, text)]
        if trial.user_attrs.get("defaults"):  # also of options whose default the space does not have
            settings = []
        trial.set_user_attr("model", model)
        trial.set_user_attr("settings", settings)
        if (same := self._tried(trial.number, model, settings)) is not None:
            self._repeat(trial, same)
            return None
        folder = self.plan.folder / TRIALS / f"{trial.number:04d}-{model}"
        self.running[str(folder)] = trial
        return Job(self._line(model, settings, folder, "test=false"), str(folder), self.plan.cpu_seconds, watched=True)

    def _default(self, model: str, text: str) -> str:
        return self.plan.defaults[model][text.partition("=")[0]]

    def _line(self, model: str, settings: Sequence[str], folder: Path, *more: str) -> tuple[str, ...]:
        place = f"hydra.run.dir={quoted(str(folder.absolute()))}"
        return (*self.plan.overrides, f"model={model}", *settings, *more, "show=false", place)

    def _tried(self, number: int, model: str, settings: list[str]) -> Any:
        """An earlier trial with these settings."""
        for trial in self._frozen():
            known = trial.user_attrs
            if trial.number < number and (known.get("model"), known.get("settings")) == (model, settings):
                return trial
        return None

    def _repeat(self, trial: Any, same: Any) -> None:
        """The trial has the outcome of the earlier one; it has no run."""
        trial.set_user_attr("ended", asdict(Outcome(REPEATED, reason=f"the settings of trial {same.number}")))
        if same.state.name == "COMPLETE":
            self.study.tell(trial.number, same.value)
        else:
            self.study.tell(trial.number, state=_state("FAIL"))

    def _next_final(self) -> Job | None:
        """The next test of the winner that has not been made."""
        best = self.best()
        if best is None:
            return None
        for name, more in self.plan.finals.items():
            folder = self.plan.folder / name
            if name == DEFAULT and best.number == 0:
                continue  # the winner has the defaults
            number = 0 if name == DEFAULT else best.number
            told = self.study.user_attrs.get("tested", {}).get(name, [])
            if name in self.done or (told and told[-1] == number and (folder / RESULTS).exists()):
                continue
            attributes = self.study.trials[number].user_attrs
            self.running[str(folder)] = None
            line = self._line(attributes["model"], attributes["settings"], folder, *more)
            return Job(line, str(folder), costs=self.plan.costs)
        return None

    # ---- what came of them --------------------------------------------------------------------------------------

    def goes_on(self, job: Job, count: int, best: float) -> bool:
        """Report a rung, and say whether the trial should go on."""
        trial = self.running[job.folder]
        if trial is None:
            return True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a resumed trial reports its first rungs again
            trial.report(best, count)
        model = trial.user_attrs["model"]
        done = [each for each in self._frozen() if each.state.name == "COMPLETE" and each.intermediate_values]
        others = [each.intermediate_values for each in done if each.user_attrs.get("model") == model]
        return not (self.plan.prune and is_hopeless(count, best, others, self.plan.mode))

    def finish(self, job: Job, outcome: Outcome) -> None:
        """Keep what became of a job."""
        trial = self.running.pop(job.folder)
        outcome.leave_in(Path(job.folder))
        if trial is None:
            self._finish_final(Path(job.folder).name, outcome)
            return
        if outcome.state == COMPLETE and (outcome.value is None or math.isnan(outcome.value)):
            told = f"{self.plan.monitor} is nan: does any validation query have a relevant document?"
            outcome = Outcome(FAILED, reason=told, cpu_seconds=outcome.cpu_seconds)
        trial.set_user_attr("ended", asdict(outcome))
        if outcome.state == COMPLETE:
            self.study.tell(trial.number, outcome.value)
        else:
            self.study.tell(trial.number, state=_state("PRUNED" if outcome.state == PRUNED else "FAIL"))
        self.tell(self.rows()[trial.number], self.best())
        self._check_start()

    def _finish_final(self, name: str, outcome: Outcome) -> None:
        self.done.add(name)
        if outcome.state != COMPLETE:
            self.failures[name] = outcome.reason
            return
        tested = dict(self.study.user_attrs.get("tested", {}))
        best = self.best()
        number = 0 if name == DEFAULT or best is None else best.number
        self.study.set_user_attr("tested", tested | {name: [*tested.get(name, []), number]})

    def _check_start(self) -> None:
        """Give up if the first trials fail in the same way: all others would."""
        rows = [row for row in self.rows() if row.state not in ("running", REPEATED)]
        alike = len({row.reason for row in rows}) == 1 and all(row.state in (FAILED, EXCEEDED) for row in rows)
        if alike and len(rows) >= min(SAME, self.limit):
            self.closing, self.orphans, self.gave_up = True, [], rows[0].reason

    # ---- what is known ------------------------------------------------------------------------------------------

    def _frozen(self) -> list[Any]:
        return list(self.study.get_trials(deepcopy=False))

    def _begun(self) -> list[Any]:
        return [trial for trial in self._frozen() if trial.state.name != "WAITING"]

    def best(self) -> Any:
        """The completed trial with the best validation value, the first of equals; None without one."""
        done = [trial for trial in self._frozen() if trial.state.name == "COMPLETE" and _ended(trial) == COMPLETE]
        sign = 1 if self.plan.mode == "min" else -1
        return min(done, key=lambda trial: (sign * trial.value, trial.number), default=None)

    def rows(self) -> list[Row]:
        """All trials that were begun."""
        return [_row(trial, self.plan.folder) for trial in self._begun() if "settings" in trial.user_attrs]

    def summary(self) -> dict[str, Any]:
        """The study as plain values: its plan, its trials, its winner."""
        best, tested = self.best(), self.study.user_attrs.get("tested", {})
        winner = None if best is None else asdict(_row(best, self.plan.folder))
        counts = {name: len(numbers) for name, numbers in tested.items()}
        ends = {"winner": winner, "tests": counts, "failures": self.failures}
        return {"schema": 1, **self.plan.about, "trials": [asdict(row) for row in self.rows()], **ends}

    def close(self) -> None:
        """Let go of the file of Optuna."""
        self.study._storage.remove_session()

    def write(self) -> dict[str, Any]:
        """Write the summary to study.json and return it."""
        found = self.summary()
        _write(self.plan.folder / ABOUT, found)
        return found


def open_study(plan: Plan) -> Any:
    """The study of Optuna in the folder, made if there is none; the defaults of every model are tried first."""
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    from sqlalchemy import URL
    from sqlalchemy.exc import DatabaseError

    url = URL.create("sqlite", database=str((plan.folder / DATABASE).absolute()))
    direction = "minimize" if plan.mode == "min" else "maximize"
    try:
        storage = optuna.storages.RDBStorage(url.render_as_string(hide_password=False))
        study = optuna.create_study(storage=storage, study_name="torchrank", direction=direction, load_if_exists=True)
    except DatabaseError as error:
        told = f"{plan.folder / DATABASE} cannot be read ({error.orig})"
        raise ValueError(f"{told}: choose another folder=, or delete the file to begin again") from error
    if len(study.trials) < len(plan.spaces):
        for model, space in plan.spaces.items():
            first = first_values(model, space, plan.defaults[model])
            study.enqueue_trial(first, user_attrs={"defaults": True}, skip_if_exists=True)
    return study


def import_optuna() -> Any:
    """Optuna, or one line that says how to get it."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError("a study needs optuna: pip install 'torchrank-ltr[tune]'") from error
    return optuna


def sampler(plan: Plan, number: int) -> Any:
    """A sampler of its own for every trial, so that a resumed study draws what an uninterrupted one would."""
    import optuna

    seed = int(np.random.SeedSequence([plan.seed, number]).generate_state(1)[0])
    startup = STARTUP * len(plan.spaces)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)


def _keep_about(plan: Plan) -> None:
    """Write what the study is about; refuse the folder of another study."""
    path = plan.folder / ABOUT
    if path.exists():
        try:
            known: Mapping[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} cannot be read ({error}): choose another folder=") from error
        about = json.loads(json.dumps(plan.about))
        for key, value in about.items():
            if known.get(key) != value:
                found = f"{key} is {known.get(key)} there and {value} here"
                raise ValueError(f"{plan.folder} holds another study ({found}): choose another folder=")
        return
    _write(path, {"schema": 1, **plan.about})


def _write(path: Path, content: Any) -> None:
    write_atomically(path, lambda file: file.write(f"{json.dumps(content, indent=1)}\n".encode()))


def _row(trial: Any, folder: Path) -> Row:
    known, ended = trial.user_attrs, trial.user_attrs.get("ended", {})
    settings = dict(text.lstrip("+").split("=", 1) for text in known["settings"])
    state = ended.get("state", "running")
    own = "" if state == REPEATED else f"{TRIALS}/{trial.number:04d}-{known['model']}"
    value = trial.value if trial.state.name == "COMPLETE" else ended.get("value")
    told = {name: ended.get(name, default) for name, default in (("reason", ""), ("cpu_seconds", None))}
    return Row(trial.number, known["model"], settings, state, value, **told,
               validations=ended.get("validations", 0), folder=own)  # fmt: skip


def _ended(trial: Any) -> str:
    return str(trial.user_attrs.get("ended", {}).get("state"))


def _state(name: str) -> Any:
    import optuna

    return optuna.trial.TrialState[name]


def _size(space: Space) -> int | None:
    """The number of settings of a space; None, if it has a range of numbers."""
    from torchrank.tuning.spaces import Choices

    sizes = [len(each.values) if isinstance(each, Choices) else None for each in space.values()]
    return math.prod(size or 0 for size in sizes) if None not in sizes else None
