"""Models of sentence-transformers, from a folder: nothing of it is executed, nothing is fetched unless asked for."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from torchrank.errors import DataWarning

PACKAGES = ("sentence-transformers", "transformers")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
NEEDED = ("*.json", "*.txt", "*.safetensors", "*.model", "*.jinja", "*.tiktoken", "*.spm")  # files of a download
UNREAD = (".md", ".py", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".onnx", ".h5", ".msgpack", ".ot")  # never opened
MEDIA = ("image", "audio", "video")


def versions() -> dict[str, str]:
    """The versions of the packages that make vectors of texts; without them an error that says what to install."""
    if find_spec("sentence_transformers") is None:
        raise ImportError("texts need sentence-transformers: pip install 'torchrank-ltr[text]'")
    return {name: metadata.version(name) for name in PACKAGES}


def model_folder(name: str, *, download: bool = False) -> Path:
    """The folder of a model, which has no weights in pickles alone.

    Args:
        name: the folder; or a name of the Hugging Face hub, for a model that was downloaded before.
        download: fetch what is missing of a model of this name. Nothing is fetched without.

    Returns:
        The folder.

    Example:
        >>> model_folder("no/such/model")
        Traceback (most recent call last):
        FileNotFoundError: no/such/model: no such folder: give the path of a model
    """
    folder = Path(name)
    if not folder.exists():
        if not HUB_NAME.fullmatch(name):
            raise FileNotFoundError(f"{name}: no such folder: give the path of a model")
        folder = _from_hub(name, download)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder}: expected the folder of a model, found a file")
    if not any((folder / each).is_file() for each in ("modules.json", "config.json")):
        raise ValueError(f"{folder}: neither modules.json nor config.json: not a model of sentence-transformers")
    for pickled in sorted(folder.rglob("pytorch_model*.bin")):
        if not any(pickled.parent.glob("*.safetensors")):
            raise ValueError(
                f"{pickled}: a pickle, which is not opened, and no safetensors beside it: where you trust it, save the "
                "model again with save_pretrained of sentence-transformers"
            )
    return folder


def _from_hub(name: str, download: bool) -> Path:
    repository = name if "/" in name else f"sentence-transformers/{name}"
    if not download:
        with offline():
            try:
                return Path(_hub().snapshot_download(repository, local_files_only=True))
            except (OSError, ValueError):
                raise FileNotFoundError(
                    f"{name}: no such folder, and no model of this name was downloaded before: give the path of a "
                    "local model, or --download to fetch it from the Hugging Face hub"
                ) from None
    try:
        return Path(_hub().snapshot_download(repository, allow_patterns=list(NEEDED)))
    except Exception as error:  # those of the hub and of its connection are of many kinds
        raise ConnectionError(f"{name}: cannot be downloaded: {_first_line(error)}") from error


def _hub(name: str = "huggingface_hub") -> Any:
    versions()
    return import_module(name)


def fingerprint(folder: Path) -> str:
    """The SHA-256 of the names and contents of all files of a model that are read.

    Args:
        folder: the model. Hidden files, readmes, pickles and other forms of its weights do not count.

    Returns:
        The hexadecimal digits; the same wherever the folder lies.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "config.json").write_text("{}")
        >>> before = fingerprint(folder)
        >>> _ = (folder / "README.md").write_text("hello")
        >>> fingerprint(folder) == before
        True
    """
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and path.suffix not in UNREAD and not any(part.startswith(".") for part in name.parts):
            with path.open("rb") as file:
                total.update(f"{hashlib.file_digest(file, 'sha256').hexdigest()} {name.as_posix()}\n".encode())
    return total.hexdigest()


def load_model(folder: Path, *, device: str | None = None, normalise: bool | None = None) -> Any:
    """A model of sentence-transformers. Its folder may hold code and pickles: neither is opened.

    Args:
        folder: the model, as `model_folder` gives it.
        device: such as cpu or cuda; None is cuda where there is one, otherwise cpu.
        normalise: False removes the step that gives vectors length 1 from the end of the model; None and True leave
            the model as it is.

    Returns:
        The `SentenceTransformer`.
    """
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if not (folder / "modules.json").is_file():
        _warn(f"{folder} has no modules.json: the mean of its token vectors is taken (the last one of causal models)")
    with offline():
        library = _library()
        with _gathered_logs() as logs, torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # weights that are missing are drawn: the same ones when the work is resumed
            try:
                model = library.SentenceTransformer(
                    str(folder),
                    device=place,
                    trust_remote_code=False,
                    local_files_only=True,
                    model_kwargs={"use_safetensors": True, "weights_only": True},  # rank above those of the folder
                )
            except Exception as error:  # a foreign folder may fail in any way
                raise ValueError(f"{folder}: cannot be loaded on {place}: {_first_line(error)}") from error
    _tell(folder, logs)
    kinds = {part for each in getattr(model, "modalities", ()) for part in ([each] if isinstance(each, str) else each)}
    if media := [each for each in MEDIA if each in kinds]:
        raise ValueError(f"{folder}: a model of {', '.join(media)} too, which may take texts for paths: take another")
    if normalise is False:
        _remove_normalisation(folder, model)
    return model


def _library() -> Any:
    library = import_module("sentence_transformers")
    import_module("transformers").utils.logging.disable_progress_bar()
    return library


def _tell(folder: Path, logs: list[str]) -> None:
    """Warn of what the libraries have logged; of reports on weights those that are missing."""
    for text in logs:
        missing = re.findall(r"^(\S+) *\| *MISSING", text, flags=re.MULTILINE)
        if missing:
            _warn(f"{folder}: {len(missing)} weights are missing and were drawn at random: {missing[0]}, ...")
        elif "LOAD REPORT" not in text:
            _warn(f"{folder}: {text.strip().splitlines()[0]}")


def encoder_of(model: Any, side: str, **options: Any) -> Callable[[list[str]], Any]:
    """The function that makes vectors of the texts of one side, with the prompt that the model has for it."""
    named = {"corpus": "encode_document", "queries": "encode_query"}[side]
    encode = getattr(model, named, model.encode)

    def encoded(texts: list[str]) -> Any:
        with offline():
            return encode(texts, show_progress_bar=False, convert_to_numpy=True, **options)

    return encoded


def _remove_normalisation(folder: Path, model: Any) -> None:
    def is_normalisation(module: Any) -> bool:
        return type(module).__name__ == "Normalize"

    while is_normalisation(list(model.children())[-1]):
        delattr(model, list(dict(model.named_children()))[-1])
    if any(is_normalisation(module) for module in model.modules()):
        raise ValueError(f"{folder}: it normalises before its last step, which --no-normalise cannot remove")


@contextmanager
def offline() -> Iterator[None]:
    """Nothing in this block reaches the hub, also if its package was imported before."""
    before = {name: os.environ.get(name) for name in OFFLINE}
    constants = _hub("huggingface_hub.constants")  # which read the environment when they were imported
    os.environ.update(dict.fromkeys(OFFLINE, "1"))
    told, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = told
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _gathered_logs() -> Iterator[list[str]]:
    """What the libraries log in this block, as texts instead of on the screen."""
    texts: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    loggers = [logging.getLogger(name) for name in ("transformers", "sentence_transformers")]
    before = [(each, each.handlers, each.propagate) for each in loggers]
    for each in loggers:
        each.handlers, each.propagate = [Keep()], False
    try:
        yield texts
    finally:
        for each, handlers, propagate in before:
            each.handlers, each.propagate = handlers, propagate


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=3)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
