"""Damaged files of every kind: readers give what a plain reader finds, or what was written, or one clear line."""

import gzip
import io
import json
import logging
import mmap
import os
import re
import resource
import shutil
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.attack import children, plain
from tests.attack.mutations import mutations
from tests.attack.plain import RefusedError, Values
from tests.attack.tally import Tally
from torchrank import CheckpointError, DataError, RankingSet, load, read_letor
from torchrank.data.cache import cached, open_folder, save_folder
from torchrank.data.formats.arrays import read_npz, write_npz
from torchrank.data.sources.point_tables import read_points
from torchrank.data.sources.tables import read_table
from torchrank.data.sparse import SparseRows
from torchrank.data.trec import read_qrels, read_run
from torchrank.rankers.core.checkpoint_files import write_whole
from torchrank.record import read_run as read_results

HOUSE = (ValueError, DataError, CheckpointError)  # these very classes: others are accidents of a library
MEMORY = 4 << 30  # bytes that a child may take beyond what it begins with
NAMES = ("damaged", "good.txt", "a.torchrank")  # of the files that are read: a message tells one of them
SECONDS = 60.0  # a reader that takes longer for one of these small files hangs


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    name: str
    suffix: str
    written: Callable[[], bytes]  # the file before it is damaged
    read: Callable[[Path], Values]  # by torchrank
    plainly: Callable[[bytes], Values] | None = None  # by other means; None: only what was written is right
    exact: bool = False  # whether what the plain reader finds must be found, and nothing else
    lax: bool = False  # whether files that the plain reader refuses may have values: the format has no checksums
    judged: bool = True  # False: values are not compared, since the file was forged to be right


# ---- values ----------------------------------------------------------------------------------------------------------


def values_of(lists: RankingSet) -> Values:
    x = lists.x.dense() if lists.is_sparse else lists.x
    return {
        "x": x.numpy().astype(np.float32),
        "labels": lists.labels.numpy().astype(np.float32),
        "offsets": lists.offsets.numpy(),
        "queries": None if lists.query_ids is None else list(map(str, lists.query_ids)),
        "documents": None if lists.document_ids is None else list(map(str, lists.document_ids)),
        "names": None if lists.feature_names is None else list(lists.feature_names),
    }


def same(one: Any, other: Any) -> bool:
    """Whether nested values are equal; nan equals nan."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        mine, theirs = np.asarray(one), np.asarray(other)
        number = mine.dtype.kind in "fc" and theirs.dtype.kind in "fc"
        return mine.shape == theirs.shape and bool(np.array_equal(mine, theirs, equal_nan=number))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


# ---- the files -------------------------------------------------------------------------------------------------------


@cache
def letor_text() -> bytes:
    draw = np.random.default_rng(0)
    rows = []
    for query in ("10", "7", "x-3"):
        for document in range(6):
            features = " ".join(f"{index}:{draw.normal():.5g}" for index in range(1, 7) if draw.random() < 0.8)
            rows.append(f"{draw.integers(0, 5)} qid:{query} {features} #docid = D{query}-{document}")
    return "\n".join(rows).encode() + b"\n"


@cache
def lists() -> RankingSet:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(18, 6, generator=draw) * (torch.rand(18, 6, generator=draw) < 0.8)
    labels, offsets = torch.arange(18) % 5, torch.tensor([0, 4, 11, 18])
    names = [f"D{number}" for number in range(18)]
    return RankingSet(x, labels.float(), offsets, query_ids=["10", "7", "x-3"], document_ids=names, name="a")


@cache
def columns() -> dict[str, list[Any]]:
    own = values_of(lists())
    owner = np.repeat(own["queries"], np.diff(own["offsets"])).tolist()
    features = {f"f{place}": [float(f"{v:.6g}") for v in column] for place, column in enumerate(own["x"].T.tolist())}
    return {"label": [int(v) for v in own["labels"]], "query": owner, "document": own["documents"], **features}


@cache
def csv_text() -> bytes:
    rows = zip(*columns().values(), strict=True)
    return "\n".join([",".join(columns()), *(",".join(map(str, row)) for row in rows)]).encode() + b"\n"


def parquet_file(compression: str = "snappy") -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns()), file, compression=compression)
    return file.getvalue()


def arrow_file(compression: str | None, *, stream: bool = False) -> bytes:
    import pyarrow
    import pyarrow.ipc

    file, own = io.BytesIO(), pyarrow.table(columns())
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with (pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file)(file, own.schema, options=options) as writer:
        writer.write_table(own)
    return file.getvalue()


def zstd(text: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(text)


@cache
def npz_file() -> bytes:
    file = io.BytesIO()
    write_npz(file, lists())
    return file.getvalue()


@cache
def points_file() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=values_of(lists())["x"], y=np.arange(18) % 3)
    return file.getvalue()


def mat_file(compressed: bool) -> bytes:
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {"fea": values_of(lists())["x"], "gnd": np.arange(18)[:, None] % 3}, do_compression=compressed)
    return file.getvalue()


@cache
def points_text() -> bytes:
    rows = values_of(lists())["x"]
    return "\n".join(",".join(f"{v:.4g}" for v in row) + f",c{place % 3}" for place, row in enumerate(rows)).encode()


def trec_text(form: str) -> bytes:
    names = [(f"q{query}", f"d{document}") for query in (3, 1, 2) for document in range(5)]
    lines = [form.format(query=q, document=d, place=place, score=7.5 - place) for place, (q, d) in enumerate(names)]
    return "\n".join(lines).encode() + b"\n"


@cache
def results_text() -> bytes:
    measured = {
        "default": {"text": "ties by position", "lists": 4, "empty": 0, "measures": {"ndcg@10": 0.5, "map": None}}
    }
    content = {
        "schema": schema(), "name": "listnet", "ranker": "ListNet", "data": "synthetic", "fold": 1, "seed": 0,
        "settings": {"model.l2": 0.1}, "selection": {"measure": "val/ndcg@10", "value": 0.25, "mode": "max"},
        "certificate": {"proved": True}, "val": measured, "test": measured,
        "seconds": {"data": 1.0, "fit": 2.5, "test": 0.5},
        "density": None, "steps": 7, "findings": {"chosen": 3}, "per_query": "per_query.npz", "config": {"seed": 0},
    }  # fmt: skip
    return json.dumps(content, indent=1).encode()


def schema() -> Any:
    from torchrank.record import SCHEMA

    return SCHEMA


@cache
def checkpoint_file(name: str = "listnet") -> bytes:
    """What a fit writes, for some rankers."""
    from tests.laws.rankers import CASES, sets
    from torchrank.rankers.core.checkpoints import FORMAT

    torch.manual_seed(0)
    case = CASES[name]
    own = sets(case.kind)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        ranker = case.make().fit(own["train"], own["val"], epochs=2, batch_documents=20)
        content = {
            "ranker": type(ranker).__name__,
            "format": FORMAT,
            "hyper_parameters": dict(ranker.hparams),
            "state_dict": ranker.state_dict(),
            "pytorch-lightning_version": "2.5.0",
        }
        path = Path(folder, "a.ckpt")
        write_whole(content, path)
        return path.read_bytes()


# ---- reading by torchrank --------------------------------------------------------------------------------------------


def read_lists(path: Path, **options: Any) -> Values:
    """Rows without their zeros, by query; rows of any width are never spread out."""
    lists = read_letor(path, **options)
    x = lists.x if isinstance(lists.x, SparseRows) else SparseRows.from_dense(lists.x)
    cells = list(zip((x.columns + 1).tolist(), x.values.numpy(), strict=True))
    rows = [dict(cells[start:stop]) for start, stop in pairwise(x.row_offsets.tolist())]
    labelled = list(zip(lists.labels.numpy(), rows, strict=True))
    bounds = pairwise(lists.offsets.tolist())
    return {str(query): labelled[start:stop] for query, (start, stop) in zip(lists.query_ids, bounds, strict=True)}


def plain_lists(data: bytes) -> Values:
    from tests.data.letor import test_letor_fuzz as letor

    try:
        found = letor.plain_read(plain.unpacked(data), {})
    except letor.RefusedError as error:
        raise RefusedError(str(error)) from error
    return {
        query: [(label, {i: v for i, v in row.items() if v}) for label, row in rows] for query, rows in found.items()
    }


def read_table_values(path: Path) -> Values:
    return values_of(read_table(path))


def read_arrays(path: Path) -> Values:
    return values_of(read_npz(path))


def plain_arrays(data: bytes) -> Values:
    found = plain.arrays(data)
    if not {"x", "labels", "offsets"} <= found.keys():
        raise RefusedError("arrays are missing")
    texts = {ours: found.get(theirs) for ours, theirs in
             (("queries", "query_ids"), ("documents", "document_ids"), ("names", "feature_names"))}  # fmt: skip
    numbers = {name: found[name] for name in ("x", "labels", "offsets")}
    return {**numbers, **{name: None if text is None else text.astype(str).tolist() for name, text in texts.items()}}


def read_two(path: Path) -> Values:
    x, classes = read_points(path)
    return {"x": x, "classes": classes.tolist()}


def plain_two(data: bytes) -> Values:
    found = plain.arrays(data)
    return _two(found, "x", "y")


def plain_mat(data: bytes) -> Values:
    from scipy.io import loadmat

    try:
        found = loadmat(io.BytesIO(data))
    except Exception as error:
        raise RefusedError(str(error)) from error
    return _two(found, "fea", "gnd")


def _two(found: Values, features: str, classes: str) -> Values:
    if features not in found or classes not in found:
        raise RefusedError("arrays are missing")
    try:
        with np.errstate(all="ignore"):
            return {"x": found[features].astype(np.float32), "classes": found[classes].reshape(-1).tolist()}
    except (TypeError, ValueError) as error:
        raise RefusedError(str(error)) from error


def read_trec(path: Path, reader: Callable[[Path], Any]) -> Values:
    found = reader(path)
    values = found.scores if hasattr(found, "scores") else found.labels
    return {
        "queries": list(found.query_ids),
        "documents": list(found.document_ids),
        "values": values.tolist(),
        "offsets": found.offsets.numpy(),
    }


def plain_qrels(data: bytes) -> Values:
    found = plain.trec(data, 4, 3)
    with np.errstate(over="ignore"):
        return {**found, "values": np.array(found["values"]).astype(np.float32).tolist()}


def read_one_result(path: Path) -> Values:
    run = read_results(path)
    same_names = ("name", "ranker", "data", "fold", "seed", "settings", "per_query", "findings", "density", "steps")
    return {name: getattr(run, name) for name in same_names} | {
        "selection": [run.measure, run.value, run.mode],
        "measures": {
            split: {name: part["measures"] for name, part in getattr(run, split).items()} for split in ("val", "test")
        },
    }


def plain_result(data: bytes) -> Values:
    content = plain.results(data)
    names = ("name", "ranker", "data", "fold", "seed", "settings", "per_query", "findings", "density", "steps")
    try:
        selection = [content["selection"][key] for key in ("measure", "value", "mode")]
        measures = {split: {name: {key: _nan(value) for key, value in part["measures"].items()}
                            for name, part in content[split].items()} for split in ("val", "test")}  # fmt: skip
        selection[1] = _nan(selection[1])
        return {name: content[name] for name in names} | {"selection": selection, "measures": measures}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RefusedError(str(error)) from error


def _nan(value: Any) -> float:
    return float("nan") if value is None else float(value)


def read_ranker(path: Path) -> Values:
    ranker = load(path)
    state = {
        key: value.numpy() if isinstance(value, torch.Tensor) else repr(value)
        for key, value in ranker.state_dict().items()
    }
    return {"kind": type(ranker).__name__, "options": repr(sorted(ranker.hparams.items())), "state": state}


def forged_pickle(data: bytes) -> bytes:
    """A checkpoint of gbdt in which the pickle of plain values is `data`, with right checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(checkpoint_file("gbdt"))) as own, zipfile.ZipFile(file, "w") as new:
        for name in own.namelist():
            new.writestr(name, data if name.endswith("/data.pkl") else own.read(name))
    return file.getvalue()


@cache
def checkpoint_pickle() -> bytes:
    with zipfile.ZipFile(io.BytesIO(checkpoint_file("gbdt"))) as own:
        return own.read(next(name for name in own.namelist() if name.endswith("/data.pkl")))


def read_forged(path: Path) -> Values:
    path = path.with_suffix(".ckpt")
    path.write_bytes(forged_pickle(path.with_suffix(".pkl").read_bytes()))
    return read_ranker(path)


@cache
def per_query_file() -> bytes:
    file = io.BytesIO()
    facts = {"length": np.arange(6) + 1, "relevant": np.arange(6)}
    np.savez(file, query=np.array([f"q{i}" for i in range(6)]), **{"default/ndcg@10": np.linspace(0, 1, 6)}, **facts)
    return file.getvalue()


def read_per_query(path: Path) -> Values:
    (path.parent / "results.json").write_bytes(results_text().replace(b"per_query.npz", path.name.encode()))
    ids, values = read_results(path.parent / "results.json").queries("default", "ndcg@10")
    return {"ids": ids.tolist(), "values": values}


def plain_per_query(data: bytes) -> Values:
    found = plain.arrays(data)
    try:
        return {"ids": found["query"].tolist(), "values": found["default/ndcg@10"].astype(np.float64)}
    except (KeyError, ValueError, TypeError) as error:
        raise RefusedError(str(error)) from error


LENGTHS = [4, 7, 7]  # of the 18 rows of `letor_text`


def read_sided(path: Path) -> Values:
    """A LETOR file without query ids, the lengths of whose lists are in a damaged file beside it."""
    (path.parent / "good.txt").write_bytes(re.sub(rb" qid:\S+", b"", letor_text()))
    return {"lengths": read_letor(path.parent / "good.txt", qid="file", query_file=path).lengths.tolist()}


def plain_sided(data: bytes) -> Values:
    lines = [line.strip() for line in plain.unpacked(data).removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    if not all(re.fullmatch(rb"[0-9]+", line) for line in lines if line):
        raise RefusedError("no integer")
    lengths = [int(line) for line in lines if line]
    if sum(lengths) != sum(LENGTHS) or 0 in lengths:
        raise RefusedError("another number of rows")
    return {"lengths": lengths}


# ---- folders: a cache is several files -------------------------------------------------------------------------------


@cache
def cache_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        save_folder(Path(folder, "a.torchrank"), lists())
        return {path.name: path.read_bytes() for path in sorted(Path(folder, "a.torchrank").iterdir())}


def packed(files: dict[str, bytes]) -> bytes:
    """Several files in one, so that the mutators find them all."""
    return b"".join(content for _, content in sorted(files.items()))


def unpacked_cache(data: bytes, folder: Path) -> Path:
    """The files of a damaged cache: each has its old length, the last one the rest."""
    target = folder / "a.torchrank"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    names = sorted(cache_files())
    for name in names:
        length = len(cache_files()[name]) if name != names[-1] else len(data)
        (target / name).write_bytes(data[:length])
        data = data[length:]
    return target


def read_cache(path: Path) -> Values:
    return values_of(open_folder(unpacked_cache(path.read_bytes(), path.parent)))


def read_through_cache(path: Path) -> Values:
    """The source is good, and its cache is damaged: it is read again."""
    source, cache_dir = path.parent / "good.txt", path.parent / "cache"
    shutil.rmtree(cache_dir, ignore_errors=True)
    source.write_bytes(letor_text())
    cached(source, read_letor, {}, cache_dir=cache_dir)
    files = sorted(each for each in cache_dir.rglob("*") if each.is_file())
    data = path.read_bytes()
    struck = files[len(data) % len(files)]
    struck.write_bytes(next(mutations(struck.read_bytes(), zlib.crc32(data))))
    logging.disable(logging.CRITICAL)  # it says that it reads the file again
    try:
        return values_of(cached(source, read_letor, {}, cache_dir=cache_dir))
    finally:
        logging.disable(logging.NOTSET)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("LETOR", ".txt", letor_text, read_lists, plain_lists, exact=True),
        Kind("LETOR, gzip", ".gz", lambda: gzip.compress(letor_text(), mtime=0), read_lists, plain_lists),
        Kind("LETOR, zstd", ".zst", lambda: zstd(letor_text()), read_lists, plain_lists),
        Kind("csv", ".csv", csv_text, read_table_values, plain.table),
        Kind("tsv", ".tsv", lambda: csv_text().replace(b",", b"\t"), read_table_values, plain.table),
        Kind("csv, gzip", ".csv.gz", lambda: gzip.compress(csv_text(), mtime=0), read_table_values, plain.table),
        Kind("csv, zstd", ".csv.zst", lambda: zstd(csv_text()), read_table_values, plain.table),
        Kind("parquet", ".parquet", parquet_file, read_table_values, plain.parquet, lax=True),
        Kind("parquet, zstd", ".parquet", partial(parquet_file, "zstd"), read_table_values, plain.parquet, lax=True),
        Kind("Arrow", ".arrow", partial(arrow_file, None), read_table_values, plain.arrow, lax=True),
        Kind("Arrow, zstd", ".feather", partial(arrow_file, "zstd"), read_table_values, plain.arrow, lax=True),
        Kind("Arrow stream", ".arrows", partial(arrow_file, None, stream=True), read_table_values, plain.arrow,
             lax=True),
        Kind("list lengths", ".query", lambda: b"4\n7\n7\n", read_sided, plain_sided, exact=True),
        Kind("npz", ".npz", npz_file, read_arrays, plain_arrays),
        Kind("npz of points", ".npz", points_file, read_two, plain_two),
        Kind("mat", ".mat", partial(mat_file, False), read_two, plain_mat),
        Kind("mat, compressed", ".mat", partial(mat_file, True), read_two, plain_mat),
        Kind("TREC run", ".run", partial(trec_text, "{query} Q0 {document} {place} {score} bm25"),
             partial(read_trec, reader=read_run), partial(plain.trec, width=6, value=4), exact=True),
        Kind("TREC qrels", ".qrels", partial(trec_text, "{query} 0 {document} {place}"),
             partial(read_trec, reader=read_qrels), plain_qrels, exact=True),
        Kind("cache", ".bin", lambda: packed(cache_files()), read_cache),
        Kind("cache beside its source", ".bin", letor_text, read_through_cache),
        Kind("values per query", ".npz", per_query_file, read_per_query, plain_per_query),
        Kind("results.json", ".json", results_text, read_one_result, plain_result),
        *(Kind(f"checkpoint of {name}", ".ckpt", partial(checkpoint_file, name), read_ranker)
          for name in ("listnet", "mlp_ranknet", "gbdt", "lgmml")),
        Kind("checkpoint, forged", ".pkl", checkpoint_pickle, read_forged, judged=False),
    )
}  # fmt: skip


# ---- the attack ------------------------------------------------------------------------------------------------------


def judge(kind: Kind, data: bytes, folder: Path) -> tuple[str, str]:
    """("refused" | "as written" | "read", what is wrong)."""
    path = folder / f"damaged{kind.suffix}"
    path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = kind.read(path)
    except Exception as error:
        return "refused", _refusal(kind, error, data)
    if not kind.judged:
        return "read", ""
    try:
        expected = kind.plainly(data) if kind.plainly else None
    except RefusedError as error:
        expected, why = None, str(error)
    else:
        why = "the values differ"
    if expected is not None and same(found, expected):
        return "read", ""
    if not kind.exact and same(found, original(kind.name)):
        return "as written", ""
    if kind.lax and expected is None:
        return "refused by the other reader alone", ""
    return "read", f"wrong values ({why})"


def _refusal(kind: Kind, error: Exception, data: bytes) -> str:
    """What is wrong with an error: its class, its form, or that the file is good."""
    text = str(error)
    if type(error) not in HOUSE:
        return f"{type(error).__name__}: {text[:200]!r}"
    if "\n" in text or not any(name in text for name in NAMES):
        return f"a message without the file, or of several lines: {text[:300]!r}"
    if kind.exact:
        try:
            kind.plainly(data)
        except RefusedError:
            return ""
        return f"a good file is refused: {text[:200]!r}"
    return ""


@cache
def original(name: str) -> Values:
    """What torchrank reads from the file before it is damaged."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"damaged{kind.suffix}")
        path.write_bytes(kind.written())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kind.read(path)


def damaged(name: str, seed: int, count: int) -> Iterator[bytes]:
    return islice(mutations(KINDS[name].written(), seed), count)


def attack_here(
    name: str, seed: int, count: int, begin: int = 0, tell: Callable[[int], None] = lambda number: None
) -> Tally:
    """Read so many damaged files in this process."""
    tally = Tally("inputs", name)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(damaged(name, seed, count)):
            if number < begin:
                continue
            tell(number)
            result, wrong = judge(KINDS[name], data, Path(folder))
            tally.tries += 1
            tally.count(result)
            if wrong:
                tally.failures.append(f"{name}, seed {seed}, number {number}: {wrong}")
    return tally


def attack(name: str, seed: int, count: int, begin: int = 0) -> Tally:
    """The same in children, which may die or hang; the file at which one does is counted, and the next goes on."""
    place = mmap.mmap(-1, 8)
    place[:8] = struct.pack("q", begin)
    with tempfile.TemporaryDirectory() as folder:
        work = partial(_work, name, seed, count, begin, place, Path(folder, "tally"))
        output = Path(folder, "output")
        code = children.watch(children.start(work, output, {"POLARS_MAX_THREADS": "1"}), place, SECONDS)
        if code == 0:
            return Tally(**json.loads(Path(folder, "tally").read_text()))
        said = output.read_text(errors="replace").strip().splitlines()[-1:]
    (reached,) = struct.unpack("q", place[:8])
    wrong = f"{name}, seed {seed}, number {reached}: the process ended with {code} {' '.join(said)[:200]}"
    tally = Tally("inputs", name, 1, [wrong])
    if reached > begin:
        tally.add(attack(name, seed, reached, begin))
    if reached + 1 < count:
        tally.add(attack(name, seed, count, reached + 1))
    return tally


def _work(name: str, seed: int, count: int, begin: int, place: mmap.mmap, result: Path) -> None:
    _limit_memory()

    def tell(number: int) -> None:
        place[:8] = struct.pack("q", number)

    found = attack_here(name, seed, count, begin, tell)
    result.write_text(json.dumps(vars(found)))


def _limit_memory() -> None:
    """A file that asks for absurd sizes is a MemoryError, not a machine without memory."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
