"""A cache of parsed sets: plain, memory-mapped `.npy` files, which open in milliseconds and without a copy.

A cache is the folder `<file>.torchrank/<key>` beside the data; or in `cache_dir`; or in the user's cache folder if the
folder of the data is not writable. If none can be written, the run goes on without it and says why in a warning. The
key is a hash of the reader, its options and the format version. `manifest.json` holds the BLAKE2 hash of the content
of the source files. They count as unchanged while their size, modification and change time and inode are the same,
unless the last change is too recent to tell (the rule of git). Otherwise they are hashed again, so that a file that was
only copied or touched keeps its cache, and a file that changed loses it. The files of the cache follow the same rule;
otherwise their checksums are verified, so that damage is noticed.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from torchrank.data.cache.files import DamagedError, Plain, check_set, is_fresh, load_set, read_all, save_set, state
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError, DataWarning
from torchrank.files import write_atomically

log = logging.getLogger(__name__)

VERSION = 2  # increase it when the meaning of the reader or of the files changes
FRESH = 2 * 10**9  # ns: a file that changed so shortly before it was hashed may change again without a new time
DAY = 24 * 3600
MANIFEST = "manifest.json"
ATTEMPTS = 5  # at renaming, while other processes rename too
BROKEN = Exception  # opening a damaged or forged cache can raise almost anything


def cached(
    path: str | Path,
    read: Callable[..., RankingSet],
    options: Plain,
    *,
    sides: Sequence[Path] = (),
    cache_dir: str | Path | None = None,
) -> RankingSet:
    """`read(path, **options)` through the cache: read once, then opened from its files while the sources are unchanged.

    Warnings about the data are cached too, and repeated. Processes may build the same cache at the same time: the first
    one to finish wins, and the others open its files.

    Args:
        path: the file to read.
        read: reads it; a function of a module, by whose name the cache is found.
        options: the keyword arguments of `read`.
        sides: other files on which the result depends.
        cache_dir: the folder of the cache; by default beside the data, or in the user's cache folder.

    Returns:
        The set, its tensors mapped from files.

    Example:
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
    sources = [path, *sides]
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
        raise DataError(f"{path}: the file changed while it was read. Read it again when it is complete.")
    source = {"digest": digest, "states": before, "checked": now}
    reasons = []
    for folder in folders:
        try:
            return _write(folder, sources, lists, source, notes)
        except (OSError, ValueError) as error:  # a path that cannot be is a ValueError
            reasons.append(f"{folder.parent}: {getattr(error, 'strerror', None) or error}")
    log.warning("%s is not cached, and will be read again by the next run (%s)", path, "; ".join(reasons))
    return lists


def save_folder(folder: Path, lists: RankingSet) -> None:
    """Write a set in the form of the cache to a folder of its own, whole or not at all; an older cache is replaced."""
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise FileExistsError(f"{folder} exists and is not a cache of torchrank: name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write_manifest(temporary / MANIFEST, {"source": None, "notes": [], "set": save_set(temporary, lists)})
        temporary.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_folder(folder: Path) -> RankingSet:
    """The set in a folder of the cache, or of the newest one in the folder `<file>.torchrank` beside a data file."""
    found = [folder] if (folder / MANIFEST).is_file() else [path.parent for path in folder.glob(f"*/{MANIFEST}")]
    if not found:
        raise DataError(f"{folder} is not a cache of torchrank: it has no {MANIFEST}")
    newest = max(found, key=lambda each: (each / MANIFEST).stat().st_mtime_ns)
    try:
        return load_set(newest, check_set(newest, _read_manifest(newest / MANIFEST)["set"]))
    except BROKEN as error:
        raise DataError(f"the cache {newest} is damaged: {error}") from error


# ---- the sources of a cache ----------------------------------------------------------------------------------------


def _key(read: Callable[..., RankingSet], options: Plain) -> str:
    name = getattr(read, "__qualname__", type(read).__qualname__)  # a partial has no name of its own
    text = json.dumps([VERSION, read.__module__, name, options], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _digest(sources: list[Path]) -> str:
    digest = hashlib.blake2b(repr([source.stat().st_size for source in sources]).encode(), digest_size=16)
    for piece in read_all(sources, "hash"):
        digest.update(piece)
    return digest.hexdigest()


# ---- where it is ----------------------------------------------------------------------------------------------------


def _folders(path: Path, cache_dir: str | Path | None) -> Iterator[Path]:
    """The folders where the cache may be, the best first."""
    path = path.resolve()
    apart = f"{path.name}-{hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()}"
    if cache_dir is not None:
        yield Path(cache_dir) / apart
        return
    yield path.with_name(path.name + ".torchrank")
    with suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchrank" / apart


def _check_writable(folder: Path) -> None:
    """Refuse a folder without any write permission, even for users who could write to it anyway."""
    exists = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not exists.stat().st_mode & 0o222 or not os.access(exists, os.W_OK):
        raise PermissionError(f"{exists} is not writable")


# ---- opening and writing --------------------------------------------------------------------------------------------


def _open(folder: Path, sources: list[Path]) -> RankingSet | None:
    try:
        if not os.path.isdir(folder):  # False also for a name that cannot be
            return None
        lists, notes = _load(folder, sources)
    except BROKEN as error:
        log.warning("rebuilding the cache %s: %s", folder, str(error) or type(error).__name__)
        return None
    for note in notes:
        warnings.warn(note, DataWarning, stacklevel=3)
    return lists


def _load(folder: Path, sources: list[Path]) -> tuple[RankingSet, list[str]]:
    """The set and its warnings; raises one of `BROKEN` if the cache is damaged or outdated."""
    manifest = _read_manifest(folder / MANIFEST)
    source, description = _check_source(manifest["source"], sources), check_set(folder, manifest["set"])
    lists = load_set(folder, description)
    if (source, description) != (manifest["source"], manifest["set"]):
        with suppress(OSError):  # a read-only cache is checked each time
            _write_manifest(folder / MANIFEST, {**manifest, "source": source, "set": description})
    return lists, [str(note) for note in manifest["notes"]]


def _read_manifest(path: Path) -> Plain:
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or manifest.pop("checksum", None) != _checksum(manifest):
        raise DamagedError("its manifest is damaged")
    return manifest


def _write_manifest(path: Path, manifest: Plain) -> None:
    content = json.dumps({**manifest, "checksum": _checksum(manifest)}, indent=1).encode()
    write_atomically(path, lambda file: file.write(content))


def _checksum(manifest: Plain) -> str:
    return hashlib.blake2b(json.dumps(manifest, sort_keys=True).encode(), digest_size=8).hexdigest()


def _check_source(known: Plain, sources: list[Path]) -> Plain:
    """What is known about the sources, with their new states if they were only copied or touched."""
    states = [state(source) for source in sources]
    fresh = any(is_fresh(found, known["checked"], FRESH) for found in states)
    if states == known["states"] and not fresh:
        return known
    now = time.time_ns()
    if _digest(sources) != known["digest"]:
        raise DamagedError("the data has changed")
    return {"digest": known["digest"], "states": states, "checked": now}


def _write(folder: Path, sources: list[Path], lists: RankingSet, source: Plain, notes: list[str]) -> RankingSet:
    """Write to a temporary name and rename; if another process was first, its cache is opened instead."""
    _check_writable(folder)
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        return _write_beside(folder, sources, lists, source, notes)
    except BaseException:
        for parent in made:  # as far as nobody else uses them
            with suppress(OSError):
                parent.rmdir()
        raise


def _write_beside(folder: Path, sources: list[Path], lists: RankingSet, source: Plain, notes: list[str]) -> RankingSet:
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
            with suppress(BROKEN):  # another process was first
                return _load(folder, sources)[0]
            with suppress(OSError):  # an outdated or damaged one, unless another process has just moved it away
                folder.rename(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
        raise OSError(f"{folder} is in use")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for old in folder.parent.glob(".old-*"):
            shutil.rmtree(old, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what dead processes left behind more than a day ago."""
    for left in folder.glob(".new-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)
