"""The catalogue: layouts written on the spot, held-out queries, messages; counts of the real data."""

import gzip
import os
import threading
import warnings
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from torchrank.data import catalogue
from torchrank.data.catalogue import CATALOGUE, find_entry, load_splits
from torchrank.errors import DataError, DataWarning

DATA = os.environ.get("TORCHRANK_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="TORCHRANK_DATA is not set")


@pytest.fixture(autouse=True)
def small_files():
    """The files written here are small; a test of its own looks at the warning that says so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* queries, but .* have")
        warnings.filterwarnings("ignore", "Holding out")
        yield


def lines(queries, *, start=0, features=3, comment=""):
    """Two documents per query; the first feature of a document tells its query."""
    rng = np.random.default_rng(start)
    rows = []
    for q in range(start, start + queries):
        for label in (0, 1):
            values = " ".join(f"{i}:{rng.random():.4f}" for i in range(2, features + 1))
            rows.append(f"{label} " + (f"1:{q} {values} # {q}" if comment == "qid" else f"qid:{q} 1:{q} {values}"))
    return "\n".join(rows) + "\n"


def write(folder, **texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)


def parts(sets):
    """Queries of each split by the first feature of their documents."""
    return {name: {int(q) for q in part.x[:, 0].tolist()} for name, part in sets.items()}


def three(folder, start=0):
    write(folder, train=lines(4, start=start), vali=lines(2, start=start + 4), test=lines(3, start=start + 6))


FOLDS = {
    "mslr10k": ("", "MSLR-WEB10K"),
    "mslr30k": ("", "MSLR-WEB30K"),
    "mq2007": ("", "MQ2007"),
    "mq2008": ("", "MQ2008"),
    "ohsumed": ("", "OHSUMED/QueryLevelNorm", "QueryLevelNorm"),
}


@pytest.mark.parametrize(("name", "folder"), [(name, folder) for name, folders in FOLDS.items() for folder in folders])
def test_folds_below_the_root_or_its_parent(tmp_path, name, folder):
    for fold in range(1, 6):
        three(tmp_path / folder / f"Fold{fold}", start=100 * fold)
    for fold in (1, 5):
        sets = load_splits(name, root=tmp_path, fold=fold, cache_dir=tmp_path / "cache")
        first = 100 * fold
        assert parts(sets) == {
            "train": set(range(first, first + 4)),
            "val": {first + 4, first + 5},
            "test": {first + 6, first + 7, first + 8},
        }
        assert [part.name for part in sets.values()] == ["train", "val", "test"]
        assert list(sets["test"].query_ids) == [str(first + q) for q in (6, 7, 8)]


@pytest.mark.parametrize("subset", ["td2003", "td2004", "hp2003", "hp2004", "np2003", "np2004", "ohsumed"])
@pytest.mark.parametrize("long_names", [False, True])
def test_letor3_has_seven_subsets(tmp_path, subset, long_names):
    kind, year = subset[:2], subset[2:]
    folder = "OHSUMED/QueryLevelNorm" if subset == "ohsumed" else f"Gov/QueryLevelNorm/{year}_{kind}_dataset"
    three(tmp_path / folder / "Fold2")
    if long_names:
        for old, new in (("train", "trainingset"), ("vali", "validationset"), ("test", "testset")):
            (tmp_path / folder / "Fold2" / f"{old}.txt").rename(tmp_path / folder / "Fold2" / f"{new}.txt")
    sets = load_splits("letor3", root=tmp_path, subset=subset, fold=2, cache_dir=tmp_path / "cache")
    assert [len(part) for part in sets.values()] == [4, 2, 3]
    assert find_entry("letor3", subset).max_label == (2 if subset == "ohsumed" else 1)


@pytest.mark.parametrize("folder", ["", "ltrc_yahoo"])
@pytest.mark.parametrize("number", [1, 2])
def test_yahoo_by_the_names_of_its_sets(tmp_path, number, folder):
    for other in (1, 2):
        names = (f"set{other}.train", f"set{other}.valid", f"set{other}.test")
        write(tmp_path / folder, **{name: lines(3, start=100 * other + 10 * i) for i, name in enumerate(names)})
    read = partial(load_splits, f"yahoo{number}", root=tmp_path, sparse=False, cache_dir=tmp_path / "cache")
    sets = read()
    assert {part.num_features for part in sets.values()} == {700}
    assert {part.num_features for part in read(num_features=5).values()} == {5}
    assert [min(part) for part in parts(sets).values()] == [100 * number + 10 * i for i in range(3)]


@pytest.mark.parametrize("folder", ["full", "istella-letor/full", ""])
def test_istella_full_holds_out_its_validation(tmp_path, folder):
    text = lines(10).replace("2:", "2:1.7976931348623157E308 4:", 1)
    write(tmp_path / folder, train=text, test=lines(3, start=10))
    with pytest.warns(DataWarning, match="1 values beyond float32 were replaced by 0 "):
        sets = load_splits("istella", root=tmp_path, cache_dir=tmp_path / "cache")
    assert max(float(part.x.max()) for part in sets.values()) < 100
    with pytest.warns(DataWarning, match="1 values beyond float32 were clipped"):
        clipped = load_splits("istella", root=tmp_path, sentinel="clip", cache_dir=tmp_path / "cache")
    assert max(float(part.x.max()) for part in clipped.values()) > 3e38
    found = parts(sets)
    assert list(found) == ["train", "val", "test"] and [len(part) for part in found.values()] == [8, 2, 3]
    assert found["train"] | found["val"] == set(range(10)) and found["test"] == {10, 11, 12}


@pytest.mark.parametrize("folder", ["sample", "istella-s-letor/sample"])
def test_istella_s_has_three_files(tmp_path, folder):
    three(tmp_path / folder)
    sets = load_splits("istella", root=tmp_path, cache_dir=tmp_path / "cache")
    assert [len(part) for part in sets.values()] == [4, 2, 3]
    three(tmp_path / "full")
    with pytest.raises(DataError, match=r"contains both .*sample and .*full: set data.root to one"):
        load_splits("istella", root=tmp_path)


def test_yandex_splits_its_learning_file(tmp_path):
    (tmp_path / "imat2009_learning.txt").write_text(lines(20, comment="qid"))
    first, again, other = (
        parts(load_splits("yandex", root=tmp_path, seed=seed, cache_dir=tmp_path / "cache")) for seed in (0, 0, 1)
    )
    assert [len(part) for part in first.values()] == [12, 4, 4] and list(first) == ["train", "val", "test"]
    assert first == again != other
    assert first["train"] | first["val"] | first["test"] == set(range(20))


def write_lightgbm(folder, train=10, test=4):
    for name, count, start in (("train", train, 0), ("test", test, train)):
        rows = [line.split(" ", 2) for line in lines(count, start=start).splitlines()]
        (folder / f"rank.{name}").write_text("".join(f"{label} {rest}\n" for label, _, rest in rows))
        (folder / f"rank.{name}.query").write_text("2\n" * count)


def test_lightgbm_reads_side_files_and_holds_out_a_fifth(tmp_path):
    write_lightgbm(tmp_path)
    found = parts(load_splits("lightgbm", root=tmp_path, cache_dir=tmp_path / "cache"))
    assert [len(part) for part in found.values()] == [8, 2, 4]
    assert found["train"] | found["val"] == set(range(10)) and found["test"] == {10, 11, 12, 13}


def test_files_of_ones_own(tmp_path):
    for name, start, queries in (("a", 0, 10), ("b", 10, 3), ("c", 20, 4)):
        write(tmp_path, **{name: lines(queries, start=start)})
    read = partial(load_splits, "files", root=tmp_path, train="a.txt", cache_dir=tmp_path / "cache")
    assert {name: len(part) for name, part in read().items()} == {"train": 8, "val": 2}
    assert {name: len(part) for name, part in read(val="b.txt", test="c.txt").items()} == {
        "train": 10,
        "val": 3,
        "test": 4,
    }
    found = parts(read(test=tmp_path / "c.txt"))
    assert found["train"] | found["val"] == set(range(10)) and found["test"] == {20, 21, 22, 23}
    with pytest.raises(ValueError, match=r"needs data.train=FILE"):
        load_splits("files", val="b.txt")
    with pytest.raises(FileNotFoundError, match=r"not found: .*d.txt \(data.val=d.txt, relative to data.root="):
        read(val="d.txt")
    with pytest.raises(ValueError, match="are for data=files"):
        load_splits("mq2008", root=tmp_path, train="a.txt")


def test_the_training_file_decides_the_number_of_features(tmp_path):
    write(tmp_path, small=lines(3), large=lines(3, features=5))
    read = partial(load_splits, "files", root=tmp_path, cache_dir=tmp_path / "cache")
    assert read(train="large.txt", val="small.txt")["val"].num_features == 5
    with pytest.raises(DataError, match=r"large.txt, line 1.*larger than the number of features 3.*num_features"):
        read(train="small.txt", val="large.txt")
    sets = read(train="small.txt", val="large.txt", num_features=7)
    assert {part.num_features for part in sets.values()} == {7}


def test_sparse_follows_the_training_file_and_reader_options_pass(tmp_path):
    (tmp_path / "sparse.txt").write_text("0 qid:1 1:1\n1 qid:1 9:1\n-1 qid:2 1:1\n1 qid:2 5:1\n1 qid:3 1:2\n")
    dense = "\n".join(f"0 qid:{q} " + " ".join(f"{i}:1" for i in range(1, 10)) for q in range(3))
    (tmp_path / "dense.txt").write_text(dense)
    read = partial(
        load_splits, "files", root=tmp_path, train="sparse.txt", val="dense.txt", cache_dir=tmp_path / "cache"
    )
    with pytest.raises(DataError, match="unjudged"):
        read()
    with pytest.warns(DataWarning, match="label -1"):
        sets = read(unjudged=0.0)
    assert sets["train"].is_sparse and sets["val"].is_sparse
    with pytest.warns(DataWarning, match="dropped"):
        sets = read(unjudged="drop", sparse=False)
    assert not sets["train"].is_sparse and not sets["val"].is_sparse and len(sets["train"].labels) == 4


def test_compressed_files_are_found(tmp_path):
    three(tmp_path / "Fold1")
    for path in list((tmp_path / "Fold1").iterdir()):
        (path.parent / (path.name + ".gz")).write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert len(load_splits("mq2008", root=tmp_path, cache_dir=tmp_path / "cache")["train"]) == 4


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in ("files", "folds", "letor3")])
def test_missing_files_name_the_page_the_layout_and_the_override(tmp_path, name):
    with pytest.raises(FileNotFoundError) as caught:
        load_splits(name, root=tmp_path)
    text = str(caught.value)
    entry = find_entry(name)
    assert entry.page.startswith("http") and entry.page in text
    assert "data.root=FOLDER" in text and f"now data.root={tmp_path}" in text
    assert str(tmp_path / entry.folders[0].format(fold=1) / entry.files["train"][0]) in text
    for names in entry.files.values():
        assert f"{names[0]}\n" in text
    assert ("data.download=true" in text) == bool(entry.links)


def test_one_missing_file_is_named(tmp_path):
    three(tmp_path / "MQ2008/Fold3")
    (tmp_path / "MQ2008/Fold3/vali.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"not found: .*MQ2008/Fold3/vali.txt"):
        load_splits("mq2008", root=tmp_path, fold=3)
    with pytest.raises(FileNotFoundError, match=r"now data.root=None"):
        load_splits("letor3", subset="np2004")


def test_wrong_choices_list_the_right_ones(tmp_path):
    for options, message in (
        ({"name": "mq2008", "fold": 6}, r"data.fold of mq2008 must be one of 1\.\.5, got 6"),
        ({"name": "mslr10k", "fold": 0}, r"must be one of 1\.\.5, got 0"),
        ({"name": "yahoo1", "fold": 2}, "data.fold of yahoo1 must be 1, got 2"),
        ({"name": "letor3"}, "unknown data.subset=None of letor3: choose one of td2003, td2004"),
        ({"name": "letor3", "subset": "td2005"}, "unknown data.subset='td2005'"),
        ({"name": "mq2008", "subset": "td2003"}, "mq2008 has no subsets, got data.subset=td2003"),
        ({"name": "mq2009"}, "unknown data.name='mq2009': choose one of mslr10k"),
        ({"name": "mslr10k", "download": True}, "no stable link is known for mslr10k: get it from https"),
    ):
        with pytest.raises(ValueError, match=message):
            load_splits(root=tmp_path, **options)
    with pytest.raises(ValueError, match=r"data.root=FOLDER"):
        load_splits("lightgbm", download=True)
    write(tmp_path, one=lines(1))
    with pytest.raises(DataError, match="1 training queries are too few to hold out 20% for val: give files for these"):
        load_splits("files", root=tmp_path, train="one.txt", cache_dir=tmp_path / "cache")


def test_held_out_queries_are_counted_in_a_warning(tmp_path):
    write(tmp_path, one=lines(10))
    with pytest.warns(DataWarning, match=r"^Holding out 2 of 10 training queries for validation\.$"):
        load_splits("files", root=tmp_path, train="one.txt", cache_dir=tmp_path / "cache")
    (tmp_path / "imat2009_learning.txt").write_text(lines(20, comment="qid"))
    with pytest.warns(DataWarning, match=r"^Holding out 4 of 20 training queries for validation and 4 for testing\.$"):
        load_splits("yandex", root=tmp_path, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(("name", "relevant_from", "max_label"), [("mslr30k", 2, 4), ("mq2008", 1, 2)])
def test_the_sets_know_the_grades_of_their_data_set(tmp_path, name, relevant_from, max_label):
    three(tmp_path / "Fold1")
    for part in load_splits(name, root=tmp_path, cache_dir=tmp_path / "cache").values():
        assert (part.relevant_from, part.max_label) == (relevant_from, max_label)


def test_held_out_sets_know_the_grades_of_their_data_set_too(tmp_path):
    (tmp_path / "imat2009_learning.txt").write_text(lines(20, comment="qid"))
    sets = load_splits("yandex", root=tmp_path, cache_dir=tmp_path / "cache")
    assert {(part.name, part.relevant_from, part.max_label) for part in sets.values()} == {
        ("train", 1, 4),
        ("val", 1, 4),
        ("test", 1, 4),
    }


def test_conventions_of_the_sets():
    assert {name for name, entry in CATALOGUE.items() if entry.relevant_from == 2} == {"mslr10k", "mslr30k"}
    grades = {
        "mslr10k": 4,
        "mslr30k": 4,
        "mq2007": 2,
        "mq2008": 2,
        "ohsumed": 2,
        "yahoo1": 4,
        "yahoo2": 4,
        "istella": 4,
    }
    assert {name: CATALOGUE[name].max_label for name in grades} == grades


def test_download_fills_the_folder(tmp_path, monkeypatch):
    """The links of the catalogue with a server of our own in the place of GitHub."""
    from torchrank.data.sources.download import Link, checksum_of

    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    write_lightgbm(source)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(source))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        links = tuple(
            Link(link.path, f"{url}/{link.path}", checksum_of(source / link.path), (source / link.path).stat().st_size)
            for link in CATALOGUE["lightgbm"].links
        )
        monkeypatch.setitem(catalogue.CATALOGUE, "lightgbm", CATALOGUE["lightgbm"]._replace(links=links))
        sets = load_splits("lightgbm", root=target, download=True, cache_dir=tmp_path / "cache")
        server.shutdown()
    assert {path.name for path in target.iterdir()} == {link.path for link in links}
    assert [len(part) for part in sets.values()] == [8, 2, 4]
    load_splits("lightgbm", root=target, download=True, cache_dir=tmp_path / "cache")  # nothing left to fetch
    target.rename(tmp_path / "lightgbm-lambdarank")
    load_splits("lightgbm", root=tmp_path, download=True, cache_dir=tmp_path / "cache")  # found where they may lie
    (tmp_path / "lightgbm-lambdarank/rank.test").write_text("0 1:1\n")
    with pytest.raises(DataError, match=r"lightgbm-lambdarank/rank.test exists \(6 bytes, expected"):
        load_splits("lightgbm", root=tmp_path, download=True)


def test_download_of_files_without_a_link_that_are_there_needs_nothing(tmp_path):
    three(tmp_path / "MQ2008/Fold1")
    assert len(load_splits("mq2008", root=tmp_path, download=True, cache_dir=tmp_path / "cache")["test"]) == 3


@pytest.mark.parametrize(("queries", "hint"), [(784, ", as many as mq2008: is data.root"), (50, r": is data.root")])
def test_files_of_another_size_get_a_warning(tmp_path, queries, hint):
    for name, count in (("train", queries - 20), ("vali", 10), ("test", 10)):
        write(tmp_path / "Fold1", **{name: lines(count)})
    read = partial(load_splits, root=tmp_path, cache_dir=tmp_path / "cache")
    with pytest.warns(
        DataWarning, match=f"mslr30k has 31,531 queries, but .*Fold1/train.txt and .* have {queries}{hint}"
    ):
        read("mslr30k")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read("ohsumed")
        if queries == 784:
            read("mq2008")


def test_published_numbers_of_queries():
    known = {"mslr10k": 10_000, "mslr30k": 31_531, "mq2007": 1_692, "mq2008": 784}
    assert {name: entry.num_queries for name, entry in CATALOGUE.items() if entry.num_queries} == known


@needs_data
def test_the_links_carry_the_checksums_of_the_real_files():
    from pathlib import Path

    from torchrank.data.sources.download import checksum_of
    from torchrank.data.sources.points import SOURCES

    folders = {"lightgbm-lambdarank": CATALOGUE["lightgbm"].links}
    folders |= {"uci/balance-scale": SOURCES["balance"].links, "uci/ionosphere": SOURCES["ionosphere"].links}
    for folder, links in folders.items():
        for link in links:
            path = Path(DATA) / folder / link.path
            assert (checksum_of(path), path.stat().st_size) == (link.sha256, link.size)


@needs_data
def test_mq2008_counts(tmp_path):
    """784 queries and 15,211 documents over the five test folds; the parts of a fold do not share a query."""
    queries, documents = [], 0
    for fold in range(1, 6):
        sets = load_splits("mq2008", root=DATA, fold=fold, cache_dir=tmp_path)
        ids = [set(part.query_ids) for part in sets.values()]
        assert len(set.union(*ids)) == sum(map(len, ids)) == 784
        assert {part.num_features for part in sets.values()} == {46}
        queries += list(sets["test"].query_ids)
        documents += len(sets["test"].labels)
        if fold == 1:
            assert [len(part) for part in sets.values()] == [471, 157, 156]
    assert len(queries) == len(set(queries)) == 784 and documents == 15211


@needs_data
def test_lightgbm_counts(tmp_path):
    sets = load_splits("lightgbm", root=DATA, seed=1, cache_dir=tmp_path)
    assert [len(part) for part in sets.values()] == [161, 40, 50]
    assert sum(len(sets[name].labels) for name in ("train", "val")) == 3005 and len(sets["test"].labels) == 768
    assert {part.num_features for part in sets.values()} == {300}
    assert not set(sets["train"].query_ids) & set(sets["val"].query_ids)
