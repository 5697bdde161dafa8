"""Files of vectors through an adapter, a batch of rows at a time."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
from torch import Tensor

from torchrank.data.sources.embeddings.files import check_vectors, map_vectors
from torchrank.errors import DataError, check_integer
from torchrank.export.adapters.saved import SavedAdapter
from torchrank.files import write_atomically
from torchrank.progress import bar

BATCH = 2**22  # numbers of a batch, 16 MB in float32


def apply_to_file(adapter: SavedAdapter, source: Path, target: Path, side: str, batch: int | None = None) -> Tensor:
    """Write the images of the vectors of a .npy or .safetensors file to a .npy file of the same dtype.

    Args:
        adapter: of `load_adapter`.
        source: the vectors, which are never in memory as a whole.
        target: the file, which is replaced as a whole or not at all.
        side: query or document.
        batch: rows at a time; None: as many as have 4 million numbers.

    Returns:
        The vectors (n, D) that were read.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp())
        >>> np.save(folder / "a.npy", np.ones((3, 2), dtype=np.float16))
        >>> adapter = SavedAdapter(2 * torch.eye(2), None, normalise=None, similarity="inner")
        >>> _ = apply_to_file(adapter, folder / "a.npy", folder / "b.npy", "query")
        >>> np.load(folder / "b.npy")[0]
        array([2., 2.], dtype=float16)
    """
    check_integer(">= 1", batch=batch)
    vectors = map_vectors(source)
    if vectors.shape[1] != adapter.inputs:
        raise DataError(
            f"{source}: vectors of {vectors.shape[1]} numbers, the adapter takes {adapter.inputs}: they must come from "
            "the model that it was fitted to"
        )
    size = batch or max(1, BATCH // max(adapter.inputs, adapter.outputs))

    def write(file: IO[bytes]) -> None:
        _write_header(file, vectors, adapter.outputs)
        with bar(total=len(vectors), desc=f"apply to {source.name}", unit=" rows") as progress:
            for place, part in enumerate(vectors.split(size)):
                check_vectors(part, f"{source}: row", "is not finite: embed this text again", place * size)
                images = adapter.apply(part, side)
                told = f"does not fit into {str(part.dtype).removeprefix('torch.')}"
                check_vectors(images, f"{source}: the image of row", told, place * size)
                file.write(images.contiguous().numpy().data)
                progress.update(len(part))

    write_atomically(target, write)
    return vectors


def _write_header(file: IO[bytes], vectors: Tensor, width: int) -> None:
    descr = np.lib.format.dtype_to_descr(vectors[:0].numpy().dtype)
    head = {"descr": descr, "fortran_order": False, "shape": (len(vectors), width)}
    np.lib.format.write_array_header_1_0(file, head)
