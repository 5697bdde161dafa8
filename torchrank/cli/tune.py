"""`torchrank tune`: a search for settings by validation, the winner tested once."""

import argparse
from typing import TYPE_CHECKING, Any

from torchrank.cli.shared import add_json, print_json

if TYPE_CHECKING:
    from torchrank.tuning.study import Study

EXAMPLES = """
torchrank tune model=lambdarank data=files data.train=train.txt data.test=test.txt trials=50
torchrank tune model=lambdarank,gbdt data=mq2008 data.root=FOLDER trials=100 workers=2   # one study, two models
torchrank tune model=gbdt model.leaves=15 'model.lr=tag(log,interval(0.01,0.3))'         # your own space
torchrank select runs/tune/mq2008/lambdarank+gbdt
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OPTION=VALUE",
        help="as for torchrank train, and of the study: trials=50, workers=1 (processes with one thread each), "
        "cpu_seconds=null (limit of a trial), prune=true, folder=null (by default named by the data and the models)",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from torchrank.tuning.studies import plan_of, run_study

    plan, workers = plan_of(options.overrides)
    study, found = run_study(plan, workers, quiet=options.json)
    show(study, found, options.json)
    return 0 if found["winner"] is not None and not study.failures else 1


def show(study: "Study", found: dict[str, Any], as_json: bool) -> None:
    """Print the table of the trials and the winner's test, and write study.md."""
    from torchrank.files import write_atomically
    from torchrank.record import RESULTS, read_run
    from torchrank.report.tables import markdown
    from torchrank.report.tables import show as show_sheet
    from torchrank.report.trials import SHOWN, trial_sheet
    from torchrank.screen import console
    from torchrank.tuning.study import WINNER

    folder = study.plan.folder
    text = markdown(trial_sheet(found))
    write_atomically(folder / "study.md", lambda file: file.write(f"{text}\n".encode()))
    path = folder / WINNER / RESULTS
    run = read_run(path, tested=False) if path.exists() else None
    if as_json:
        print_json({**found, "folder": str(folder), "test": run.test if run else None})
        return
    show_sheet(trial_sheet(found, SHOWN), console())
    for name, reason in study.failures.items():
        print(f"The test of the {name} failed: {reason}")
    if run is not None:
        convention, part = next(iter(run.measured.items()))
        measures = ", ".join(f"{name} {value:.4f}" for name, value in part["measures"].items())
        times = found["tests"].get(WINNER, 0)
        looked = "" if times < 2 else f" The test lists have been used {times} times in this study."
        print(f"Winner, {run.split} lists, convention {convention}: {measures}.{looked}")
        for name in ("before", "gain"):
            if name in run.findings:  # of rankers that start from something, such as an adapter
                print(f"{name}: {run.findings[name]}")
    if found["winner"] is None:
        print("No trial has completed, so there is no winner.")
    print(f"wrote study.json, study.md and the run folders to {folder}")
