"""The folder of an adapter: matrices, what they are, how to use them, and modules of sentence-transformers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from torchrank.errors import DataError
from torchrank.export.adapters.saved import SIDES, SIMILARITY_NAMES, SavedAdapter
from torchrank.files import alone

FORMAT = 1
MATRICES, ABOUT, README = "adapter.safetensors", "adapter.json", "README.md"
DENSE = {side: f"{side}_Dense" for side in SIDES}  # folders of sentence-transformers
LAYER = ("model.safetensors", "config.json")  # of such a folder
OWN = {MATRICES, ABOUT, README, *DENSE.values(), *(f"{each}/{name}" for each in DENSE.values() for name in LAYER)}
FIELDS = {"side": str, "inputs": int, "outputs": int, "normalise": str | None, "similarity": str}


def save_adapter(
    folder: str | os.PathLike[str],
    *,
    query: Tensor | None,
    document: Tensor | None,
    normalise: str | None,
    similarity: str,
    note: str = "",
) -> Path:
    """Write linear maps of embeddings to a folder that numpy, torchrank and sentence-transformers read.

    The folder has `adapter.safetensors` (float32 matrices "query" and "document"), `adapter.json`, a `README.md` with
    the lines that use them, and `query_Dense` or `document_Dense` as sentence-transformers saves them.

    Args:
        folder: a new folder, or the folder of an adapter, which is replaced as a whole.
        query: the matrix (D, R) of the queries, whose image is `vector @ matrix`; None if they stay as they are.
        document: the same for the documents. If only one side has a map, R must be D.
        normalise: what is divided by its length: "images"; if both sides are mapped also "vectors", before that; or
            None for nothing.
        similarity: what ranks the images: inner, cosine or euclidean.
        note: a few words about the adapter for the README.

    Returns:
        The folder.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp(), "adapter")
        >>> _ = save_adapter(folder, query=2 * torch.eye(3), document=None, normalise=None, similarity="inner")
        >>> load_adapter(folder).apply(torch.ones(3), "query")
        tensor([2., 2., 2.])
    """
    given = {"query": query, "document": document}
    cast = {name: None if each is None else each.detach().to("cpu", torch.float32) for name, each in given.items()}
    adapter = SavedAdapter(**cast, normalise=normalise, similarity=similarity)
    target = Path(folder)
    place = target.resolve()  # a symbolic link stays one
    place.parent.mkdir(parents=True, exist_ok=True)
    with alone(place.with_name(f".{place.name}.lock"), wait=True):
        _check_replaceable(place)
        fresh = place.with_name(f".{place.name}.fresh")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            _write(fresh, adapter, note)
            _replace(fresh, place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target


def load_adapter(folder: str | os.PathLike[str]) -> SavedAdapter:
    """Read what `save_adapter` has written. Nothing in the folder is executed.

    Args:
        folder: of the adapter.

    Returns:
        The adapter. A folder that is none, or is damaged, raises an error that names the file.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp(), "adapter")
        >>> eye = torch.eye(3)[:, :2]
        >>> _ = save_adapter(folder, query=eye, document=eye, normalise="images", similarity="cosine")
        >>> adapter = load_adapter(folder)
        >>> adapter.side, adapter.inputs, adapter.outputs
        ('both', 3, 2)
    """
    base = Path(folder)
    if not (base / ABOUT).is_file() or not (base / MATRICES).is_file():
        raise FileNotFoundError(_missing(base))
    about, maps = _read_about(base / ABOUT), _read_matrices(base / MATRICES)
    wanted = SIDES if about["side"] == "both" else (about["side"],)
    where = base / MATRICES
    if sorted(maps) != sorted(wanted):
        expected = f"expected {' and '.join(wanted)}, as {ABOUT} says"
        raise DataError(f"{where}: found the matrices {', '.join(sorted(maps)) or 'none'}: {expected}")
    for name, matrix in maps.items():
        if matrix.dtype != torch.float32 or matrix.shape != (about["inputs"], about["outputs"]):
            expected = f"expected float32 ({about['inputs']}, {about['outputs']}), as {ABOUT} says"
            raise DataError(f"{where}: the matrix {name} is {matrix.dtype} {tuple(matrix.shape)}: {expected}")
    try:
        options = {"normalise": about["normalise"], "similarity": about["similarity"]}
        return SavedAdapter(maps.get("query"), maps.get("document"), **options)
    except ValueError as error:
        raise DataError(f"{base}: {error}") from None


# ---- reading ----------------------------------------------------------------------------------------------------


def _missing(base: Path) -> str:
    former = _former(base.resolve())
    if not base.exists() and former.is_dir():
        return f"{base}: not found: a process ended while it replaced it. Rename {former} to {base.name}, or save again"
    run = (base / "checkpoints").is_dir()
    hint = f": write one from this run with torchrank export {shlex.quote(str(base))} --to FOLDER" if run else ""
    return f"{base}: not the folder of an adapter, which has {ABOUT} and {MATRICES}{hint}"


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}. Save the adapter again") from None
    if not isinstance(about, dict) or type(about.get("format")) is not int:
        raise DataError(f'{path}: expected a JSON object with the number "format". Save the adapter again')
    if about["format"] != FORMAT:
        raise DataError(f"{path}: format {about['format']}, this torchrank reads {FORMAT}: use another version of it")
    for name, kind in FIELDS.items():
        if name not in about or not isinstance(about[name], kind) or isinstance(about[name], bool):
            told = getattr(kind, "__name__", str(kind))
            raise DataError(f'{path}: expected "{name}" as {told}, found {about.get(name)!r}')
    if about["side"] not in (*SIDES, "both"):
        raise DataError(f'{path}: "side" must be query, document or both, found {about["side"]!r}')
    return about


def _read_matrices(path: Path) -> dict[str, Tensor]:
    try:
        return load(path.read_bytes())
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Save the adapter again") from None


# ---- writing ----------------------------------------------------------------------------------------------------


def _check_replaceable(place: Path) -> None:
    """Refuse a file, and a folder with anything in it that was not written here."""
    if not place.exists():
        return
    if not place.is_dir():
        raise ValueError(f"cannot write an adapter to {place}: it is a file. Choose a new folder")
    found = {each.relative_to(place).as_posix() for each in place.rglob("*")}
    if found and ABOUT not in found:
        raise ValueError(f"cannot write an adapter to {place}: it holds other files. Choose a new folder")
    if strange := sorted(found - OWN):
        raise ValueError(f"cannot replace the adapter in {place}: {strange[0]} is not part of one. Move it away")


def _former(place: Path) -> Path:
    return place.with_name(f".{place.name}.former")


def _replace(fresh: Path, place: Path) -> None:
    """Put one folder in the place of another; if the second step fails, the first is taken back."""
    if not place.exists():
        fresh.rename(place)
    else:
        shutil.rmtree(_former(place), ignore_errors=True)
        place.rename(_former(place))
        try:
            fresh.rename(place)
        except BaseException:
            _former(place).rename(place)
            raise
    shutil.rmtree(_former(place), ignore_errors=True)


def _write(folder: Path, adapter: SavedAdapter, note: str) -> None:
    folder.mkdir()
    (folder / MATRICES).write_bytes(save({name: matrix.contiguous() for name, matrix in adapter.maps.items()}))
    about = {"format": FORMAT, **{name: getattr(adapter, name) for name in FIELDS}}
    (folder / ABOUT).write_text(f"{json.dumps(about, indent=1)}\n", encoding="utf-8")
    (folder / README).write_text(_readme(adapter, note), encoding="utf-8")
    for side, matrix in adapter.maps.items():
        dense = folder / DENSE[side]
        dense.mkdir()
        weights, settings = (dense / name for name in LAYER)
        weights.write_bytes(save({"linear.weight": matrix.T.contiguous()}))
        config = {
            "in_features": adapter.inputs,
            "out_features": adapter.outputs,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        settings.write_text(json.dumps(config, indent=4), encoding="utf-8")


def _readme(adapter: SavedAdapter, note: str) -> str:
    side = "query" if adapter.query is not None else "document"
    other = f', and `"document"` for the documents in place of `"{side}"`' if adapter.side == "both" else ""
    mapped = {"query": "queries", "document": "documents", "both": "queries and documents"}[adapter.side]
    product = f'images = vectors @ load_file("{MATRICES}")["{side}"]\n'
    name = adapter.normalise
    length = f"{name} = {name} / np.maximum(np.linalg.norm({name}, axis=-1, keepdims=True), 1e-12)\n" if name else ""
    lines = length + product if name == "vectors" else product + length
    numpy = "import numpy as np\n" if name else ""
    index = (
        "The index need not be rebuilt: the vectors of the documents stay as they are."
        if adapter.side == "query"
        else "The index must be rebuilt from the images of the documents."
    )
    routes = {name: _route(name, adapter) for name in SIDES}
    layers = "Dense, Normalize, Router" if adapter.normalise else "Dense, Router"
    ranks = {"inner": "the inner product", "cosine": "the cosine", "euclidean": "the Euclidean distance"}
    return f"""# An adapter of embeddings

{f"{note.strip()}{chr(10)}{chr(10)}" if note.strip() else ""}A linear map of the vectors of {mapped}: {adapter.inputs} \
numbers in, {adapter.outputs} out. Rank by {ranks[adapter.similarity]}.

**{index}**

With numpy, for the rows of `vectors`{other}:

```python
{numpy}from safetensors.numpy import load_file

{lines}```

With sentence-transformers 5 or newer, for the `model` whose vectors the adapter was fitted to:

```python
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import {layers}

own = list(model.children())
adapted = SentenceTransformer(
    modules=[Router.for_query_document({routes["query"]}, {routes["document"]})],
    prompts=dict(model.prompts),
    default_prompt_name=model.default_prompt_name,
    similarity_fn_name="{SIMILARITY_NAMES[adapter.similarity]}",
)
```

Then `adapted.encode_query` and `adapted.encode_document` give what is to be compared. With torchrank,
`torchrank.add_to_sentence_transformer(model, torchrank.load_adapter(FOLDER))` does this, and
`torchrank apply FOLDER vectors.npy --side {side} --out images.npy` maps whole files.
"""


def _route(side: str, adapter: SavedAdapter) -> str:
    """The modules of a route, in Python."""
    if side not in adapter.maps:
        return "own"
    layers = [f'Dense.load("{DENSE[side]}")']
    if adapter.normalise:
        layers.insert(0 if adapter.normalise == "vectors" else 1, "Normalize()")
    return f"[*own, {', '.join(layers)}]"
