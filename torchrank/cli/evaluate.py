"""`torchrank evaluate`: measures of a TREC run or a file of scores against qrels or LETOR labels."""

import argparse

from torchrank.cli.shared import add_json, add_measures, add_reader, add_unjudged, label_options

EXAMPLES = """
torchrank evaluate bm25.run qrels.txt                                  # the numbers of trec_eval
torchrank evaluate bm25.run qrels.txt --complete                       # those of trec_eval -c
torchrank evaluate scores.txt test.txt --measures ndcg@10 map --convention default letor
torchrank evaluate bm25.run qrels.txt --measures map --per-query map.tsv
torchrank score best.ckpt test.txt | torchrank evaluate - test.txt --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", metavar="RUN|SCORES", help="a TREC run, or one score per line in the order of the labels; - is stdin"
    )
    parser.add_argument(
        "labels", metavar="QRELS|LABELS", help="qrels, or a LETOR file; relevant documents that a run lacks count"
    )
    add_measures(parser, "trec for a run against qrels, else default")
    parser.add_argument(
        "--complete", action="store_true", help="count queries of the qrels without results too, as trec_eval -c"
    )
    parser.add_argument("--per-query", metavar="OUT", help="write the values of each query, - is stdout")
    add_reader(parser)
    add_unjudged(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.cli.shared.measuring import measure, read_judgements, read_scored, show_measured

    if options.results == options.labels == "-":
        raise ValueError("only one of the two files can be stdin (-)")
    qrels = read_judgements(options.labels, label_options(options))
    scored = read_scored(options.results, qrels, complete=options.complete)
    conventions = options.convention or ["trec" if "judged" in scored.lists else "default"]
    found = measure(scored, options.measures, conventions, threshold=options.threshold, max_label=options.max_label)
    facts = {"results": options.results, "labels": options.labels, "queries": len(scored.query_ids)}
    show_measured(options, f"{scored.name} on {qrels.name}", found, facts)
