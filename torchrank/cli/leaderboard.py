"""`torchrank leaderboard`: every ranker that fits the data, tuned within a budget, on all folds."""

import argparse

from torchrank.cli.shared import add_json, print_json

EXAMPLES = """
torchrank leaderboard data=mq2008 data.root=FOLDER
torchrank leaderboard data=mq2008 data.root=FOLDER --quick
torchrank leaderboard data=files data.train=train.txt data.test=test.txt models=gbdt,lambdarank,listnet trials=30
torchrank leaderboard data=mq2008 data.root=FOLDER defaults=true    # defaults and tuned forms, without the test lists
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OPTION=VALUE",
        help="as for torchrank train, and of the leaderboard: models=a,b (default: all), folds=1,2 (default: all), "
        "trials=12 and cpu_seconds=120 of each ranker and fold, workers=N (default: the cores), minutes=N (then no "
        "further trials begin), folder=FOLDER, defaults=true",
    )
    parser.add_argument("--quick", action="store_true", help="3 trials of 20 CPU seconds, two folds: about ten minutes")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.report.leaderboard.files import write_board, write_defaults
    from torchrank.report.leaderboard.sheets import default_sheets, sheets
    from torchrank.report.tables import show
    from torchrank.screen import console
    from torchrank.tuning.leaderboard import run_leaderboard, setting_of

    setting = setting_of(options.overrides, options.quick)
    board = run_leaderboard(setting, quiet=options.json)
    names = (write_defaults if setting.defaults else write_board)(setting.folder, board)
    if options.json:
        print_json(board)
        return
    for sheet in (default_sheets if setting.defaults else sheets)(board):
        show(sheet, console())
    print(f"wrote {', '.join(names)} to {setting.folder}")
