"""Download files over HTTP: resumed after an interruption, verified before they get their name."""

import hashlib
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from torchrank.errors import DataError
from torchrank.files import alone
from torchrank.progress import bar

BLOCK = 1 << 20
SLOWEST = 100  # bytes in a second; a connection that is slower for as long as the timeout counts as broken


class Link(NamedTuple):
    """A stable public address of one file, and its path below the data folder."""

    path: str
    url: str
    sha256: str
    size: int


def fetch(links: Sequence[Link], folders: Sequence[Path], *, compressed: Sequence[str] = ()) -> None:
    """Download the missing files into one folder, and verify those that are there. Several processes may call this.

    Args:
        links: the files.
        folders: the first folder that has any of the files is used, otherwise the first one.
        compressed: endings of compressed files; a file that has been compressed since is left alone.

    Example:
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
    """Download the file at `url` to `target`, unless it is there already.

    The bytes are gathered in `<target>.part`; a later call asks the server for the rest only. The file gets its name
    after its SHA-256 was verified, so `target` is complete or absent. Of several processes one downloads while the
    others wait.

    Args:
        url: the address.
        target: the path of the file. One with other content is an error; it is not replaced.
        sha256: the checksum of the content, in hexadecimal digits.
        size: the number of bytes, if it is known.
        timeout: seconds to wait for the server, and in which it has to send a minimum of bytes.

    Returns:
        The path of the file.

    Example:
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
        with alone(target.with_name(target.name + ".lock"), wait=True):
            if not target.exists():  # another process may have finished it
                return _get(url, target, sha256, size, timeout)
    found = target.stat().st_size
    if size not in (None, found) or checksum_of(target) != sha256:
        sizes = f"{found} bytes" + ("" if size is None else f", expected {size}")
        raise DataError(
            f"{target} exists ({sizes}), but its content differs from {url}. Move it away to download it again, or set "
            "data.download=false to use it as it is."
        )
    return target


def _get(url: str, target: Path, sha256: str, size: int | None, timeout: float) -> Path:
    """Download what is missing in the partial file, verify it, and give it its name."""
    part = target.with_name(target.name + ".part")
    if size is None or not part.exists() or part.stat().st_size != size:
        _fetch(url, part, size, timeout)
    found = checksum_of(part)
    if found != sha256:
        part.unlink()
        raise DataError(
            f"{url} has SHA-256 {found}, expected {sha256}: it was changed or damaged on the way. The partial file was "
            f"removed: try again, or put the file into {target.parent} by hand."
        )
    os.replace(part, target)
    return target


def checksum_of(path: Path) -> str:
    """The SHA-256 of the content of a file, in hexadecimal digits.

    Example:
        >>> checksum_of(Path(os.devnull))[:16]
        'e3b0c44298fc1c14'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _WebOnly(HTTPRedirectHandler):
    """Follows redirections to other web addresses, never to local files or other schemes."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if not newurl.startswith(("http://", "https://")):
            raise HTTPError(newurl, code, f"a redirection to {newurl}, which is not a web address", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Prompt:
    """A connection whose answer has to begin in time: the timeout of a socket begins again with every byte."""

    sock: Any
    timeout: Any

    def getresponse(self) -> HTTPResponse:
        clock = Timer(self.timeout, self._end)
        clock.daemon = True
        clock.start()
        try:
            return super().getresponse()  # type: ignore[misc,no-any-return]
        finally:
            clock.cancel()

    def _end(self) -> None:
        with suppress(OSError, AttributeError):  # it may have ended by itself
            self.sock.shutdown(socket.SHUT_RDWR)


class _Plain(_Prompt, HTTPConnection):
    pass


class _Secure(_Prompt, HTTPSConnection):
    pass


class _PlainHandler(HTTPHandler):
    def http_open(self, req: Request) -> Any:
        return self.do_open(_Plain, req)


class _SecureHandler(HTTPSHandler):
    def https_open(self, req: Request) -> Any:
        return self.do_open(_Secure, req)


def _fetch(url: str, part: Path, size: int | None, timeout: float) -> None:
    """Append what is missing of `url` to `part`; start over if the server cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have > size:  # of another file
        part.unlink()
        have = 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with build_opener(_WebOnly, _PlainHandler, _SecureHandler).open(request, timeout=timeout) as response:
            if have and not (response.status == 206 and _first_byte(response) == have):
                have = 0  # the server sent the whole file
            total = _total(response, url, have, size)
            _copy(response, part, have, total, timeout)
    except HTTPError as error:
        if have and error.code == 416:  # no byte after `have`: the part is complete, or belongs to another file
            return
        raise ConnectionError(f"{url} answered {error}. Put the file into {part.parent} by hand.") from error
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise ConnectionError(f"{url} was interrupted: {error}. {kept} bytes are kept: run again to resume.") from error
    except OSError as error:  # of the disk
        kept = part.stat().st_size if part.exists() else 0
        raise DataError(
            f"{part} cannot be written: {error.strerror or error}. {kept} bytes are kept: make room and run again to "
            "resume."
        ) from error


def _first_byte(response: HTTPResponse) -> int:
    """The first position of a partial answer: 100 for `Content-Range: bytes 100-199/200`, -1 for anything else."""
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else -1


def _total(response: HTTPResponse, url: str, have: int, size: int | None) -> int | None:
    """The bytes of the whole file as the server announces them; None if it does not. They must be `size`."""
    told = set(response.headers.get_all("Content-Length") or ())
    if not told:
        return size
    length = told.pop().strip()
    if told or not (length.isascii() and length.isdigit()):
        shown = ", ".join(sorted({length, *told}))
        raise DataError(f"{url}: the server sent the header Content-Length: {shown[:80]}, expected one number of bytes")
    total = have + int(length[:20])
    if size is not None and total != size:
        raise DataError(f"{url}: the server announces {total} bytes (Content-Length), expected {size}")
    return total


def _copy(response: HTTPResponse, part: Path, have: int, total: int | None, timeout: float) -> None:
    """Write the answer into `part` from position `have` on; an answer of another length is an error."""
    shown = bar(desc=f"downloading {part.stem}", total=total, initial=have, unit="B", unit_scale=True, leave=True)
    pace = _Pace(timeout)
    with open(part, "r+b" if have else "wb") as file, shown as progress:
        file.seek(have)
        while (total is None or file.tell() <= total) and (block := response.read1(BLOCK)):
            file.write(block)
            progress.update(len(block))
            pace.add(len(block))
        received = file.tell()
    if total is not None and received > total:
        part.unlink()
        raise DataError(f"{response.url} sent more than the {total} bytes of the file. Nothing was kept: try again.")
    if total is not None and received < total:
        raise ConnectionError(f"{received} of {total} bytes arrived")


class _Pace:
    """Refuses a server that keeps a connection open with a byte now and then."""

    def __init__(self, timeout: float):
        self.timeout, self.start, self.count = timeout, time.monotonic(), 0

    def add(self, count: int) -> None:
        self.count += count
        passed = time.monotonic() - self.start
        if passed < self.timeout:
            return
        if self.count < SLOWEST * passed:
            raise TimeoutError(f"only {self.count} bytes in {passed:.0f} seconds")
        self.start, self.count = time.monotonic(), 0
