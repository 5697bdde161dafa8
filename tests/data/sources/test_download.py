"""Downloads against a server on the loopback: plain, resumed, cut, without Range, changed content."""

import contextlib
import errno
import hashlib
import multiprocessing
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from torchrank.data.sources import download as downloads
from torchrank.data.sources.download import Link, download, fetch
from torchrank.errors import DataError

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; the server object says whether it knows Range and after how many bytes it hangs up."""

    def do_GET(self):
        self.server.requests.append(self.headers.get("Range"))
        if self.path != "/file":
            return self.send_error(404, "Not Found")
        first = 0
        if self.server.ranges and self.headers.get("Range"):
            first = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        if first >= len(CONTENT):
            return self.send_error(416)
        time.sleep(self.server.pause)
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - first))
        self.end_headers()
        last = len(CONTENT) if self.server.cut is None else first + self.server.cut
        self.wfile.write(CONTENT[first:last])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests, server.ranges, server.cut, server.pause = [], True, None, 0
        server.url = f"http://127.0.0.1:{server.server_address[1]}/file"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_whole_file_and_no_second_request(server, tmp_path):
    target = tmp_path / "folder" / "file.bin"
    assert download(server.url, target, sha256=SHA256, size=len(CONTENT)) == target
    assert target.read_bytes() == CONTENT
    download(server.url, target, sha256=SHA256)
    assert server.requests == [None]
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]


def test_a_cut_connection_keeps_the_part_and_the_next_call_resumes(server, tmp_path):
    target = tmp_path / "file.bin"
    server.cut = 1_234_567
    with pytest.raises(ConnectionError, match=r"1234567 of 3000000 bytes.*run again to resume"):
        download(server.url, target, sha256=SHA256)
    assert not target.exists()
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:1_234_567]
    server.cut = None
    download(server.url, target, sha256=SHA256)
    assert target.read_bytes() == CONTENT
    assert server.requests == [None, "bytes=1234567-"]


def test_many_cuts_end_in_the_right_file(server, tmp_path):
    server.cut = 700_000
    for _ in range(4):
        with pytest.raises(ConnectionError):
            download(server.url, tmp_path / "file", sha256=SHA256)
    assert download(server.url, tmp_path / "file", sha256=SHA256).read_bytes() == CONTENT


def test_a_server_without_range_starts_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    assert download(server.url, tmp_path / "file", sha256=SHA256).read_bytes() == CONTENT


def test_a_complete_part_needs_its_name_only(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    download(server.url, tmp_path / "file", sha256=SHA256, size=len(CONTENT))
    assert server.requests == []
    (tmp_path / "again.part").write_bytes(CONTENT)  # size unknown: the server answers 416
    assert download(server.url, tmp_path / "again", sha256=SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize("old", [b"other bytes", CONTENT + b"too long"], ids=["wrong", "too long"])
def test_a_part_of_another_file_is_found_out_and_removed(server, tmp_path, old):
    (tmp_path / "file.part").write_bytes(old)
    with pytest.raises(DataError, match="expected " + SHA256):
        download(server.url, tmp_path / "file", sha256=SHA256)
    assert not list(tmp_path.iterdir())
    assert download(server.url, tmp_path / "file", sha256=SHA256).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path):
    with pytest.raises(DataError, match=f"SHA-256 {SHA256}, expected {'0' * 64}.*try again"):
        download(server.url, tmp_path / "file", sha256="0" * 64)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_never_replaced(server, tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(DataError, match="Move it away"):
        download(server.url, tmp_path / "file", sha256=SHA256)
    with pytest.raises(DataError, match=r"file exists \(4 bytes, expected 3000000\).*data.download=false"):
        download(server.url, tmp_path / "file", sha256=SHA256, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == b"mine" and server.requests == []


def start(server, target):
    """A process of its own that downloads."""
    options = {"sha256": SHA256, "size": len(CONTENT)}
    process = multiprocessing.get_context("fork").Process(target=download, args=(server.url, target), kwargs=options)
    process.start()
    return process


@pytest.mark.distributed
def test_of_several_processes_one_downloads(server, tmp_path):
    server.pause = 0.3
    processes = [start(server, tmp_path / "file") for _ in range(4)]
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4 and server.requests == [None]
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.distributed
def test_another_process_takes_over_from_one_that_failed_or_was_killed(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    server.pause, server.cut = 0.5, 500
    processes = [start(server, tmp_path / "file")]
    while not server.requests:
        time.sleep(0.01)
    processes.append(start(server, tmp_path / "file"))
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[1].join(30)
    assert processes[1].exitcode == 1 and (tmp_path / "file.part").read_bytes() == CONTENT[:1500]  # the line was cut
    server.pause, server.cut = 0, None
    assert download(server.url, tmp_path / "file", sha256=SHA256).read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-", "bytes=1000-", "bytes=1500-"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_fetch_fills_up_the_folder_that_has_some_of_the_files(server, tmp_path):
    links = [Link(name, server.url, SHA256, len(CONTENT)) for name in ("a", "b", "c")]
    folders = [tmp_path, tmp_path / "one", tmp_path / "two"]
    (tmp_path / "two").mkdir()
    (tmp_path / "two/a").write_bytes(CONTENT)
    (tmp_path / "two/b.gz").write_bytes(b"compressed since")
    fetch(links, folders, compressed=[".gz"])
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["a", "b.gz", "c"]
    fetch(links, folders, compressed=[".gz"])
    assert len(server.requests) == 1
    (tmp_path / "two/c").write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(DataError, match=r"two/c exists .*content"):
        fetch(links, folders, compressed=[".gz"])
    fetch(links, folders[:2])
    assert all((tmp_path / name).read_bytes() == CONTENT for name in "abc")


def test_missing_files_and_servers_say_what_to_do(server, tmp_path):
    with pytest.raises(ConnectionError, match=r"answered.*404.*by hand"):
        download(server.url + "s", tmp_path / "file", sha256=SHA256)
    with pytest.raises(ConnectionError, match="run again to resume"):
        download("http://127.0.0.1:9/file", tmp_path / "file", sha256=SHA256, timeout=2)


class Raw(BaseHTTPRequestHandler):
    """Sends the headers and the pieces of the body that the server object holds, with a pause after each piece."""

    def do_GET(self):
        self.send_response(self.server.code)
        for name, value in self.server.headers:
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            for piece in self.server.pieces:
                self.wfile.write(piece)
                time.sleep(self.server.pause)

    def log_message(self, *_):
        pass


@pytest.fixture
def raw():
    with ThreadingHTTPServer(("127.0.0.1", 0), Raw) as server:
        server.code, server.headers, server.pieces, server.pause = 200, [], [b"12345"], 0
        server.url = f"http://127.0.0.1:{server.server_address[1]}/file"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


FIVE = {"sha256": hashlib.sha256(b"12345").hexdigest(), "size": 5}


@pytest.mark.parametrize("value", ["abc", "-5", "5.0", "", " ", "1" * 5000, "4", "6", "999999999999999"])
def test_a_wrong_content_length_is_a_located_error(raw, tmp_path, value):
    raw.headers = [("Content-Length", value)]
    with pytest.raises(DataError, match=rf"^{raw.url}: .*Content-Length") as caught:
        download(raw.url, tmp_path / "file", **FIVE)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250 and not list(tmp_path.iterdir())


def test_two_content_lengths(raw, tmp_path):
    raw.headers = [("Content-Length", "5"), ("Content-Length", "7")]
    with pytest.raises(DataError, match="Content-Length: 5, 7, expected one"):
        download(raw.url, tmp_path / "file", **FIVE)
    raw.headers = [("Content-Length", "5"), ("Content-Length", "5")]
    assert download(raw.url, tmp_path / "file", **FIVE).read_bytes() == b"12345"


def test_a_body_that_is_longer_than_the_file_ends_the_download(raw, tmp_path):
    raw.pieces = [b"x" * 100_000] * 1000
    with pytest.raises(DataError, match="sent more than the 5 bytes"):
        download(raw.url, tmp_path / "file", **FIVE)
    assert not list(tmp_path.iterdir())
    raw.pieces = [b"12345"]
    assert download(raw.url, tmp_path / "file", **FIVE).read_bytes() == b"12345"


def test_a_part_that_is_too_long_is_dropped(raw, tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 10)
    assert download(raw.url, tmp_path / "file", **FIVE).read_bytes() == b"12345"


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/file", "data:,12345"])
def test_redirections_to_other_schemes_are_refused(raw, tmp_path, url):
    raw.code, raw.headers = 302, [("Location", url)]
    with pytest.raises(ConnectionError, match=r"answered.*[Rr]edirection to"):
        download(raw.url, tmp_path / "file", **FIVE)
    assert not list(tmp_path.iterdir())


def test_a_server_that_drips_is_left(raw, tmp_path):
    raw.pieces, raw.pause = [b"x"] * 100, 0.1
    with pytest.raises(ConnectionError, match=r"only \d+ bytes in .* seconds.*run again to resume"):
        download(raw.url, tmp_path / "file", sha256="0" * 64, size=100, timeout=0.4)
    assert not (tmp_path / "file").exists()


class Slow(Raw):
    """Sends a byte of its headers now and then, without end."""

    def do_GET(self):
        with contextlib.suppress(OSError):
            for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 100:
                self.wfile.write(bytes([byte]))
                time.sleep(0.1)


def test_a_server_that_drips_its_headers_is_left(raw, tmp_path):
    raw.RequestHandlerClass = Slow
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"was interrupted.*run again to resume"):
        download(raw.url, tmp_path / "file", **FIVE, timeout=0.4)
    assert time.monotonic() - began < 5


def test_a_full_disk_is_one_line_and_what_has_arrived_is_kept(raw, tmp_path, monkeypatch):
    class Full:
        """A file on a disk with room for three more bytes."""

        def __init__(self, *args):
            self.file = open(*args)  # noqa: SIM115

        def write(self, data):
            self.file.write(data[:3])
            raise OSError(errno.ENOSPC, "No space left on device")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

    monkeypatch.setattr(downloads, "open", Full, raising=False)
    told = rf"^{tmp_path}/file.part cannot be written: No space left on device. 3 bytes are kept: make room"
    with pytest.raises(DataError, match=told):
        download(raw.url, tmp_path / "file", **FIVE)
    monkeypatch.undo()
    assert download(raw.url, tmp_path / "file", **FIVE).read_bytes() == b"12345"
