"""The cache gives back what the reader gave, notices every change, and survives damage and company."""

import errno
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import time
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tqdm import tqdm

from tests.attack.mutations import mutations
from torchrank.data import cache
from torchrank.data.cache import cached
from torchrank.data.cache import files as cache_files
from torchrank.data.letor import read_letor, side_files
from torchrank.errors import DataError, DataWarning

TEXT = "2 qid:10 1:0.5 2:7 #docid = A inc = 1\n0 qid:10 1:-1 2:0 # é\n1 qid:x 1:1 2:3\n"


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "train.txt"
    path.write_text(TEXT)
    settle(path)
    return path


def settle(path: Path) -> None:
    """As if the file had been written a minute ago."""
    old = time.time() - 60
    os.utime(path, (old, old))


class Counting:
    """A reader that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, path, **options):
        self.calls += 1
        return read_letor(path, **options)


@pytest.fixture
def read():
    return Counting()


def content(lists):
    x = lists.x.dense() if lists.is_sparse else lists.x
    ids = None if lists.document_ids is None else list(lists.document_ids)
    pairs, grades = lists.pairs.tolist(), lists.num_grades
    return (
        x.tolist(),
        lists.labels.tolist(),
        lists.offsets.tolist(),
        list(lists.query_ids),
        ids,
        lists.name,
        pairs,
        grades,
    )


def folder_of(path: Path) -> Path:
    (folder,) = [f for f in path.with_name(path.name + ".torchrank").iterdir() if not f.name.startswith(".")]
    return folder


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("text", [TEXT, "1 qid:a 1:1\n", "1 qid:a\n0 qid:a 1:0\n"])
def test_gives_back_what_was_read(path, read, sparse, text):
    path.write_text(text)
    expected = content(read_letor(path, sparse=sparse))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            lists = cached(path, read, {"sparse": sparse})
            assert content(lists) == expected and lists.is_sparse == sparse
            assert content(lists.subset(torch.tensor([0])))[3] == expected[3][:1]
    assert read.calls == 1


def test_is_mapped_and_never_pickled(path, read, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, refuse)
    lists = [cached(path, read, {}) for _ in range(2)][1]
    assert {file.suffix for file in folder_of(path).iterdir()} == {".npy", ".json"}
    for file in folder_of(path).glob("*.npy"):
        np.load(file, allow_pickle=False)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(folder_of(path) / "x.npy") in maps.read_text()
    before = (folder_of(path) / "x.npy").read_bytes()
    lists.x += 1  # a private page: the file stays
    assert (folder_of(path) / "x.npy").read_bytes() == before


def test_options_and_reader_are_part_of_the_key(path, read):
    assert cached(path, read, {"num_features": 2}).num_features == 2
    assert cached(path, read, {"num_features": 5}).num_features == 5
    assert cached(path, read, {"num_features": 2}).num_features == 2
    cached(path, read_letor, {"num_features": 2})
    assert read.calls == 2


def test_version_is_part_of_the_key(path, read, monkeypatch):
    cached(path, read, {})
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    cached(path, read, {})
    assert read.calls == 2


def test_a_changed_file_is_noticed(path, read, caplog):
    cached(path, read, {})
    path.write_text(TEXT.replace("2 qid", "1 qid"))  # same size
    settle(path)
    assert cached(path, read, {}).labels.tolist() == [1, 0, 1]
    assert read.calls == 2 and sum("the data has changed" in r.message for r in caplog.records) == 1


def test_a_change_behind_old_times_is_noticed(path, read):
    cached(path, read, {})
    status = path.stat()
    path.write_text(TEXT.replace("2 qid", "1 qid"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cached(path, read, {}).labels.tolist() == [1, 0, 1]


def test_a_touched_or_copied_file_keeps_its_cache(path, read):
    cached(path, read, {})
    os.utime(path)
    cached(path, read, {})
    other = path.with_name("copy")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)
    cached(path, read, {})
    assert read.calls == 1


def test_an_unchanged_file_is_not_hashed(path, read, monkeypatch):
    cached(path, read, {})
    manifest = json.loads((folder_of(path) / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["source"]["checked"] += 10**10  # looked at ten seconds later
    cache._write_manifest(folder_of(path) / "manifest.json", manifest)
    monkeypatch.setattr(cache, "_digest", lambda *_: pytest.fail("hashed"))
    cached(path, read, {})
    assert read.calls == 1


def test_a_file_from_the_future_is_not_hashed_for_ever(path, read, monkeypatch):
    future = time.time() + 10**6
    os.utime(path, (future, future))
    monkeypatch.setattr(cache, "FRESH", 10**8)
    time.sleep(0.12)  # its change time is not in the future
    cached(path, read, {})
    monkeypatch.setattr(cache, "_digest", lambda *_: pytest.fail("hashed"))
    cached(path, read, {})
    assert read.calls == 1


def test_hashing_shows_its_progress(path, read, monkeypatch):
    bars, original = [], cache_files.bar

    def bar(**options):
        bars.append((original(**options), options))
        return bars[-1][0]

    monkeypatch.setattr(cache_files, "bar", bar)
    monkeypatch.setattr(tqdm, "update", lambda self, count=1: setattr(self, "n", self.n + count))
    cached(path, read, {})
    shown, options = bars[0]
    assert shown.n == options["total"] == path.stat().st_size and path.name in options["desc"]


@pytest.fixture
def large(path) -> Path:
    """One whose features are too many to be read at every opening."""
    row = " ".join(f"{index}:{index}" for index in range(1, 201))
    path.write_text("".join(f"{i % 3} qid:{i // 10} {row}\n" for i in range(3000)))
    settle(path)
    return path


def test_damage_in_the_middle_of_a_large_file(large, read):
    expected = cached(large, read, {}).x.clone()
    file = folder_of(large) / "x.npy"
    status = file.stat()
    with file.open("r+b") as stream:
        stream.seek(status.st_size // 2)
        byte = stream.read(1)
        stream.seek(status.st_size // 2)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(2):
        assert torch.equal(cached(large, read, {}).x, expected) and read.calls == 2


def test_a_copied_cache_is_read_whole_once(large, read, monkeypatch):
    expected = cached(large, read, {}).x.clone()
    folder = folder_of(large)
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    time.sleep(0.05)
    folder.with_name("copy").rename(folder)
    checked = []
    original = cache_files.checksum
    monkeypatch.setattr(cache_files, "checksum", lambda file: checked.append(file.name) or original(file))
    for count in (1, 1, 1):
        assert torch.equal(cached(large, read, {}).x, expected)
        assert checked.count("x.npy") == count and read.calls == 1
    assert checked.count("labels.npy") == 3  # a small one is looked through each time


def test_the_side_file_is_a_source(path, read):
    path.write_text("1 1:1\n0 1:2\n2 1:3\n")
    side = path.with_name("train.txt.query")
    side.write_text("2\n1\n")
    options = {"qid": "file"}
    sides = side_files(path, options)
    assert sides == [side] and side_files(path, {}) == []
    assert cached(path, read, options, sides=sides).offsets.tolist() == [0, 2, 3]
    side.write_text("1\n2\n")
    assert cached(path, read, options, sides=sides).offsets.tolist() == [0, 1, 3]
    assert cached(path, read, options, sides=sides).offsets.tolist() == [0, 1, 3] and read.calls == 2


def truncate(name):
    def damage(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return damage


def flip(name, place):
    def damage(folder):
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 1
        (folder / name).write_bytes(data)

    return damage


def remove(name):
    return lambda folder: (folder / name).unlink()


def reshape(name):
    return lambda folder: np.save(folder / name, np.load(folder / name)[:-1])


def replace_manifest(text):
    return lambda folder: (folder / "manifest.json").write_text(text)


DAMAGES = [
    *(
        how
        for name in ("x.npy", "labels.npy", "offsets.npy", "query_ids.npy")
        for how in (truncate(name), remove(name))
    ),
    *(
        how
        for name in ("x.npy", "labels.npy", "offsets.npy")
        for how in (flip(name, -1), flip(name, 30), reshape(name))
    ),
    truncate("manifest.json"),
    remove("manifest.json"),
    flip("manifest.json", 40),
    *map(
        replace_manifest,
        ("", "[]", "{}", "[" * 10**5, "null", '{"set": 1}', "\x00\xff", '{"checksum": "' + cache._checksum({}) + '"}'),
    ),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_and_repaired(path, read, caplog, damage):
    expected = content(cached(path, read, {}))
    damage(folder_of(path))
    with caplog.at_level(logging.INFO):
        assert content(cached(path, read, {})) == expected
    assert read.calls == 2 and sum("rebuilding the cache" in r.message for r in caplog.records) == 1
    assert content(cached(path, read, {})) == expected and read.calls == 2
    assert [f.name for f in folder_of(path).parent.iterdir()] == [folder_of(path).name]  # nothing is left lying about


def test_warnings_are_given_again(path, read):
    path.write_text("1 qid:a 1:1\n-1 qid:a 1:2\n")
    for _ in range(2):
        with pytest.warns(DataWarning, match="1 of 2 rows have label -1"):
            cached(path, read, {"unjudged": "drop"})
    assert read.calls == 1


def test_errors_leave_no_cache(path, read):
    path.write_text("bad\n")
    with pytest.raises(DataError, match="line 1"):
        cached(path, read, {})
    assert not path.with_name("train.txt.torchrank").exists()


def test_cache_dir(path, read, tmp_path):
    (tmp_path / "other").mkdir()
    twin = tmp_path / "other" / path.name
    twin.write_text(TEXT.replace("2 qid", "3 qid"))
    for _ in range(2):
        assert cached(path, read, {}, cache_dir=tmp_path / "store").labels[0] == 2
        assert cached(twin, read, {}, cache_dir=tmp_path / "store").labels[0] == 3
    assert read.calls == 2 and not path.with_name("train.txt.torchrank").exists()


def test_a_folder_that_may_not_be_written(path, read, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    path = path.rename(tmp_path / "data" / "train.txt")
    path.parent.chmod(0o555)
    try:
        for _ in range(2):
            assert len(cached(path, read, {})) == 2
    finally:
        path.parent.chmod(0o755)
    assert read.calls == 1 and os.listdir(path.parent) == ["train.txt"]
    assert len(list((tmp_path / "home" / "torchrank").iterdir())) == 1


NOWHERE = {"below a file": "train.txt/store", "a name that is too long": "x" * 300, "no name": "a\0b"}


@pytest.mark.parametrize("place", NOWHERE)
def test_nowhere_to_write(path, read, tmp_path, caplog, place):
    assert len(cached(path, read, {}, cache_dir=tmp_path / NOWHERE[place])) == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{path} is not cached, and will be read again by the next run (") and "\n" not in line
    assert os.listdir(tmp_path) == ["train.txt"]


def test_a_user_without_a_home(path, read, tmp_path, monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert len(cached(path, read, {})) == 2 and folder_of(path).is_dir()


@pytest.mark.parametrize("limit", [1, 100, 200, 300, 2_400_000, 2_400_127, 2_500_000])
def test_a_limit_of_the_size_of_files(large, tmp_path, limit):
    """The run goes on whichever file is the first that does not fit, also if only its last bytes do not."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        lists = cached(large, read_letor, {}, cache_dir=tmp_path / "a" / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(lists) == 300 and float(lists.x.sum()) == 3000 * 20100
    assert sorted(os.listdir(tmp_path)) == (["a", "train.txt"] if limit > 2_400_128 else ["train.txt"])


def test_a_full_disk(path, read, tmp_path, caplog, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    assert len(cached(path, read, {}, cache_dir=tmp_path / "store")) == 2
    assert "store/train.txt-" in caplog.text and "No space left on device" in caplog.text
    assert os.listdir(tmp_path) == ["train.txt"]


def forge(folder: Path, description=None, **arrays) -> None:
    """Change arrays of a cache and its manifest as its owner could: every checksum is right."""
    manifest = cache._read_manifest(folder / "manifest.json")
    manifest["set"].update(description or {})
    for name, array in arrays.items():
        array = np.asarray(array)
        np.save(folder / f"{name}.npy", array)
        known = {"shape": list(array.shape), "dtype": str(array.dtype)}
        manifest["set"]["files"][name] = {**known, **cache_files._check(folder / f"{name}.npy")}
    cache._write_manifest(folder / "manifest.json", manifest)


F4 = np.float32
FORGED = {
    "a NaN label": {"labels": F4([2, np.nan, 1])},
    "an infinite label": {"labels": F4([2, np.inf, 1])},
    "too few labels": {"labels": F4([2, 0])},
    "labels of text": {"labels": np.array(["2", "0", "1"])},
    "a table of labels": {"labels": F4([[2, 0, 1]])},
    "offsets that descend": {"offsets": [0, 3, 2, 3]},
    "offsets that end early": {"offsets": [0, 1, 2]},
    "offsets that start late": {"offsets": [1, 2, 3]},
    "offsets of reals": {"offsets": [0.0, 2.0, 3.0]},
    "no offsets": {"offsets": np.zeros(0, np.int64)},
    "a NaN feature": {"x": F4([[1, 2], [np.nan, 0], [0, 0]])},
    "an infinite feature": {"x": F4([[1, 2], [3, 4], [0, -np.inf]])},
    "complex features": {"x": np.ones((3, 2), complex)},
    "swapped bytes": {"x": np.ones((3, 2), ">f4")},
    "too few rows": {"x": np.ones((2, 2), F4)},
    "ids that overlap": {"query_ids_offsets": [0, 3, 2]},
    "ids beyond the end": {"query_ids_offsets": [0, 2, 99]},
    "ids before the beginning": {"query_ids_offsets": [-2, 2, 3]},
    "too many ids": {"query_ids_offsets": [0, 1, 2, 3]},
    "another width": {"description": {"num_features": 3}},
    "no width": {"description": {"num_features": None}},
    "files of none": {"description": {"files": []}},
    "too many names": {"description": {"feature_names": ["a", "b", "c"]}},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_cache_is_set_aside(path, read, caplog, what):
    expected = content(cached(path, read, {}))
    forge(folder_of(path), **FORGED[what])
    with pytest.raises(DataError, match=r"the cache .*train.txt.torchrank/.* is damaged: ") as caught:
        cache.open_folder(folder_of(path))
    assert "\n" not in str(caught.value)
    assert content(cached(path, read, {})) == expected and read.calls == 2
    assert content(cached(path, read, {})) == expected and read.calls == 2


@pytest.mark.parametrize("columns", [[0, 1, 2, 0], [0, 1, -1, 0]])
def test_columns_that_do_not_exist(path, read, columns):
    expected = content(cached(path, read, {"sparse": True}))
    values = cached(path, read, {"sparse": True}).x.values
    forge(folder_of(path), columns=np.resize(columns, len(values)).astype(np.int32))
    assert content(cached(path, read, {"sparse": True})) == expected and read.calls == 2


def test_mutated_caches_are_repaired(path, read):
    """Any damage of any file: the right values, or the source is read again."""
    expected = content(cached(path, read, {}))
    files = {file: file.read_bytes() for file in sorted(folder_of(path).iterdir())}
    for file, data in files.items():
        for damaged in islice(mutations(data, seed=1), 2):
            file.write_bytes(damaged)
            assert content(cached(path, read, {})) == expected
            for other, whole in files.items():
                other.write_bytes(whole)


def test_mutated_manifests_with_a_right_checksum(path, read):
    expected = content(cached(path, read, {}))
    file = folder_of(path) / "manifest.json"
    manifest = json.dumps(cache._read_manifest(file)).encode()
    read_or_refused = 0
    for damaged in islice(mutations(manifest, seed=2), 80):
        try:
            forged = json.loads(damaged)
            cache._write_manifest(file, forged)
        except (ValueError, TypeError, RecursionError):
            continue
        found = content(cached(path, read, {}))
        assert found[:5] == expected[:5] and found[6:] == expected[6:]  # its name is text of the manifest alone
        read_or_refused += 1
    assert read_or_refused > 5


def test_a_file_that_changes_while_it_is_read(path):
    def read(path):
        lists = read_letor(path)
        path.write_text("1 qid:a 1:1\n")
        return lists

    with pytest.raises(DataError, match="changed while"):
        cached(path, read, {})


@pytest.mark.slow
@pytest.mark.distributed
def test_processes_that_build_at_once(path):
    path.write_text("".join(f"{i % 3} qid:{i // 10} 1:{i} 2:{i / 7}\n" for i in range(20_000)))
    code = (
        "import sys, time; from torchrank.data.cache import cached; from torchrank.data.letor import read_letor\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "lists = cached(sys.argv[1], read_letor, {}); print(float(lists.x.double().sum()), len(lists))"
    )
    command = [sys.executable, "-c", code, str(path), str(time.time() + 2)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=100)[0] for process in processes}
    expected = read_letor(path)
    assert answers == {f"{float(expected.x.double().sum())} {len(expected)}\n"}
    assert [f.name for f in folder_of(path).parent.iterdir()] == [folder_of(path).name]


def test_a_loser_takes_the_winners_cache(path):
    def read(path):
        cached(path, winner, {})  # someone else finishes first
        return read_letor(path)

    winner = Counting()
    winner.__module__, winner.__qualname__ = read.__module__, read.__qualname__
    lists = cached(path, read, {})
    assert content(lists) == content(read_letor(path))
    assert content(cached(path, read, {})) == content(lists) and winner.calls == 1
