"""A parsed set on disk as plain, memory-mapped `.npy` files, so that opening it again costs milliseconds and no copy.

A cache is the folder `<file>.torchrank/<key>` beside the data (or in `cache_dir`; in the user's cache folder where the
data's own may not be written). The key names the reader, its options and the format version. `manifest.json` holds the
BLAKE2 hash of the content of the source files. They are trusted to be unchanged while size, modification and change
time and inode are the same and the last change is not too fresh to tell (as git does it); otherwise they are hashed
again, so a file that was only copied or touched keeps its cache and a file that changed loses it. The files of the
cache themselves are trusted by the same rule, and otherwise looked through, so one that was damaged is noticed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from torchrank.data.cache_files import DamagedError, check_set, is_fresh, load_set, read_all, save_set, state
from torchrank.data.letor import DataWarning
from torchrank.data.letor.files import side_file
from torchrank.data.sets import RankingSet

log = logging.getLogger(__name__)

VERSION = 2  # raise it when the reader or the files change their meaning
FRESH = 2 * 10**9  # ns: a file changed so shortly before it was hashed may change again without a new time
DAY = 24 * 3600
MANIFEST = "manifest.json"
ATTEMPTS = 5  # to rename, while other processes rename as well
BROKEN = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    RecursionError,
)  # what a cache that is not as it was written can raise


def cached(
    path: str | Path, read: Callable[..., RankingSet], options: dict, *, cache_dir: str | Path | None = None
) -> RankingSet:
    """`read(path, **options)`, from the cache when it is current; otherwise read, cached, and opened from there.

    Warnings about the data are part of the cache and given again. Processes that build the same cache at once do not
    disturb each other: the first one to finish wins and the others open its files.

    >>> from torchrank.data.letor import read_letor
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "train.txt")
    ...     _ = path.write_text("2 qid:a 1:0.5\\n0 qid:a 1:1\\n")
    ...     first = cached(path, read_letor, {"num_features": 3})
    ...     again = cached(path, read_letor, {"num_features": 3})
    >>> first.x.shape, again.x.tolist() == first.x.tolist()
    (torch.Size([2, 3]), True)
    """
    path = Path(path)
    sources = _sources(path, options)
    key = _key(read, options)
    folders = [folder / key for folder in _folders(path, cache_dir)]
    for folder in folders:
        if (found := _open(folder, sources)) is not None:
            return found
    before = [state(source) for source in sources]
    digest, now = _digest(sources), time.time_ns()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lists = read(path, **options)
    notes = [str(warning.message) for warning in caught if issubclass(warning.category, DataWarning)]
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if [state(source) for source in sources] != before:
        raise ValueError(f"{path}: the file changed while it was being read. Read it again when it is complete")
    source = {"digest": digest, "states": before, "checked": now}
    for folder in folders:
        try:
            return _write(folder, sources, lists, source, notes)
        except OSError as error:
            log.info("no cache in %s: %s", folder, error)
    log.warning("%s could not be cached in any of %s", path, ", ".join(str(folder.parent) for folder in folders))
    return lists


# what a cache is made from


def _sources(path: Path, options: dict) -> list[Path]:
    """The file, and those beside it on which its content depends: list lengths, or the words that are columns."""
    sides = [side_file(path, options.get("query_file"))] if options.get("qid") == "file" else []
    if options.get("vocabulary", path.name) != path.name:
        sides.append(path.with_name(options["vocabulary"]))
    return [path, *sides]


def _key(read: Callable, options: dict) -> str:
    name = getattr(read, "__qualname__", type(read).__qualname__)  # partials and other objects have a type only
    text = json.dumps([VERSION, read.__module__, name, options], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _digest(sources: list[Path]) -> str:
    digest = hashlib.blake2b(repr([source.stat().st_size for source in sources]).encode(), digest_size=16)
    for piece in read_all(sources, "hash"):
        digest.update(piece)
    return digest.hexdigest()


# where it is


def _folders(path: Path, cache_dir: str | Path | None) -> Iterator[Path]:
    """Folders to look into and to write to, the best first."""
    path = path.resolve()
    apart = f"{path.name}-{hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()}"
    if cache_dir is not None:
        yield Path(cache_dir) / apart
        return
    yield path.with_name(path.name + ".torchrank")
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchrank" / apart


def _check_writable(folder: Path) -> None:
    """A folder without any write bit is left alone, even by those who could write to it."""
    exists = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not exists.stat().st_mode & 0o222 or not os.access(exists, os.W_OK):
        raise PermissionError(f"{exists} is not writable")


# opening and writing


def _open(folder: Path, sources: list[Path]) -> RankingSet | None:
    if not folder.is_dir():
        return None
    try:
        lists, notes = _load(folder, sources)
    except BROKEN as error:
        log.warning("the cache %s is built again: %s", folder, error or type(error).__name__)
        return None
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=3)
    return lists


def _load(folder: Path, sources: list[Path]) -> tuple[RankingSet, list[str]]:
    """The set and the warnings it comes with; one of `BROKEN` is raised when the cache is damaged or outdated."""
    manifest = _read_manifest(folder / MANIFEST)
    source, description = _check_source(manifest["source"], sources), check_set(folder, manifest["set"])
    lists = load_set(folder, description)
    if (source, description) != (manifest["source"], manifest["set"]):
        with suppress(OSError):  # a cache that may only be read is checked each time
            _write_manifest(folder / MANIFEST, {**manifest, "source": source, "set": description})
    return lists, manifest["notes"]


def _read_manifest(path: Path) -> dict:
    manifest = json.loads(path.read_text())
    if not isinstance(manifest, dict) or manifest.pop("checksum", None) != _checksum(manifest):
        raise DamagedError("its manifest is damaged")
    return manifest


def _write_manifest(path: Path, manifest: dict) -> None:
    """At once: a reader sees the old file or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        json.dump({**manifest, "checksum": _checksum(manifest)}, file, indent=1)
    os.chmod(name, 0o644)
    os.replace(name, path)


def _checksum(manifest: dict) -> str:
    return hashlib.blake2b(json.dumps(manifest, sort_keys=True).encode(), digest_size=8).hexdigest()


def _check_source(known: dict, sources: list[Path]) -> dict:
    """What is known of the sources, with their new states if they were only copied or touched."""
    states = [state(source) for source in sources]
    fresh = any(is_fresh(found, known["checked"], FRESH) for found in states)
    if states == known["states"] and not fresh:
        return known
    now = time.time_ns()
    if _digest(sources) != known["digest"]:
        raise DamagedError("it is outdated, the data has changed")
    return {"digest": known["digest"], "states": states, "checked": now}


def _write(folder: Path, sources: list[Path], lists: RankingSet, source: dict, notes: list[str]) -> RankingSet:
    """Write to a temporary name and rename; if another process was first, its cache is opened instead."""
    _check_writable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        description = save_set(temporary, lists)
        _write_manifest(temporary / MANIFEST, {"source": source, "notes": notes, "set": description})
        temporary.chmod(0o755)
        for _ in range(ATTEMPTS):
            with suppress(OSError):
                temporary.rename(folder)
                return load_set(folder, description)
            with suppress(*BROKEN):  # there is one already: the winner's
                return _load(folder, sources)[0]
            with suppress(OSError):  # the outdated or damaged one, unless another process just took it away
                folder.rename(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
        raise OSError(f"{folder} is in use")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for old in folder.parent.glob(".old-*"):
            shutil.rmtree(old, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what processes that died left behind more than a day ago."""
    for left in folder.glob(".new-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)
