"""Points as queries: splits, batches made on demand, the readers, and the real UCI sets."""

import gzip
import os
import struct
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch.utils._python_dispatch import TorchDispatchMode

from torchrank.data import BudgetSampler, Judged, RankingSet, make_transform
from torchrank.data.sources.point_tables import read_points
from torchrank.data.sources.points import load_points, stratified
from torchrank.errors import DataError, DataWarning

DATA = os.environ.get("TORCHRANK_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="TORCHRANK_DATA is not set")


@pytest.fixture
def points(tmp_path):
    """An npz file of 60 points in three classes of 30, 20 and 10."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(["a", "b", "c"], [30, 20, 10]))
    x = rng.normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "points.npz", x=x, y=y)
    return tmp_path, x, y


def plain_lists(sets, split, x, y):
    """(index, labels) per query, typed plainly: all training points but the query itself, 1 for the same class."""
    train = [int(i) for i in sets["train"].query_ids]
    for q in (int(i) for i in sets[split].query_ids):
        rows = [place for place, i in enumerate(train) if i != q]
        yield q, rows, [float(y[train[place]] == y[q]) for place in rows]


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_batches_are_the_plain_lists(points, split):
    root, x, y = points
    sets = load_points("points.npz", root=root)
    part = sets[split]
    plain = list(plain_lists(sets, split, x, y))
    for positions in (
        torch.arange(len(part)),
        torch.tensor([3, 0]),
        slice(1, 4),
        slice(None),
        2,
        torch.tensor([], dtype=int),
    ):
        batch = part[positions]
        chosen = [positions] if isinstance(positions, int) else np.arange(len(part))[positions].tolist()
        assert batch.query.tolist() == chosen and batch.num_lists == len(chosen)
        for place, q in enumerate(chosen):
            first, last = batch.offsets[place : place + 2].tolist()
            assert batch.index[first:last].tolist() == plain[q][1]
            assert batch.labels[first:last].tolist() == plain[q][2]
            assert np.array_equal(batch.queries[place], x[plain[q][0]])
            assert part.lengths[q] == last - first
            relevant = sum(plain[q][2])
            assert part.pairs[q] == relevant * (last - first - relevant)
        assert batch.num_pairs == part.pairs[chosen].sum() and batch.num_grades == 2
        assert batch.max_length == part.lengths[chosen].max(initial=0)
        assert batch.x is part.x
    assert part.offsets.tolist() == np.concatenate(([0], np.cumsum(part.lengths))).tolist()
    assert len(part.labels) == len(part.index) == part.lengths.sum()


def test_splits_are_disjoint_stratified_seeded_and_numbered_by_fold(points):
    root, _, y = points
    sets = load_points("points.npz", root=root, seed=3)
    ids = {name: {int(i) for i in part.query_ids} for name, part in sets.items()}
    assert {name: len(part) for name, part in ids.items()} == {"train": 39, "val": 9, "test": 12}
    assert len(ids["train"] | ids["val"] | ids["test"]) == 60
    assert np.unique(y[list(ids["test"])], return_counts=True)[1].tolist() == [6, 4, 2]
    again, other, fold = (load_points("points.npz", root=root, seed=s, fold=f) for s, f in ((3, 1), (4, 1), (3, 2)))
    assert list(again["test"].query_ids) == list(sets["test"].query_ids)
    assert list(other["test"].query_ids) != list(sets["test"].query_ids) != list(fold["test"].query_ids)


def test_a_share_of_zero_leaves_the_set_out(points):
    assert set(load_points("points.npz", root=points[0], val_fraction=0)) == {"train", "test"}
    assert set(load_points("points.npz", root=points[0], val_fraction=0, test_fraction=0)) == {"train"}


def test_leave_one_out_validates_on_the_training_points(points):
    root, x, y = points
    sets = load_points("points.npz", root=root, validate="leave_one_out", seed=3)
    held = load_points("points.npz", root=root, val_fraction=0, seed=3)
    assert list(sets) == ["train", "val", "test"] and sets["val"] is sets["train"] and len(sets["train"]) == 48
    for name in ("train", "test"):
        assert list(sets[name].query_ids) == list(held[name].query_ids)
    for (_, rows, labels), q in zip(plain_lists(sets, "val", x, y), range(48), strict=True):
        assert sets["val"][q].index.tolist() == rows and sets["val"][q].labels.tolist() == labels
    with pytest.raises(ValueError, match=r"unknown data.validate='loo': choose one of held_out, leave_one_out"):
        load_points("points.npz", root=root, validate="loo")


def test_stratified_takes_each_share_up_or_down():
    rng = np.random.default_rng(1)
    for _ in range(50):
        classes = rng.integers(0, 6, size=rng.integers(1, 200))
        fraction = rng.random()
        taken = stratified(classes, fraction, rng)
        assert len(taken) == len(np.unique(taken)) == int(fraction * len(classes))
        shares = np.bincount(classes, minlength=6) * len(taken) / len(classes)
        assert (np.abs(np.bincount(classes[taken], minlength=6) - shares) < 1).all()


def test_the_published_sizes_come_out():
    """Sizes of the 80/20 splits in McFee & Lanckriet 2010: WDBC 456/113, Wine 143/35."""
    for name, train, test in (("wdbc", 456, 113), ("wine", 143, 35)):
        sets = load_points(name, val_fraction=0)
        assert (len(sets["train"]), len(sets["test"])) == (train, test)
    assert load_points("wine")["train"].relevance.class_names == ("class_0", "class_1", "class_2")


def test_subset_and_device_keep_the_lists(points):
    root = points[0]
    part = load_points("points.npz", root=root)["val"]
    chosen = part.subset(np.array([4, 1]))
    assert list(chosen.query_ids) == [part.query_ids[4], part.query_ids[1]]
    whole = part[torch.tensor([4, 1])]
    for name in ("labels", "index", "offsets", "queries"):
        assert torch.equal(getattr(chosen[:], name), getattr(whole, name))
    assert chosen[:].num_pairs == whole.num_pairs and chosen.x is part.x
    transform = make_transform("standard", 4).fit(part.x, torch.tensor([0, len(part.x)]))
    moved = part.to("cpu", transform)
    mean, std = part.x.double().mean(0), part.x.double().std(0, correction=0)
    assert torch.allclose(moved.queries.double(), (part.queries.double() - mean) / std, atol=1e-5)
    assert torch.allclose(moved.x.double(), (part.x.double() - mean) / std, atol=1e-5)
    assert torch.equal(moved[2:5].labels, part[2:5].labels)
    train = load_points("points.npz", root=root)["train"].to("cpu", transform)
    assert train.queries is train.x


def test_a_sampler_covers_all_queries_once(points):
    part = load_points("points.npz", root=points[0])["train"]
    batches = list(BudgetSampler(part.lengths, budget=200, shuffle=True, seed=1))
    assert sorted(torch.cat(batches).tolist()) == list(range(len(part)))
    assert max(len(part[positions].labels) for positions in batches) <= 200


class CountSyncs(TorchDispatchMode):
    """Counts the operations that wait for the device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.split(".")[0] in ("_local_scalar_dense", "nonzero", "masked_select", "unique"):
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_making_a_batch_does_not_synchronise(points):
    classes = load_points("points.npz", root=points[0])["train"]
    judged = Judged.make(
        np.array([1, 2, 0]), np.array([1.0, 2, 1]), np.array([2, 0, 1]), 4, own=torch.tensor([0, 4, 1])
    )
    lists = RankingSet(torch.eye(4), judged, queries=torch.eye(4)[:3])
    with CountSyncs() as count:
        for part in (classes, lists):
            part[torch.tensor([2, 0])]
            part[0:2]
    assert count.found == []


def test_per_query_transforms_refuse_a_shared_corpus(points):
    part = load_points("points.npz", root=points[0])["val"]
    transform = make_transform("query_minmax", 4).fit(part.x, torch.tensor([0, len(part.x)]))
    with pytest.raises(DataError, match="share"):
        part.to("cpu", transform)


def test_memory_stays_that_of_the_batch(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "many.npz", x=rng.normal(size=(6000, 3)), y=rng.integers(0, 26, size=6000))
    tracemalloc.start()  # sees numpy; the tensors of a batch are counted below
    part = load_points("many.npz", root=tmp_path, test_fraction=0, val_fraction=0)["train"]
    assert part.lengths.sum() == 6000 * 5999 and tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    held = [value for of in (part, part.relevance) for value in vars(of).values() if isinstance(value, torch.Tensor)]
    assert len(held) > 4 and sum(value.numel() * value.element_size() for value in held) < 1e6
    batch = part[:10]
    assert len(batch.labels) == 10 * 5999 and part.device.type == "cpu" and "6000" in repr(part)


def test_bad_arrays_and_options(tmp_path, points):
    np.savez(tmp_path / "other.npz", features=np.eye(2))
    np.savez(tmp_path / "short.npz", x=np.eye(3), y=[0, 1])
    np.savez(tmp_path / "real.npz", x=np.eye(2), y=[0.5, 1])
    np.savez(tmp_path / "inf.npz", x=[[1, np.inf]], y=[1])
    np.savez(tmp_path / "wide.npz", x=np.eye(5), y=np.arange(5))
    for name, message in {
        "other": "found features",
        "short": r"3 points have classes of shape \(2,\)",
        "real": "class 0.5 of point 1",
        "inf": "feature 2 of point 1",
    }.items():
        with pytest.raises(DataError, match=rf"^{tmp_path}/{name}.npz: .*{message}"):
            read_points(tmp_path / f"{name}.npz")
    for options, message in (
        ({"source": ["points.npz", "wide.npz"]}, "wide.npz has 5 features, but .*points.npz has 4"),
        ({"source": "points.npz", "test_fraction": 1.0}, "data.test_fraction must be >= 0 and < 1, got 1.0"),
        ({"source": "points.npz", "val_fraction": 0.99}, "only 1 of 60 points are left for training"),
        ({"source": "points.npz", "fold": 0}, "data.fold must be an integer >= 1, got 0"),
        ({"source": "points.npz", "fold": 1.5}, "data.fold must be an integer >= 1, got 1.5"),
        ({"source": "wine", "test": "points.npz"}, "data.test is for your own files, not for data.source=wine"),
        ({"source": "isolet", "download": True}, "no stable link"),
    ):
        with pytest.raises(ValueError, match=message):
            load_points(root=tmp_path, **options)
    with pytest.raises(
        FileNotFoundError, match=r"(?s)Get it from https.*balance.*data.download=true.*data.root=FOLDER"
    ):
        load_points("balance", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"not found: .*nothing.csv.*one of balance, ionosphere, isolet, wine"):
        load_points("nothing.csv", root=tmp_path)


def test_files_that_cannot_be_read_say_what_to_do(tmp_path):
    from scipy.io import savemat

    np.savez(tmp_path / "objects.npz", x=np.eye(2), y=np.array(["a", None]))
    np.save(tmp_path / "array.npy", np.eye(2))
    np.savez_compressed(tmp_path / "whole.npz", x=np.random.default_rng(0).random((50, 50)), y=np.ones(50))
    savemat(tmp_path / "cells.mat", {"fea": np.eye(2), "gnd": np.array(["a", [1]], dtype=object)})
    savemat(tmp_path / "whole.mat", {"fea": np.eye(50), "gnd": np.ones(50)}, do_compression=True)
    savemat(tmp_path / "sparse.mat", {"fea": csr_matrix(np.eye(3)), "gnd": np.ones((3, 1))})
    np.savez(tmp_path / "text.npz", x=np.array([["1", "2"]]), y=[1])
    whole = (tmp_path / "whole.npz").read_bytes()
    contents = {
        "plain.npz": b"1,2,3\n",
        "array.npz": (tmp_path / "array.npy").read_bytes(),
        "cut.npz": whole[:-300],
        "damaged.npz": b"".join((whole[:1000], bytes(500), whole[1500:])),
        "empty.npz": b"",
        "plain.mat": b"1,2,3\n",
        "empty.mat": b"",
        "cut.mat": (tmp_path / "whole.mat").read_bytes()[:200],
        "hdf5.mat": b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM\x89HDF\r\n\x1a\n",
        "latin.csv": "1,2,grün\n3,4,grün\n".encode("latin-1"),
        "packed.csv.gz": gzip.compress(b"1,2,red\n"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    advice = {"npz": "numpy.savez", "mat": "save -v7", "csv": "as UTF-8", "gz": "decompress it first"}
    for name in (*contents, "objects.npz"):
        with pytest.raises(DataError, match=rf"^{tmp_path}/{name}:? .*{advice[name.rpartition('.')[2]]}"):
            read_points(tmp_path / name)
    for name, message in (("cells.mat", "type object"), ("sparse.mat", "expected a table"), ("text.npz", "of numbers")):
        with pytest.raises(DataError, match=rf"^{tmp_path}/{name}: .*{message}"):
            read_points(tmp_path / name)


@pytest.mark.parametrize("number", [0.5, np.nan, np.inf, 1e300, -(2.0**63) * 2])
def test_a_class_that_is_no_integer_is_refused(tmp_path, number):
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=[1.0, number])
    with pytest.raises(DataError, match=r"class .* of point 2: expected integers or text"):
        read_points(tmp_path / "a.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_no_byte_of_the_layout_of_a_mat_file_ends_the_process(tmp_path, compressed):
    """Unknown types of parts made the reader of scipy read beyond its tables."""
    from scipy.io import savemat

    savemat(tmp_path / "a.mat", {"fea": np.eye(2, dtype=np.float32), "gnd": np.ones((2, 1))})
    whole = (tmp_path / "a.mat").read_bytes()
    for place in range(128, 128 + 64):
        for byte in (0, 8, 23, 255):
            damaged = whole[:place] + bytes([byte]) + whole[place + 1 :]
            packed = zlib.compress(damaged[128:])
            packed = damaged[:128] + struct.pack("<II", 15, len(packed)) + packed
            (tmp_path / "a.mat").write_bytes(packed if compressed else damaged)
            with suppress(DataError):
                read_points(tmp_path / "a.mat")


def test_download_fetches_only_what_is_not_there(tmp_path):
    (tmp_path / "uci/ionosphere").mkdir(parents=True)
    (tmp_path / "uci/ionosphere/ionosphere.data").write_text("1,2,g\n3,4,g\n")
    with pytest.raises(DataError, match=r"uci/ionosphere/ionosphere.data exists \(12 bytes, expected 76467\)"):
        load_points("ionosphere", root=tmp_path, download=True)
    (tmp_path / "mine.csv").write_text("1,2,g\n3,4,g\n")
    assert len(load_points("mine.csv", root=tmp_path, download=True, val_fraction=0, test_fraction=0)["train"]) == 2
    assert len(load_points("wine", download=True)) == 3
    if DATA is not None:
        assert len(load_points("balance", root=DATA, download=True)) == 3


def test_classes_that_only_the_test_part_has_are_told(tmp_path):
    (tmp_path / "a.csv").write_text("1,2,red\n3,4,blue\n5,6,red\n7,8,blue\n")
    (tmp_path / "b.csv").write_text("1,2,red\n3,4,Blue\n5,6,green\n7,8,red\n")
    told = r"2 of 4 test points belong to classes without training points \(Blue, green\): they will always be miscla"
    with pytest.warns(DataWarning, match=told):
        load_points("a.csv", root=tmp_path, test="b.csv", val_fraction=0)


def test_several_files_and_a_fixed_test_part(tmp_path):
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(n, 3)), np.arange(n) % 3 + 1) for n in (12, 9, 6)]
    for name, (x, y) in zip("abc", arrays, strict=True):
        savemat(tmp_path / f"{name}.mat", {"fea": x, "gnd": y[:, None].astype(np.uint8)})
    sets = load_points(["a.mat", "b.mat"], root=tmp_path, test="c.mat")
    assert [int(i) for i in sets["test"].query_ids] == list(range(21, 27))
    assert np.allclose(sets["test"].queries, arrays[2][0].astype(np.float32))
    assert len(sets["train"]) + len(sets["val"]) == 21 and len(sets["val"]) == 4
    assert sets["train"].relevance.class_names == ("1", "2", "3")


@needs_data
def test_real_sets():
    """Counts of the data folder's README, and the training sizes of the MLR paper (no validation part)."""
    root = Path(DATA or "")
    for name, train, test, features, classes in (
        ("balance", 500, 125, 4, 3),
        ("ionosphere", 281, 70, 34, 2),
        ("isolet", 6238, 1559, 617, 26),
    ):
        sets = load_points(name, root=root, val_fraction=0)
        assert (len(sets["train"]), len(sets["test"])) == (train, test)
        assert sets["train"].num_features == features and len(sets["train"].relevance.class_names) == classes
    assert load_points("balance", root=root / "uci/balance-scale")["train"].relevance.class_names == ("B", "L", "R")


@needs_data
def test_isolet_is_light():
    sets = load_points("isolet", root=DATA)
    assert len(sets["train"]) + len(sets["val"]) == 6238
    batch = sets["train"][:8]
    assert len(batch.labels) == 8 * (len(sets["train"]) - 1) and batch.x is sets["test"].x
