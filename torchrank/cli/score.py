"""`torchrank score`: scores of a fitted ranker for the lists of a file."""

import argparse
import sys

from torchrank.cli.shared import add_ranker, add_reader, load_ranker, reader_options, write_lines

EXAMPLES = """
torchrank score runs/single/files/lgmml/2026-01-31_12-00-00 new.txt --out scores.txt
torchrank score best.ckpt new.txt --run --out new.run      # for trec_eval
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_ranker(parser)
    parser.add_argument("file", help="lists in LETOR / svmlight format; labels are ignored")
    parser.add_argument("--out", required=True, help="one score per line, in the order of the input")
    parser.add_argument("--run", action="store_true", help="write a run for trec_eval instead, with document ids")
    add_reader(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.cli.scoring import read_rows, run_lines, score_lines, scores_of

    ranker = load_ranker(options)
    lists = read_rows(options.file, ranker, **reader_options(options))
    scores = scores_of(ranker, lists)
    lines = run_lines(lists, scores, type(ranker).__name__) if options.run else score_lines(scores)
    write_lines(options.out, lines, inputs=[options.file])
    told = f"{type(ranker).__name__} scored {len(scores)} documents of {len(lists)} queries: {options.out}"
    print(told, file=sys.stderr if options.out == "-" else sys.stdout)
