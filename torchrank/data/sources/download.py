"""Fetch a file over HTTP: resumed after an interruption, checked before it gets its name."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

BLOCK = 1 << 20


class Link(NamedTuple):
    """A stable public address of one file, and the path below the data folder that it gets."""

    path: str
    url: str
    sha256: str
    size: int


def fetch(links: Sequence[Link], folders: Sequence[Path], *, compressed: Sequence[str] = ()) -> None:
    """Fill up the folder that holds some of the files, or else the first, and check what is there.

    Any number of processes may call this. A file that has got one of the endings `compressed` since is left alone.

    >>> fetch([], [Path("anywhere")])
    """

    def there(folder: Path, link: Link) -> list[str]:
        return [ending for ending in ("", *compressed) if (folder / (link.path + ending)).exists()]

    folder = next((folder for folder in folders if any(there(folder, link) for link in links)), folders[0])
    for link in links:
        found = there(folder, link)
        if not found or "" in found:
            download(link.url, folder / link.path, sha256=link.sha256, size=link.size)


def download(url: str, target: str | Path, *, sha256: str, size: int | None = None, timeout: float = 30.0) -> Path:
    """Put the file at `url` to `target`, unless it is there already, and return its path.

    Bytes gather in `<target>.part`; a later call asks the server for the rest only. The file gets its name after its
    SHA-256 was found right, so `target` is complete or absent. A `target` with other content is an error, not replaced.
    Of several processes one downloads while the others wait.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "source").write_bytes(b"0 qid:1 1:0.5")
    >>> checksum = hashlib.sha256(b"0 qid:1 1:0.5").hexdigest()
    >>> download((folder / "source").as_uri(), folder / "target", sha256=checksum).read_bytes()
    b'0 qid:1 1:0.5'
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        with _alone(target.with_name(target.name + ".lock")):
            if not target.exists():  # another process may have put it there
                return _get(url, target, sha256, size, timeout)
    found = target.stat().st_size
    if size not in (None, found) or checksum_of(target) != sha256:
        sizes = f"{found} bytes" + ("" if size is None else f", expected {size}")
        raise ValueError(
            f"{target} exists ({sizes}), but its content is not that of {url}. Move it away to download it again, or "
            "set data.download=false to use it as it is."
        )
    return target


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is inside. The system lets go of the lock when a process dies, so it is never stale.

    Who leaves removes the file; who waited for it then holds a lock on no file, and tries again.
    """
    import fcntl  # not on Windows, where everything else works

    while True:
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_open(file, lock):
                try:
                    yield
                finally:
                    lock.unlink()
                return


def _is_open(file, path: Path) -> bool:
    """Whether `path` still is the file that was opened."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _get(url: str, target: Path, sha256: str, size: int | None, timeout: float) -> Path:
    """What an earlier call left in the part is kept; the rest comes from `url`."""
    part = target.with_name(target.name + ".part")
    if size is None or not part.exists() or part.stat().st_size != size:
        _fetch(url, part, timeout)
    found = checksum_of(part)
    if found != sha256:
        part.unlink()
        raise ValueError(
            f"{url} has SHA-256 {found}, expected {sha256}: it was changed or damaged on its way. The partial file was "
            f"removed; try again, or get the file by hand into {target.parent}."
        )
    os.replace(part, target)
    return target


def checksum_of(path: Path) -> str:
    """SHA-256 of a file's content in hexadecimal digits.

    >>> checksum_of(Path(os.devnull))[:16]
    'e3b0c44298fc1c14'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(url: str, part: Path, timeout: float) -> None:
    """Append what is missing of `url` to `part`; start again where the server cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(request, timeout=timeout) as response:
            if have and not (response.status == 206 and _first_byte(response) == have):
                have = 0  # the server sent the whole file
            _copy(response, part, have)
    except HTTPError as error:
        if have and error.code == 416:  # no byte after `have`: the part is whole, or not a part of this file
            return
        raise ConnectionError(f"{url} answered {error}. Get the file by hand into {part.parent}.") from error
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise ConnectionError(f"{url} broke off: {error}. {kept} bytes are kept; run again to resume.") from error


def _first_byte(response) -> int:
    """First position of a partial answer: `Content-Range: bytes 100-199/200` gives 100, anything else -1."""
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else -1


def _copy(response, part: Path, have: int) -> None:
    """Write the answer into `part` from position `have` on; a short answer is an error."""
    length = response.headers.get("Content-Length")
    total = have + int(length) if length else None
    bar = tqdm(desc=f"downloading {part.stem}", total=total, initial=have, unit="B", unit_scale=True, delay=2)
    with open(part, "r+b" if have else "wb") as file, bar as progress:
        file.seek(have)
        while block := response.read(BLOCK):
            file.write(block)
            progress.update(len(block))
        received = file.tell()
    if total is not None and received < total:
        raise ConnectionError(f"{received} of {total} bytes arrived")
