"""`torchrank score`: scores of a fitted ranker for the lists of files of any size."""

import argparse
import sys
from collections.abc import Iterator

from torchrank.cli.shared import add_ranker, add_reader, load_ranker, print_json, reader_options, write_text

EXAMPLES = """
torchrank score runs/single/files/lgmml/2026-01-31_12-00-00 new.txt --out scores.txt
torchrank score best.ckpt part1.txt part2.txt.gz --out scores.txt   # in the order of the files
torchrank score best.ckpt new.txt --run --out new.run               # for trec_eval and torchrank evaluate
zcat new.txt.gz | torchrank score best.ckpt - | paste - documents.txt
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_ranker(parser)
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="lists in LETOR / svmlight format, - is stdin; labels are ignored"
    )
    parser.add_argument(
        "--out", default="-", help="one score per line, in the order of the input (default: -, which is stdout)"
    )
    parser.add_argument("--run", action="store_true", help="write a run for trec_eval instead, with document ids")
    add_reader(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON (on stderr if --out is stdout)")


def run(options: argparse.Namespace) -> None:
    from torchrank.cli.shared.scoring import RunWriter, beside_the_reader, read_unlabelled, score_text, scores_of

    ranker = load_ranker(options)
    name = type(ranker).__name__
    counts = {"documents": 0, "queries": 0}
    runs = RunWriter(name)

    def texts() -> Iterator[str]:
        for path in options.files:
            for lists in read_unlabelled(path, ranker, **reader_options(options)):
                scores = scores_of(ranker, lists)
                counts["documents"] += len(scores)
                counts["queries"] += len(lists)
                yield runs.text(lists, scores) if options.run else score_text(scores)

    with beside_the_reader():
        write_text(options.out, texts(), inputs=options.files)
    screen = sys.stderr if options.out == "-" else sys.stdout
    if options.json:
        print_json({"ranker": name, "files": options.files, **counts, "out": options.out}, file=screen)
    else:
        told = f"{name} scored {counts['documents']} documents of {counts['queries']} queries: {options.out}"
        print(told, file=screen)
