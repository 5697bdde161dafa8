"""Make the vectors of a folder in BEIR's layout, chunk by chunk: `corpus.npy` and `queries.npy`, whole or not at all.

Rows are gathered in `corpus.npy.part`, and `corpus.npy.part.json` says how many are done and of which work: the model,
the texts and the options. What was killed is continued after the last whole chunk. `corpus.json` tells what made
`corpus.npy`.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout

from torchrank.data.sources.download import checksum_of
from torchrank.data.sources.embeddings.encoder import encoder_of, fingerprint, load_model, model_folder, versions
from torchrank.data.sources.embeddings.texts import (
    TEMPLATE,
    Checksum,
    Survey,
    Text,
    fields_of,
    read_texts,
    survey_texts,
)
from torchrank.errors import DataError, DataWarning, check_choice, check_integer
from torchrank.files import alone, write_atomically
from torchrank.progress import bar

SIDES = ("corpus", "queries")
DTYPES = ("float32", "float16")
MADE_BY = "torchrank embed"
Work = dict[str, Any]  # what two calls must have in common to make the same vectors
Encode = Callable[[list[str]], Any]


def embed_folder(
    root: str | Path,
    model: str | Path,
    *,
    sides: Sequence[str] = SIDES,
    batch: int = 32,
    dtype: str = "float32",
    normalise: bool | None = None,
    device: str | None = None,
    template: str = TEMPLATE,
    download: bool = False,
    overwrite: bool = False,
    chunk: int = 1000,
) -> dict[str, dict[str, Any]]:
    """Make the vectors of the documents and queries of a folder with a model of sentence-transformers.

    Args:
        root: the folder with `corpus.jsonl` and `queries.jsonl`.
        model: the folder of a model; or a name of the Hugging Face hub, which is fetched with `download` only.
        sides: "corpus" or "queries" or both.
        batch: texts that the model sees at a time.
        dtype: how numbers are stored, "float32" or "float16".
        normalise: vectors of length 1, or not; None leaves it to the model.
        device: such as cpu or cuda; None is cuda where there is one, otherwise cpu.
        template: how the fields of a document become its text; queries are their "text".
        download: fetch the model if it is not there.
        overwrite: replace vectors that are there.
        chunk: texts between two writes, among which batches are formed by length.

    Returns:
        For each side what was made: its file, the numbers of rows, of numbers in a row, of texts that were encoded by
        this call and of empty texts.
    """
    for side in sides:
        check_choice(SIDES, side=side)
    check_choice(DTYPES, dtype=dtype)
    check_integer(">= 1", batch=batch, chunk=chunk)
    fields_of(template)
    base = Path(root)
    files = {side: _texts_of(base, side) for side in sides}
    libraries, folder = versions(), model_folder(str(model), download=download)
    with _alone_in(base):
        templates = {"corpus": template, "queries": "{text}"}
        surveys = {side: survey_texts(path, templates[side]) for side, path in files.items()}
        same = {"model": fingerprint(folder), "dtype": dtype, "normalise": normalise, "versions": libraries}
        works = {side: {**same, "template": templates[side], "texts": surveys[side].checksum} for side in sides}
        there = {side: stands(base / f"{side}.npy", works[side], overwrite=overwrite) for side in sides}
        for side in sides:
            _tell_empty(files[side], surveys[side])
        _tell_other_model(base, works)
        loaded = None if all(there.values()) else load_model(folder, device=device, normalise=normalise)
        made = {}
        for side in sides:
            rows = Rows(base / f"{side}.npy", works[side], surveys[side].texts, model=str(model))
            if not there[side]:
                encode = encoder_of(loaded, side, batch_size=batch, normalize_embeddings=bool(normalise))
                write_rows(rows, files[side], surveys[side], encode, template=templates[side], chunk=chunk)
            made[side] = rows.told() | {"empty": surveys[side].empty}
        return made


def _texts_of(base: Path, side: str) -> Path:
    if not base.is_dir():
        raise FileNotFoundError(f"not found: the folder {base}")
    path = base / f"{side}.jsonl"
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} not found in {base}: it has the texts")
    return path


@contextmanager
def _alone_in(base: Path) -> Iterator[None]:
    try:
        with alone(base / ".embed.lock", wait=False):
            yield
    except Timeout:
        raise FileExistsError(f"another process makes vectors in {base}: wait for it to finish") from None


def _tell_empty(path: Path, survey: Survey) -> None:
    if survey.empty:
        warnings.warn(
            f"{path}: {survey.empty} of {survey.texts} texts are empty, the first in line {survey.first_empty}: they "
            "get the model's vector of no words",
            DataWarning,
            stacklevel=3,
        )


def _tell_other_model(base: Path, works: dict[str, Work]) -> None:
    """Vectors of two models cannot be compared."""
    models = {work["model"] for work in works.values()}
    for other in (base / f"{side}.npy" for side in SIDES if side not in works):
        record = read_record(other.with_suffix(".json")) if other.exists() else None
        if record is not None and record["work"].get("model") not in models:
            warnings.warn(f"{other} was made by another model", DataWarning, stacklevel=3)


# ---- what is there ---------------------------------------------------------------------------------------------------


def stands(target: Path, work: Work, *, overwrite: bool) -> bool:
    """Whether a file was made by the same work. One that was not is refused, unless it may be overwritten."""
    record = read_record(target.with_suffix(".json"))
    there = [path for path in (target, target.with_suffix(".safetensors")) if path.exists()]
    if there and not there[0].is_file():
        raise FileExistsError(f"{there[0]}: expected a file or none, found a folder")
    if overwrite or not there:
        return False
    told = "and no record tells what made it"
    if record is not None and there[0] == target:
        changed = differences(record["work"], work)
        if not changed and checksum_of(target) == record.get("sha256"):
            return True
        told = f"made with a different {', '.join(changed)}" if changed else "and was changed since it was made"
    raise FileExistsError(f"{there[0]} is there already, {told}: --overwrite makes {target.name} anew")


def read_record(path: Path) -> dict[str, Any] | None:
    """What made a file of vectors; None if it is not told, and an error if the file has another purpose."""
    if not path.exists():
        return None
    record = _read_json(path)
    if record is None or record.get("made_by") != MADE_BY or not isinstance(record.get("work"), dict):
        raise FileExistsError(f"{path}: not a record of {MADE_BY}, which would be written there: move it away")
    return record


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def differences(before: Work, now: Work) -> list[str]:
    """What two works do not have in common.

    Example:
        >>> differences({"dtype": "float32", "texts": "ab"}, {"dtype": "float16", "texts": "ab"})
        ['dtype']
    """
    return [name for name in now if before.get(name) != now[name]]


# ---- rows ------------------------------------------------------------------------------------------------------------


class Rows:
    """Rows of a .npy file that are written in order, chunk by chunk; the file gets its name when it is whole.

    They are written and not mapped: a full disk is then an error, and not the end of the process.

    Args:
        target: the file.
        work: what makes its rows. Rows of the same work that are there are kept.
        count: how many rows there will be.
        model: the name of the model, for the record.
    """

    def __init__(self, target: Path, work: Work, count: int, *, model: str = ""):
        self.target, self.work, self.count, self.model = target, work, count, model
        self.dtype = np.dtype(work["dtype"])
        self.part, self.state = (target.with_name(f"{target.name}{end}") for end in (".part", ".part.json"))
        self.done = self.width = self.kept = 0

    def resume(self) -> None:
        """Continue after the rows that are done, if they are of the same work."""
        state = _read_json(self.state) if self.part.is_file() else None
        if state is None or not isinstance(state.get("work"), dict):
            return
        if changed := differences(state["work"], self.work):
            self._start_over(f"it was begun with a different {', '.join(changed)}")
        elif not self._continue_from(state):
            self._start_over("it is damaged")

    def _start_over(self, reason: str) -> None:
        warnings.warn(f"{self.part} is not continued: {reason}. Starting over", DataWarning, stacklevel=3)

    def _continue_from(self, state: dict[str, Any]) -> bool:
        done, width = state.get("done"), state.get("width")
        if not isinstance(done, int) or not isinstance(width, int) or not 0 < done <= self.count or width < 1:
            return False
        self.width = width
        with self.part.open("rb") as file:
            same = file.read(len(self.header())) == self.header()
        if not same or self.part.stat().st_size < self.place(done):
            return False
        self.done = self.kept = done
        return True

    def header(self) -> bytes:
        """The beginning of the file."""
        file = io.BytesIO()
        shape = (self.count, self.width)
        np.lib.format.write_array_header_1_0(
            file, {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        )
        return file.getvalue()

    def place(self, row: int) -> int:
        """Where a row begins in the file."""
        return len(self.header()) + row * self.width * self.dtype.itemsize

    def add(self, rows: np.ndarray) -> None:
        """Write the next rows, and then that they are there."""
        try:
            if not self.done:
                self.state.unlink(missing_ok=True)
                self.width = rows.shape[1]
            if rows.shape[1] != self.width:
                raise DataError(f"{self.part}: rows of {rows.shape[1]} numbers after rows of {self.width}")
            with self.part.open("r+b" if self.done else "wb") as file:
                file.write(b"" if self.done else self.header())
                file.truncate(self.place(self.done))
                file.seek(self.place(self.done))
                file.write(np.ascontiguousarray(rows, dtype=self.dtype).tobytes())
                file.flush()
                os.fsync(file.fileno())
            self.done += len(rows)
            self._write(self.state, {"done": self.done, "width": self.width, "work": self.work})
        except OSError as error:
            raise self._unwritten(error) from error

    def finish(self) -> None:
        """Give the file its name."""
        if self.done != self.count or self.part.stat().st_size != self.place(self.count):
            raise DataError(f"{self.part}: {self.done} rows are done, expected {self.count}")
        made = {"made_by": MADE_BY, "model": self.model, "rows": self.count, "width": self.width}
        try:
            self._write(self.target.with_suffix(".json"), made | {"sha256": checksum_of(self.part), "work": self.work})
            self.part.replace(self.target)
            self.state.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritten(error) from error

    def told(self) -> dict[str, Any]:
        """What there is now, and how much of it was made here."""
        record = read_record(self.target.with_suffix(".json")) or {}
        return {
            "out": str(self.target),
            "rows": self.count,
            "width": record.get("width"),
            "dtype": self.work["dtype"],
            "kept": self.kept if self.done else self.count,
            "encoded": self.done - self.kept,
        }

    def _write(self, path: Path, document: dict[str, Any]) -> None:
        write_atomically(path, lambda file: file.write(json.dumps(document, indent=1).encode()))

    def _unwritten(self, error: OSError) -> DataError:
        told = error.strerror or error
        return DataError(f"{self.part} cannot be written: {told}. {self.done} rows are kept: run again to continue")


def write_rows(rows: Rows, path: Path, survey: Survey, encode: Encode, *, template: str, chunk: int) -> None:
    """Make the rows that are not there yet, in the order of the texts, and give the file its name.

    Args:
        rows: the file of the rows.
        path: the file of the texts.
        survey: what was found in it; texts that have changed since are an error.
        encode: makes vectors of texts.
        template: how the fields of a line become a text.
        chunk: texts between two writes.
    """
    rows.resume()
    checksum = Checksum()
    with bar(desc=f"embedding {path.stem}", total=survey.texts, initial=rows.done, unit=" texts") as progress:
        for some in _chunks(_watched(read_texts(path, template), checksum), rows.done, chunk):
            if rows.done + len(some) > survey.texts:
                break
            rows.add(_vectors(path, some, encode, rows.dtype))
            progress.update(len(some))
    if rows.done != survey.texts or checksum.told() != survey.checksum:
        rows.state.unlink(missing_ok=True)
        raise DataError(f"{path}: changed while it was read: run again")
    rows.finish()


def _watched(texts: Iterable[Text], checksum: Checksum) -> Iterator[Text]:
    for each in texts:
        checksum.add(each)
        yield each


def _chunks(texts: Iterable[Text], skipped: int, size: int) -> Iterator[list[Text]]:
    some: list[Text] = []
    for number, each in enumerate(texts):
        if number >= skipped:
            some.append(each)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some


def _vectors(path: Path, some: list[Text], encode: Encode, dtype: np.dtype[Any]) -> np.ndarray:
    try:
        found = np.asarray(encode([each.text for each in some]), dtype=np.float32)
    except Exception as error:  # of the model, such as one of the memory of a GPU
        lines = f"lines {some[0].line} to {some[-1].line}"
        raise ValueError(
            f"{path}, {lines}: the model failed: {str(error) or type(error).__name__}. What was made before is kept: a "
            "smaller --batch may help"
        ) from error
    if found.ndim != 2 or len(found) != len(some) or not found.shape[1]:
        raise ValueError(f"{path}: the model gives {found.shape} numbers for {len(some)} texts, expected a vector each")
    with np.errstate(over="ignore"):
        rows = found.astype(dtype)
    if not np.isfinite(rows).all():
        place = int(np.flatnonzero(~np.isfinite(rows).all(1))[0])
        told = "is not finite" if not np.isfinite(found[place]).all() else f"does not fit {dtype}: take --dtype float32"
        raise DataError(f"{path}, line {some[place].line}: the vector of {some[place].id!r} {told}")
    return rows
