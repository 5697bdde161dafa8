"""The reader on files written by hand, on the real ones, and against scikit-learn."""

import gzip
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrank.data import SparseRows, letor
from torchrank.data.letor import read_letor
from torchrank.data.letor.files import read_blocks
from torchrank.errors import DataError, DataWarning

DATA = os.environ.get("TORCHRANK_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="TORCHRANK_DATA is not set to a folder with MQ2008 and the LightGBM example"
)
BIG = float(np.finfo(np.float32).max)


@pytest.fixture
def write(tmp_path):
    def write(content: str | bytes, name: str = "data.txt") -> Path:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return write


def quiet(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_letor(path, **options)


def parts(lists):
    x = lists.x.dense() if lists.is_sparse else lists.x
    ids = None if lists.document_ids is None else list(lists.document_ids)
    return x.tolist(), lists.labels.tolist(), lists.offsets.tolist(), list(lists.query_ids), ids


def rejects(path, *needles, error=DataError, **options):
    with pytest.raises(error) as caught:
        read_letor(path, **options)
    for needle in (str(path), *needles):
        assert needle in str(caught.value), caught.value


def test_dense_file(write):
    lists = quiet(write("2 qid:10 1:0.5 2:7\n0 qid:10 1:-1e-3 2:0\n1.5 qid:x9 1:1. 2:.5\n"))
    assert lists.x.dtype == lists.labels.dtype == torch.float32 and lists.offsets.dtype == torch.int64
    values = np.float32([[0.5, 7], [-1e-3, 0], [1, 0.5]]).tolist()
    assert parts(lists) == (values, [2.0, 0.0, 1.5], [0, 2, 3], ["10", "x9"], None)
    assert lists.num_grades == 0 and len(lists) == 2


@pytest.mark.parametrize(
    "text",
    [
        "1 qid:a 1:1 3:2\r\n0 qid:a 2:5\r\n",
        "1 qid:a 1:1 3:2\n\n  \n0 qid:a 2:5",
        "1 qid:a 1:1 3:2\r\n\r\n0 qid:a 2:5\n",
        "\ufeff1 qid:a 1:1 3:2 \n0 qid:a 2:5 \n",
        "1\tqid:a\t1:1\t3:2\n 0  qid:a   2:5\t \n",
        "# a header\n1 qid:a 3:2 1:1\n0 qid:a 2:5\n#\n",
        "1 qid:a 3:2 1:1 2:0\n0 qid:a 2:5 3:-0\n",
        "+1 qid:a 3:+2 1:1e0\n0 qid:a 2:0005.00 \n",
        "1.0e0 qid:a 03:2 1:10E-1\n-0 qid:a 2:5",
    ],
)
def test_one_content_in_many_forms(write, text):
    lists = quiet(write(text))
    assert parts(lists)[:4] == ([[1.0, 0.0, 2.0], [0.0, 5.0, 0.0]], [1.0, 0.0], [0, 2], ["a"])


def test_compressed(write):
    zstandard = pytest.importorskip("zstandard")
    text = b"1 qid:a 1:1 3:2\n0 qid:a 2:5\n" * 1000
    expected = parts(quiet(write(text)))
    packed, framed = gzip.compress(text), zstandard.compress(text[:14_000]) + zstandard.compress(text[14_000:])
    for content in (packed, framed, zstandard.compress(text)):
        assert parts(quiet(write(content, "packed.txt"))) == expected
    rejects(write(packed[:-20]), "damaged or truncated")
    rejects(write(zstandard.compress(text)[:-3]), "damaged or truncated")
    rejects(write(packed[:10] + b"\xff" * 20 + packed[30:]), "damaged or truncated")


def test_zstd_without_its_package_names_it(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImportError, match=r"reading .zst files needs zstandard: pip install 'torchrank-ltr\[zstd\]'"):
        read_letor(write(b"\x28\xb5\x2f\xfd and more", "packed.zst"))


def test_comments_are_document_ids(write):
    rows = [
        "1 qid:1 1:1 #docid = GX000-00-0000000 inc = 1 prob = 0.08",
        '0 qid:1 1:2 # b, "7": x ',
        "0 qid:1 1:3",
        "2 qid:1 1:4 #é#",
    ]
    text = "\n".join(rows)
    assert parts(quiet(write(text)))[4] == ["GX000-00-0000000", 'b, "7": x', "", "é#"]


def test_empty_comments_are_no_ids(write):
    assert quiet(write("1 qid:1 1:1 #\n0 qid:1 1:2 # \n")).document_ids is None


def test_queries_that_are_not_contiguous(write):
    text = "0 qid:a 1:1 #0\n1 qid:b 1:2 #1\n2 qid:a 1:3 #2\n0 qid:c 1:4 #3\n1 qid:b 1:5 #4\n2 qid:a 1:6 #5\n"
    with pytest.warns(DataWarning, match="2 of 3 queries are not contiguous"):
        lists = read_letor(write(text))
    x, labels, offsets, queries, documents = parts(lists)
    assert x == [[1.0], [3.0], [6.0], [2.0], [5.0], [4.0]] and labels == [0.0, 2.0, 2.0, 1.0, 1.0, 0.0]
    assert (offsets, queries, documents) == ([0, 3, 5, 6], ["a", "b", "c"], ["0", "2", "5", "1", "4", "3"])
    with pytest.warns(DataWarning):
        sparse = read_letor(write(text), sparse=True)
    assert sparse.is_sparse and parts(sparse)[:3] == (x, labels, offsets)


def test_query_in_the_comment(write):
    lists = quiet(write("1 1:1 # 7\n0 2:1 #7\n2 1:3 # 8 \n"), qid="comment")
    assert parts(lists)[2:] == ([0, 2, 3], ["7", "8"], None)
    rejects(write("1 1:1 # 7\n0 2:1 #\n"), "line 2", "qid=comment", qid="comment")
    rejects(write("1 qid:3 1:1 # 7\n"), "line 1", "'qid:3'", qid="comment")


@pytest.mark.parametrize("suffix", [".query", ".group"])
def test_query_in_a_side_file(write, suffix):
    path = write("1 1:1\n0 2:1 # d\n2 1:3\n")
    rejects(path, "data.txt.query", "data.txt.group", qid="file", error=FileNotFoundError)
    side = write("2\r\n\n1", path.name + suffix)
    assert parts(quiet(path, qid="file"))[2:] == ([0, 2, 3], ["1", "2"], ["", "d", ""])
    assert len(quiet(path, qid="file", query_file=write("3\n", "other"))) == 1
    rejects(path, "3 rows", "4", qid="file", query_file=write("2\n2\n", "other"))
    for wrong in ("2\n-1\n", "2\n0\n3", "2\n1.0\n", "2\n1 0\n", "2\nx", "2\n" + "9" * 30):
        side.write_text(wrong)
        with pytest.raises(DataError, match=r"line 2: list length .*: expected one integer >= 1"):
            read_letor(path, qid="file")
    rejects(write("1 qid:3 1:1\n"), "'qid:3'", qid="file", query_file=write("1", "one"))


@pytest.mark.parametrize("packed", ["rank.train.gz", "rank.train.zst"])
@pytest.mark.parametrize("suffix", [".query", ".group"])
def test_side_file_of_a_compressed_file(write, packed, suffix):
    path = write(gzip.compress(b"1 1:1\n0 2:1\n2 1:3\n"), packed)
    names = f"{packed}.query", "rank.train.query", "rank.train.group"
    rejects(path, *names, qid="file", error=FileNotFoundError)
    with pytest.raises(FileNotFoundError) as caught:
        read_letor(path, qid="file")
    assert "data.query_file" not in str(caught.value)
    write("1\n2\n", "rank.train" + suffix)
    assert quiet(path, qid="file").offsets.tolist() == [0, 1, 3]
    write("2\n1\n", packed + suffix)  # the nearer name comes first
    assert quiet(path, qid="file").offsets.tolist() == [0, 2, 3]


def test_unjudged_rows(write):
    path = write("1 qid:a 1:1 #x\n-1 qid:a 1:2 #y\n-1.0 qid:b 1:3 #z\n2 qid:c 1:4 2:3 #w\n")
    rejects(path, "line 2", "'-1'", "unjudged=drop")
    lost = r"2 of 4 rows have label -1 and were dropped \(unjudged=drop\); 1 queries lost all their rows"
    with pytest.warns(DataWarning, match=lost):
        assert parts(read_letor(path, unjudged="drop")) == (
            [[1.0, 0.0], [4.0, 3.0]],
            [1.0, 2.0],
            [0, 1, 2],
            ["a", "c"],
            ["x", "w"],
        )
    with pytest.warns(DataWarning, match="2 of 4 rows have label -1 and got label 0"):
        assert read_letor(path, unjudged=0).labels.tolist() == [1, 0, 0, 2]
    plain = write("1 1:1\n-1 1:2\n-1 1:3\n2 1:4\n")
    with pytest.warns(DataWarning, match=lost):
        lists = read_letor(plain, qid="file", query_file=write("2\n1\n1\n", "q"), unjudged="drop")
    assert parts(lists)[1:4] == ([1.0, 2.0], [0, 1, 2], ["1", "3"])
    with pytest.warns(DataWarning) as caught:
        read_letor(write("-1 qid:a 1:1\n1 qid:b 1:1\n0 qid:a 1:2\n"), unjudged="drop")
    assert not any("lost" in str(warning.message) for warning in caught)
    with pytest.warns(DataWarning), pytest.raises(DataError, match="leaves none"):
        read_letor(write("-1 qid:a 1:1\n"), unjudged="drop")
    for label in ("-2", "-0.5", "-1e-3"):
        path = write(f"{label} qid:a 1:1\n1 qid:a 1:2\n")
        rejects(path, "line 1", f"'{label}'", "unjudged=drop")
        with pytest.warns(DataWarning):
            assert read_letor(path, unjudged=0).labels.tolist() == [0, 1]


def test_missing_values(write):
    path = write("1 qid:a 1:NULL 2:2\n0 qid:a 1:3 2:NULL \n")
    rejects(path, "line 1", "'1:NULL'", "missing=0")
    with pytest.warns(DataWarning, match="2 NULL values were replaced by -7"):
        assert read_letor(path, missing=-7).x.tolist() == [[-7, 2], [3, -7]]
    for wrong in ("1:NULLNULL", "1:NULL5", "1:null", "NULL:1", "1:", "1:NUL", ":NULL", "1:2:NULL"):
        rejects(write(f"1 qid:a 2:NULL\n1 qid:a {wrong} 2:2\n"), "line 2", repr(wrong), missing=0)
    rejects(write("NULL qid:a 1:1"), "line 1", "'NULL'", missing=0)


def test_sentinels(write):
    path = write("1 qid:a 1:1.79769313486e+308 2:2\n0 qid:a 1:-1e39 2:1e999\n")
    rejects(path, "line 1", "'1:1.79769313486e+308'", "sentinel=0 ", "sentinel=clip")
    with pytest.warns(DataWarning, match="3 values beyond float32 were clipped"):
        assert read_letor(path, sentinel="clip").x.tolist() == [[BIG, 2], [-BIG, BIG]]
    for number in (0, -1.5):
        with pytest.warns(DataWarning, match=f"3 values beyond float32 were replaced by {number} "):
            assert read_letor(path, sentinel=number).x.tolist() == [[number, 2], [number, number]]
    assert quiet(write(f"1 qid:a 1:{BIG!r} 2:1e-300\n")).x.tolist() == [[BIG, 0.0]]
    for word in ("inf", "-inf", "nan", "NaN", "Infinity", "1e"):
        rejects(write(f"1 qid:a 1:{word}\n"), "line 1", repr(f"1:{word}"), sentinel="clip")


@pytest.mark.parametrize(
    ("row", "token"),
    [
        ("x qid:a 1:1", "'x'"),
        ("nan qid:a 1:1", "'nan'"),
        ("1e39 qid:a 1:1", "'1e39'"),
        ("1_0 qid:a 1:1", "'1_0'"),
        ("1", "''"),
        ("1 1:2", "'1:2'"),
        ("1 qid: 1:2", "'qid:'"),
        ("1 QID:3 1:2", "'QID:3'"),
        ("qid:3 1:2", "'qid:3'"),
        ("1 qid:a qid:b 1:2", "'qid:b'"),
        ("1 qid:a 1:1 1:2", "'1:2'"),
        ("1 qid:a 3:0 1:1 3:0", "'3:0'"),
        ("1 qid:a 0:1", "'0:1'"),
        ("1 qid:a -1:1", "'-1:1'"),
        ("1 qid:a +1:1", "'+1:1'"),
        ("1 qid:a 1.0:1", "'1.0:1'"),
        ("1 qid:a 2147483648:1", "'2147483648:1'"),
        ("1 qid:a 18446744073709551617:1", "'18446744073709551617:1'"),
        ("1 qid:a 1", "'1'"),
        ("1 qid:a 1:", "'1:'"),
        ("1 qid:a :1", "':1'"),
        ("1 qid:a :", "':'"),
        ("1 qid:a 1:2:3", "'1:2:3'"),
        ("1 qid:a 1: 2", "'1:'"),
        ("1 qid:a 1:2,3:4", "'1:2,3:4'"),
        ("1 qid:a 1,2", "'1,2'"),
        ('1 qid:a 1:"2"', "'1:\"2\"'"),
        ("1 qid:a 1:0x1", "'1:0x1'"),
        ("1 qid:a 1:1_000", "'1:1_000'"),
        ("1 qid:a 1:1d5", "'1:1d5'"),
        ("1 qid:a 1:--1", "'1:--1'"),
        ("1 qid:a 1:\u0661", "\\u0661"),
        ("1 qid:a \ufeff1:1", "\\ufeff1:1"),
        ("1 qid:a 1:1\x00", "'1:1\\x00'"),
        ("1 qid:a 1:.", "'1:.'"),
    ],
)
def test_bad_rows_are_located(write, row, token):
    path = write(f"0 qid:a 1:5 2:3\n\n{row}\n2 qid:a 1:1\n")
    rejects(path, "line 3:", token, "expected")
    rejects(write(f"0 qid:a 1:5 2:3\r\n\r\n{row}"), "line 3:", token)


def test_long_tokens_in_messages_are_cut(write):
    with pytest.raises(DataError) as caught:
        read_letor(write("1 qid:a 1:" + "x" * 10_000))
    assert len(str(caught.value)) < 500


def test_num_features(write):
    path = write("1 qid:a 1:1 3:2\n1 qid:a 4:1\n")
    assert quiet(path, num_features=6).x.shape == (2, 6)
    rejects(
        path,
        "line 2",
        "'4:1'",
        "index 4 is larger than the number of features 3",
        "that of the training file unless data.num_features is set",
        "data.num_features=4 or more",
        num_features=3,
    )
    assert quiet(path, num_features=6, sparse=True).x.shape == (2, 6)


def test_sparse_or_dense(write):
    quarter, less = "1 qid:a 1:1\n" * 3 + "0 qid:a 4:1\n", "1 qid:a 1:1\n" * 3 + "0 qid:a 5:1\n"
    assert not quiet(write(quarter)).is_sparse
    lists = quiet(write(less))
    assert isinstance(lists.x, SparseRows) and lists.x.shape == (4, 5) and lists.x.dtype == torch.float32
    assert lists.x.dense().tolist() == quiet(write(less), sparse=False).x.tolist()
    assert quiet(write(quarter), sparse=True).x.dense().tolist() == quiet(write(quarter)).x.tolist()
    written_zero = quiet(write("1 qid:a 1:0 5:2\n0 qid:a\n"), sparse=True).x
    assert written_zero.values.tolist() == [2.0] and written_zero.columns.tolist() == [4]
    assert written_zero.row_offsets.tolist() == [0, 1, 1]


def test_no_feature_at_all(write):
    for sparse in (None, True, False):
        rejects(write("1 qid:a\n\n0 qid:b\n"), "2 rows without any feature", sparse=sparse)
    assert quiet(write("1 qid:a\n0 qid:a\n"), num_features=3).x.shape == (2, 3)
    with pytest.warns(DataWarning):
        rejects(write("1 qid:a\n-1 qid:a 1:3\n"), "1 rows without any feature", unjudged="drop")


def test_empty_files(write):
    for text in ("", "\n \n", "# only a comment\n", "\ufeff"):
        rejects(write(text), "no rows")
    with pytest.raises(FileNotFoundError):
        read_letor("nowhere.txt")


@pytest.mark.parametrize(
    "options",
    [
        {"qid": "x"},
        {"unjudged": "fill"},
        {"unjudged": -1},
        {"unjudged": -2.0},
        {"missing": float("nan")},
        {"sentinel": "drop"},
        {"sentinel": 1e39},
        {"num_features": 0},
        {"query_file": "q"},
    ],
)
def test_unknown_options(write, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        read_letor(write("1 qid:a 1:1\n"), **options)


def random_file(generator, rows: int, features: int, share: float) -> str:
    lines = []
    for row in range(rows):
        columns = np.flatnonzero(generator.random(features) < share) + 1
        values = [
            f"{v:.{generator.integers(1, 18)}g}"
            for v in generator.normal(size=len(columns)) * 10.0 ** generator.integers(-9, 9)
        ]
        tokens = " ".join(f"{c}:{v}" for c, v in zip(columns, values, strict=True))
        lines.append(f"{generator.integers(5)} qid:{row // 7} {tokens}\n")
    return "".join(lines)


def shuffle_row(generator, line: str) -> str:
    label, query, *tokens = line.split()
    return " ".join((label, query, *generator.permutation(tokens))) + "\n"


@pytest.mark.peers
@pytest.mark.parametrize("share", [1.0, 0.4, 0.05])
@pytest.mark.parametrize("size", [100, 1000, 1 << 22])
def test_equals_scikit_learn(write, monkeypatch, share, size):
    """Through blocks of any size, with storage that changes its mind on the way."""
    load_svmlight_file = pytest.importorskip("sklearn.datasets").load_svmlight_file
    monkeypatch.setattr(letor, "read_blocks", partial(read_blocks, size=size))
    generator = np.random.default_rng(int(share * 100))
    text = random_file(generator, 60, 20, 0.05) + random_file(generator, 80, 37, share)
    rows, labels, queries = load_svmlight_file(str(write(text)), query_id=True)
    path = write(
        "".join(shuffle_row(generator, line) for line in text.splitlines())
    )  # scikit-learn takes sorted ones only
    for sparse in (None, True, False):
        with warnings.catch_warnings(record=True):
            lists = read_letor(path, sparse=sparse)
        order = np.argsort(queries, kind="stable")
        x = lists.x.dense().numpy() if lists.is_sparse else lists.x.numpy()
        assert np.array_equal(x, rows.toarray().astype(np.float32)[order])
        assert np.array_equal(lists.labels.numpy(), labels[order])
        assert lists.is_sparse == (rows.nnz < 0.25 * x.size if sparse is None else sparse)


@needs_data
def test_mq2008():
    lists = quiet(Path(DATA) / "MQ2008/Fold1/train.txt")
    assert (len(lists), lists.num_features, lists.num_grades, lists.is_sparse) == (471, 46, 3, False)
    lines = (Path(DATA) / "MQ2008/Fold1/train.txt").read_text().splitlines()
    for row in (0, 1, 777, len(lines) - 1):
        body, comment = lines[row].split("#")
        tokens = body.split()
        assert lists.labels[row] == float(tokens[0]) and lists.document_ids[row] == comment.split()[2]
        assert lists.x[row].tolist() == [float(np.float32(token.split(":")[1])) for token in tokens[2:]]
        assert lists.query_ids[int(np.searchsorted(lists.offsets.numpy(), row, "right")) - 1] == tokens[1][4:]
    assert len(lines) == len(lists.labels)


@pytest.mark.peers
@needs_data
def test_lightgbm_example():
    lightgbm = pytest.importorskip("lightgbm")
    path = Path(DATA) / "lightgbm-lambdarank/rank.train"
    lists = quiet(path, qid="file")
    theirs = lightgbm.Dataset(str(path), params={"verbose": -1}).construct()
    assert len(lists) == 201 and lists.x.shape == (3005, 300)
    assert lists.lengths.tolist() == theirs.get_group().tolist()
    assert lists.labels.tolist() == theirs.get_label().tolist()


def test_a_table_is_recognised(write):
    rejects(write("label,query,a\n1,q1,0.3\n"), "line 1", "This looks like a table: read it with data=table")
