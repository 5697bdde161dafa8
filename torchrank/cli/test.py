"""`torchrank test`: measures of a fitted ranker on new labelled files."""

import argparse
from typing import TYPE_CHECKING

from torchrank.cli.shared import (
    add_json,
    add_measures,
    add_ranker,
    add_reader,
    add_unjudged,
    label_options,
    load_ranker,
)

if TYPE_CHECKING:
    from torchrank.cli.shared.measuring import Scored
    from torchrank.rankers.core.ranker import Ranker

EXAMPLES = """
torchrank test runs/single/files/lgmml/2026-01-31_12-00-00 new.txt
torchrank test best.ckpt part1.txt part2.txt.gz --measures ndcg@10 map --convention default letor
torchrank test best.ckpt new.txt --per-query - | sort -k2 | head     # the queries with the lowest ndcg@1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_ranker(parser)
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="labelled lists in LETOR / svmlight format, - is stdin"
    )
    add_measures(parser, "default")
    parser.add_argument("--per-query", metavar="OUT", help="write the values of each query, - is stdout")
    add_reader(parser)
    add_unjudged(parser, more=", or drop")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.cli.shared.measuring import measure, show_measured

    ranker = load_ranker(options)
    scored = score_files(ranker, options.files, label_options(options))
    conventions = options.convention or ["default"]
    found = measure(scored, options.measures, conventions, threshold=options.threshold, max_label=options.max_label)
    facts = {"ranker": type(ranker).__name__, "checkpoint": options.checkpoint, "files": options.files}
    facts |= {"queries": len(scored.query_ids), "documents": len(scored.lists["scores"])}
    show_measured(options, f"{facts['ranker']} on {scored.name}", found, facts)


def score_files(ranker: "Ranker", files: list[str], reader: dict[str, object]) -> "Scored":
    """The scores and labels of the lists of all files, which are read in the memory of a block."""
    import torch

    from torchrank.cli.shared.measuring import Scored, tiebreak_of
    from torchrank.cli.shared.scoring import read_pieces, scores_of

    parts, names, documents = [], [], []
    for path in files:
        for lists in read_pieces(path, ranker, **reader):
            parts.append((scores_of(ranker, lists), lists.labels, lists.offsets.diff()))
            names += [(lists.name, query) for query in lists.query_ids or ()]
            documents += [""] * len(lists.labels) if lists.document_ids is None else list(lists.document_ids)
    scores, labels, lengths = (torch.cat(columns) for columns in zip(*parts, strict=True))
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    unique = len({query for _, query in names}) == len(names)
    queries = [query if unique else f"{name}/{query}" for name, query in names]
    told = ", ".join(dict.fromkeys(name for name, _ in names))
    flat = {"scores": scores, "labels": labels, "offsets": offsets, "tiebreak": tiebreak_of(documents)}
    return Scored(told, queries, flat)
