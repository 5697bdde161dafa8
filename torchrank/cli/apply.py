"""`torchrank apply`: files of vectors through a saved adapter."""

import argparse
from pathlib import Path

from torchrank.cli.shared import add_json, print_json

EXAMPLES = """
torchrank apply adapter queries.npy --out adapted.npy
torchrank apply adapter corpus.safetensors --side document --out corpus.npy --batch 10000
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="of the adapter, which save_adapter has written")
    parser.add_argument(
        "vectors", metavar="VECTORS", help="a .npy or .safetensors file with a vector of floats in each row"
    )
    parser.add_argument("--side", choices=("query", "document"), help="default: the only side that has a map")
    parser.add_argument("--out", required=True, metavar="FILE", help="the .npy file to write, of the same dtype")
    parser.add_argument("--batch", type=int, metavar="N", help="rows at a time (default: those of 4 million numbers)")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    from torchrank.export.adapters.folder import load_adapter
    from torchrank.export.adapters.streaming import apply_to_file

    adapter = load_adapter(options.folder)
    if options.side is None and adapter.side == "both":
        raise ValueError(f"{options.folder} maps queries and documents: say which by --side query or --side document")
    side = options.side or adapter.side
    if side not in adapter.maps:
        raise ValueError(f"{options.folder} maps {adapter.side} vectors only: {side} vectors stay as they are")
    source, out = Path(options.vectors), Path(options.out)
    if out.suffix != ".npy":
        raise ValueError(f"--out must end in .npy, got {options.out}")
    if out.exists() and (not out.is_file() or (source.exists() and out.samefile(source))):
        raise ValueError(f"--out must be a new file or one to overwrite, not a folder or the input, got {options.out}")
    vectors = apply_to_file(adapter, source, out, side, options.batch)
    dtype = str(vectors.dtype).removeprefix("torch.")
    if options.json:
        found = {"vectors": options.vectors, "side": side, "rows": len(vectors), "dtype": dtype}
        print_json({**found, "inputs": adapter.inputs, "outputs": adapter.outputs, "out": options.out})
        return
    told = f"{len(vectors)} {side} vectors of {adapter.inputs} numbers ({dtype}) to {adapter.outputs}"
    print(f"{told}: {options.out}")
