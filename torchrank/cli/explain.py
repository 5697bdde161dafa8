"""`torchrank explain`: why one document is ranked above another, and what each feature is worth."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchrank.cli.shared import (
    add_json,
    add_ranker,
    add_reader,
    add_unjudged,
    label_options,
    load_ranker,
    print_json,
    reader_options,
)
from torchrank.screen import console

if TYPE_CHECKING:
    from torchrank import Explanation, Importance, Ranker, RankingSet

EXAMPLES = """
torchrank explain best.ckpt new.txt                                  # the first two documents of the first query
torchrank explain best.ckpt new.txt --query 17 --above d3 --below d9 --plot why.png
torchrank explain best.ckpt test.txt --importance --top 10           # loss of NDCG@10 when a feature is shuffled
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_ranker(parser)
    parser.add_argument("file", help="lists in LETOR / svmlight format; labels count for --importance only")
    parser.add_argument("--query", metavar="ID", help="the query (default: the first one with two documents)")
    parser.add_argument("--above", metavar="DOC", help="a document by its id, or by its number in the list (from 1)")
    parser.add_argument("--below", metavar="DOC", help="another one (default: the best two of the ranker)")
    parser.add_argument("--importance", action="store_true", help="permutation importance of all features instead")
    parser.add_argument("--measure", default="ndcg@10", help="of --importance (default: ndcg@10)")
    parser.add_argument("--repeats", type=int, default=5, help="permutations of --importance (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of the permutations (default: 0)")
    parser.add_argument("--top", type=int, default=20, help="features in the table and in the figure (default: 20)")
    parser.add_argument("--plot", metavar="FILE", help="write a figure: why.png, why.svg or why.pdf")
    add_reader(parser)
    add_unjudged(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    _check(options)
    ranker = load_ranker(options)
    found = measure_importance(ranker, options) if options.importance else explain_pair(ranker, options)
    if options.plot:
        found.plot(options.plot, top=options.top)
    if options.json:
        print_json(found.to_dict())
        return
    screen = console()
    screen.print(found.title if isinstance(found.title, str) else found.title())
    screen.print(found.table(top=options.top))


def _check(options: argparse.Namespace) -> None:
    if (options.above is None) != (options.below is None):
        raise ValueError("give both --above and --below, or neither for the best two documents of a query")
    if options.top < 1:
        raise ValueError(f"--top must be >= 1, got {options.top}")
    if options.importance and (options.query is not None or options.above is not None):
        raise ValueError("--importance is about all queries: leave out --query, --above and --below")


def measure_importance(ranker: Ranker, options: argparse.Namespace) -> Importance:
    """The importance of all features on the labelled lists of the file."""
    from torchrank import permutation_importance
    from torchrank.cli.shared.scoring import existing_file
    from torchrank.data.letor import read_letor

    sparse = None if "sparse" in ranker.takes and not ranker.transform.sparse_refusal else False
    reader: dict[str, Any] = {"num_features": ranker.num_features, "sparse": sparse, **label_options(options)}
    lists = read_letor(existing_file(options.file), **reader)
    return permutation_importance(ranker, lists, options.measure, options.repeats, options.seed)


def explain_pair(ranker: Ranker, options: argparse.Namespace) -> Explanation:
    """The two documents that the options name."""
    from torchrank import explain

    lists, names = find_query(ranker, options)
    pair = None if options.above is None else tuple(_place(name, names) for name in (options.above, options.below))
    batch = lists[:].to(ranker.device)
    found = explain(ranker, batch.x, batch.offsets, pair)
    first, second = found.pairs[0].tolist()
    return replace(found, documents=((names[first], names[second]),))


def find_query(ranker: Ranker, options: argparse.Namespace) -> tuple[RankingSet, list[str]]:
    """The list of the query, and the names of its documents: their ids, or their numbers."""
    from torchrank.cli.shared.scoring import read_unlabelled

    for lists in read_unlabelled(options.file, ranker, **reader_options(options)):
        ids, lengths = [str(name) for name in lists.query_ids or ()], lists.lengths.tolist()
        wanted = [place for place, name in enumerate(ids) if options.query in (None, name)]
        wanted = [place for place in wanted if lengths[place] > 1] or wanted[: options.query is not None]
        if wanted:
            one = lists.subset(wanted[:1])
            if len(one.labels) < 2:
                raise ValueError(f"query {ids[wanted[0]]} of {options.file} has one document: there is no pair")
            numbers = [str(number + 1) for number in range(len(one.labels))]
            named = one.document_ids is not None and all(one.document_ids)
            return one, [str(name) for name in one.document_ids] if named and one.document_ids is not None else numbers
    what = "query with two documents" if options.query is None else f"query {options.query}"
    raise ValueError(f"{options.file} has no {what}")


def _place(name: str, names: list[str]) -> int:
    if name not in names:
        raise ValueError(f"the query has no document {name}: its documents are {', '.join(names[:10])}, ...")
    return names.index(name)
