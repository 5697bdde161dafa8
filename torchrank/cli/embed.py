"""`torchrank embed`: vectors of the documents and queries of a folder in BEIR's layout."""

import argparse

from torchrank.cli.shared import add_json, print_json
from torchrank.screen import override

EXAMPLES = """
torchrank embed scifact --model models/all-MiniLM-L6-v2              # writes corpus.npy and queries.npy
torchrank embed cranfield --model models/all-MiniLM-L6-v2 --text "{text}"   # its texts begin with their titles
torchrank embed scifact --model sentence-transformers/all-MiniLM-L6-v2 --download --dtype float16
torchrank embed scifact --model models/all-MiniLM-L6-v2 --only queries --overwrite
torchrank train data=embeddings data.root=scifact model=mlr
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a folder with corpus.jsonl and queries.jsonl")
    parser.add_argument(
        "--model", required=True, metavar="PATH",
        help="folder of a model of sentence-transformers; a name of the Hugging Face hub with --download",
    )  # fmt: skip
    parser.add_argument("--download", action="store_true", help="fetch the model; without it nothing is fetched")
    parser.add_argument("--only", choices=("corpus", "queries"), help="embed these alone (default: both)")
    parser.add_argument(
        "--text", default="{title} {text}", metavar="TEMPLATE",
        help='the text of a document from its fields (default: "{title} {text}"; without a title the text alone)',
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=int, default=32, metavar="N", help="texts for the model at a time (default: 32)"
    )
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "float16"), help="of the stored numbers (default: float32)"
    )
    parser.add_argument(
        "--normalise", action=argparse.BooleanOptionalAction, help="vectors of length 1, or not (default: the model's)"
    )
    parser.add_argument("--device", help="such as cpu or cuda (default: cuda where there is one, otherwise cpu)")
    parser.add_argument("--overwrite", action="store_true", help="replace vectors that are there")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.data.sources.embeddings.making import SIDES, embed_folder

    made = embed_folder(
        options.folder,
        options.model,
        sides=(options.only,) if options.only else SIDES,
        batch=options.batch,
        dtype=options.dtype,
        normalise=options.normalise,
        device=options.device,
        template=options.text,
        download=options.download,
        overwrite=options.overwrite,
    )
    if options.json:
        print_json({"folder": options.folder, "model": options.model, **made})
        return
    for each in made.values():
        size = f"{each['rows']} vectors of {each['width']} numbers ({each['dtype']})"
        kept = f", {each['kept']} of an earlier call" if each["kept"] else ""
        told = f"{each['encoded']} made now{kept}" if each["encoded"] else "there already, left alone"
        print(f"{each['out']}: {size}: {told}")
    if not options.only:
        print(f"Use it with: torchrank train data=embeddings {override('data.root', options.folder)}")
