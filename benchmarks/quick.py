"""The option `--quick` of all benchmarks."""

import argparse


def parse(parser: argparse.ArgumentParser, **small) -> argparse.Namespace:
    """Parse the command line; with `--quick` the options in `small` have these defaults."""
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs: ratios mean nothing")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**small)
    return parser.parse_args()
