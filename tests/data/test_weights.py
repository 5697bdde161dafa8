"""Weights and positions of entries go wherever their labels go; what cannot be one is refused with its place."""

import gzip
import json

import numpy as np
import polars as pl
import pytest
import torch

from torchrank import (
    AdaRank,
    DataError,
    DataWarning,
    LambdaRank,
    ListNet,
    NeuralRanker,
    RankingDataModule,
    RankingSet,
    TrainingLists,
    propensity_weights,
    read_letor,
    read_table,
)
from torchrank.cli import main
from torchrank.data import BatchLoader, BudgetSampler, SameClass, clean, make_batch
from torchrank.data.cache import open_folder, save_folder
from torchrank.data.formats.arrays import read_npz
from torchrank.functional import listnet_loss
from torchrank.rankers.core.selection import narrow


def some_lists(lengths=(3, 0, 2, 4, 1), shared=False):
    """A set whose weights are 10 times, and whose positions are 2 times, what column 0 says."""
    count = sum(lengths)
    x = torch.stack((torch.arange(count), torch.arange(count) % 3), 1).float()
    index = torch.arange(count) if shared else None
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    weights, positions = 10 * x[:, 0].double(), 2 * x[:, 0].long()
    ids = [f"q{place}" for place in range(len(lengths))]
    return RankingSet(
        x, x[:, 1], offsets, index=index, query_ids=ids, weights=weights, positions=positions, name="some"
    )


def same(lists):
    """Whether the weights and positions of a set or batch are those of its rows."""
    rows = lists.x[:, 0] if lists.index is None else lists.x[lists.index, 0]
    return torch.equal(lists.weights, 10 * rows.double()) and torch.equal(lists.positions, 2 * rows.long())


@pytest.mark.parametrize("shared", [False, True])
def test_they_go_wherever_the_labels_go(shared):
    lists = some_lists(shared=shared)
    some = torch.tensor([3, 0, 2])
    for part in (lists[:], lists[1:3], lists[some], lists[1], lists[:0], lists[:].take(some)[0], lists[:].to("cpu")):
        assert same(part) and part.weights.shape == part.labels.shape
    assert same(lists[:].flat())
    for made in (lists.subset(some), lists.to("cpu"), lists.subset([])):
        assert same(made) and same(made[:])
    assert same(lists.streamed("cpu")[some])
    kept = torch.arange(len(lists.labels)) % 2 == 0
    assert same(narrow(lists[:], kept))
    cleaned, report = clean(lists)
    assert report.queries_removed and same(cleaned)


def test_they_go_through_samplers_and_training_lists():
    lists = some_lists()
    for shuffle in (True, False):
        sampler = BudgetSampler(lists.lengths, budget=4, shuffle=shuffle, seed=1)
        assert all(same(batch) for batch in BatchLoader(lists, sampler))
    train = TrainingLists(lists, budget=3)
    assert same(train.gathered()) and same(train.subset(torch.tensor([2, 0])).gathered())
    changed = train.changed(lambda batch: batch._replace(labels=batch.labels + 1))
    assert all(same(batch) for batch in changed)
    assert float(train.total(lambda batch: batch.weights.sum())) == 10 * sum(range(10))


def test_a_set_without_them_has_none():
    lists = RankingSet(torch.eye(2), torch.ones(2), torch.tensor([0, 2]))
    assert lists.weights is None and lists.positions is None and lists[:].weights is None
    assert lists.subset([0]).weights is None and lists.to("cpu")[:].positions is None


def test_the_outline_tells_other_weights():
    lists = some_lists()
    other = some_lists()
    other.weights = other.weights + 1
    assert lists.outline() == some_lists().outline() != other.outline()
    plain = RankingSet(lists.x, lists.labels, lists.offsets)
    assert "weights" not in plain.outline() and plain.outline().items() < lists.outline().items()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": [1.0, 2.0]}, r"weights \(2,\) for 3 entries of the set 's'"),
        ({"weights": [[1.0], [2.0]]}, "weights"),
        ({"weights": [1.0, -2.0, 1.0]}, "weight -2 of entry 1 of the set 's': weights must be finite"),
        ({"weights": [1.0, 1.0, float("nan")]}, "weight nan of entry 2"),
        ({"weights": np.array([1.0, np.inf, 1.0])}, "weight inf of entry 1"),
        ({"positions": [0, 1]}, r"positions \(2,\) for 3 entries"),
        ({"positions": [0, -1, 2]}, "position -1 of entry 1 of the set 's': positions must be integers"),
        ({"positions": [0.0, 1.5, 2.0]}, "position 1.5 of entry 1"),
        ({"positions": [0.0, float("nan"), 2.0]}, "position nan of entry 1"),
        ({"positions": [0.0, 1e300, 2.0]}, "position 1e[+]300 of entry 1"),
    ],
)
def test_what_they_cannot_be_is_refused_with_its_place(given, message):
    with pytest.raises(DataError, match=message):
        RankingSet(torch.eye(3), torch.ones(3), torch.tensor([0, 3]), name="s", **given)


@pytest.mark.parametrize("given", [[0, 1, 2], np.array([0.0, 1, 2]), torch.tensor([0, 1, 2], dtype=torch.int16)])
def test_they_may_come_as_any_array(given):
    lists = RankingSet(torch.eye(3), torch.ones(3), torch.tensor([0, 3]), weights=given, positions=given)
    assert lists.positions.dtype == torch.int64 and lists.positions.tolist() == [0, 1, 2]
    assert lists.weights.is_floating_point() and lists.weights.tolist() == [0, 1, 2]


def test_lists_of_a_whole_corpus_have_no_weights():
    relevance = SameClass(torch.tensor([0, 1]), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(DataError, match="not with lists of a whole corpus"):
        RankingSet(torch.eye(2), relevance, queries=torch.eye(2), weights=torch.ones(4))


def test_a_batch_refuses_weights_of_another_length():
    with pytest.raises(DataError, match="weights"):
        make_batch(torch.eye(2), torch.ones(2), torch.tensor([0, 2]), weights=torch.ones(3))


def test_the_cache_maps_them_from_files(tmp_path):
    lists = some_lists()
    save_folder(tmp_path / "set.torchrank", lists)
    again = open_folder(tmp_path / "set.torchrank")
    assert same(again) and same(again[torch.tensor([3, 0])])
    assert (tmp_path / "set.torchrank" / "weights.npy").is_file()


def test_inverse_propensities():
    positions, chances = np.array([0, 3, 1, 9]), np.array([1.0, 0.5, 0.25])
    expected = [1 / chances[min(place, 2)] for place in positions]
    assert propensity_weights(positions, chances).tolist() == expected
    assert propensity_weights(positions, chances, clip=2.0).tolist() == [min(each, 2) for each in expected]
    assert propensity_weights([], [1.0]).tolist() == []
    for wrong in ([], [0.0], [1.0, -1.0], [float("nan")], [float("inf")]):
        with pytest.raises(DataError, match="propensities"):
            propensity_weights(positions, wrong)
    with pytest.raises(ValueError, match="clip"):
        propensity_weights(positions, chances, clip=0)


# ---- files ----------------------------------------------------------------------------------------------------------

ROWS = "1 qid:a 1:0.5\n0 qid:a 1:1\n0 qid:b 1:2\n2 qid:a 1:3\n1 qid:b 1:4\n"
WEIGHTS, PLACES = [0.5, 1.0, 2.0, 1e-3, 0.1], [2, 0, 1, 1, 0]
JOINED = [0, 1, 3, 2, 4]  # the rows of query a, then those of query b


def write_letor(path, rows=ROWS, weights=WEIGHTS, places=PLACES):
    path.write_text(rows)
    path.with_name(path.name + ".weight").write_text("".join(f"{each}\n" for each in weights))
    path.with_name(path.name + ".position").write_text("".join(f"{each}\n" for each in places))
    return path


@pytest.mark.filterwarnings("ignore:.*not contiguous")
def test_a_letor_file_has_them_beside_it(tmp_path):
    lists = read_letor(write_letor(tmp_path / "train.txt"))
    assert lists.weights.tolist() == [WEIGHTS[row] for row in JOINED]
    assert lists.positions.tolist() == [PLACES[row] for row in JOINED]
    packed = tmp_path / "train.txt.gz"
    packed.write_bytes(gzip.compress(ROWS.encode()))
    assert torch.equal(read_letor(packed).weights, lists.weights)


@pytest.mark.filterwarnings("ignore:.*not contiguous", "ignore:.*label -1")
def test_dropped_rows_take_theirs_with_them(tmp_path):
    path = write_letor(tmp_path / "train.txt", ROWS.replace("0 qid:a", "-1 qid:a"))
    assert read_letor(path, unjudged="drop").positions.tolist() == [PLACES[row] for row in (0, 3, 2, 4)]
    assert read_letor(path, unjudged=0).positions.tolist() == [PLACES[row] for row in JOINED]


@pytest.mark.filterwarnings("ignore")
def test_a_data_module_reads_them_and_notices_a_change(tmp_path):
    rows = "".join(f"{row % 2} qid:{row // 2} 1:{row}\n" for row in range(20))
    path = write_letor(tmp_path / "train.txt", rows, range(20), range(20))
    for factor in (1, 2):
        (tmp_path / "train.txt.weight").write_text("".join(f"{factor * each}\n" for each in range(20)))
        data = RankingDataModule("files", train=str(path))
        data.setup()
        for lists in data.sets.values():
            assert torch.equal(lists.weights, factor * lists.x[:, 0].double())
            assert torch.equal(lists.positions, lists.x[:, 0].long())


@pytest.mark.parametrize(
    ("ending", "text", "message"),
    [
        ("weight", "1\n2\n", r"train.txt.weight: 2 weights, but train.txt has 5 rows"),
        ("weight", "1\n-2\n1\n1\n1\n", r"weight, line 2: weight '-2': expected one finite number of 0 or more"),
        ("weight", "1\n1 1\n1\n1\n1\n", "line 2: weight '1 1'"),
        ("weight", "1\nnan\n1\n1\n1\n", "line 2: weight 'nan'"),
        ("weight", "1\n1\n\n1e400\n1\n1\n", "line 4: weight '1e400'"),
        ("position", "0\n1.5\n0\n0\n0\n", "line 2: position '1.5': expected one integer of 0 or more"),
        ("position", "0\n0\n-1\n0\n0\n", "line 3: position '-1'"),
    ],
)
def test_wrong_numbers_are_told_with_their_line(tmp_path, ending, text, message):
    path = write_letor(tmp_path / "train.txt")
    (tmp_path / f"train.txt.{ending}").write_text(text)
    with pytest.raises(DataError, match=message):
        read_letor(path)


@pytest.mark.filterwarnings("ignore:.*not contiguous")
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_a_table_has_columns_of_them(tmp_path, suffix):
    frame = pl.DataFrame({"label": [1, 0, 0, 2, 1], "query": [*"aabab"], "f": range(5), "w": WEIGHTS, "place": PLACES})
    path = tmp_path / f"shop{suffix}"
    {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".arrow": frame.write_ipc}[suffix](path)
    lists = read_table(path, weight="w", position="place")
    assert lists.feature_names == ("f",) and lists.weights.tolist() == [WEIGHTS[row] for row in JOINED]
    assert lists.positions.tolist() == [PLACES[row] for row in JOINED]
    assert read_table(path).feature_names == ("f", "w", "place") and read_table(path).weights is None
    with pytest.raises(DataError, match=r"row 1, column 'w': 0.5, expected a position, an integer of 0 or more"):
        read_table(path, position="w")
    with pytest.raises(DataError, match=r"no column 'nowhere' \(data.weight\)"):
        read_table(path, weight="nowhere")


def test_negative_weights_of_a_table_are_told_with_their_row(tmp_path):
    (tmp_path / "shop.csv").write_text("label,query,f,w\n1,a,1,1\n0,a,2,-0.5\n")
    with pytest.raises(DataError, match=r"row 2, column 'w': -0.5, expected a weight of 0 or more"):
        read_table(tmp_path / "shop.csv", weight="w")
    (tmp_path / "shop.csv").write_text("label,query,f,w\n1,a,1,\n0,a,2,1\n")
    with pytest.raises(DataError, match=r"row 1, column 'w': the value is missing"):
        read_table(tmp_path / "shop.csv", weight="w")


@pytest.mark.filterwarnings("ignore:.*not contiguous")
@pytest.mark.parametrize("target", ["out.txt", "out.csv", "out.parquet", "out.arrow", "out.npz", "out.torchrank"])
def test_a_conversion_keeps_them(tmp_path, target):
    source, out = write_letor(tmp_path / "train.txt"), tmp_path / target
    main(["convert", str(source), str(out)])
    columns = ["--weight", "weight", "--position", "position"] if target.endswith(("csv", "parquet", "arrow")) else []
    back = tmp_path / "back.txt"
    main(["convert", str(out), str(back), *columns])
    found, expected = read_letor(back), read_letor(source)
    assert torch.equal(found.weights, expected.weights) and torch.equal(found.positions, expected.positions)
    assert torch.equal(found.x, expected.x)


def test_a_conversion_removes_weights_of_an_older_file(tmp_path):
    source = write_letor(tmp_path / "a.txt", "1 qid:a 1:1\n0 qid:a 1:2\n", [1, 2], [0, 1])
    main(["convert", str(source), str(tmp_path / "b.svm"), "--to", "lightgbm"])
    assert (tmp_path / "b.svm.weight").read_text() == "1\n2\n" and (tmp_path / "b.svm.query").is_file()
    for ending in ("weight", "position"):
        (tmp_path / f"a.txt.{ending}").unlink()
    main(["convert", str(source), str(tmp_path / "b.svm"), "--to", "lightgbm"])
    assert read_letor(tmp_path / "b.svm", qid="file").weights is None


def test_folds_keep_them(tmp_path):
    rows = "".join(f"{row % 2} qid:{row // 2} 1:{row + 1}\n" for row in range(12))
    path = write_letor(tmp_path / "all.txt", rows, [row + 1 for row in range(12)], range(1, 13))
    main(["folds", str(path), "--out", str(tmp_path / "shop"), "--folds", "3"])
    for part in ("train", "vali", "test"):
        lists = read_letor(tmp_path / "shop" / "Fold2" / f"{part}.txt")
        assert torch.equal(lists.weights, lists.x[:, 0].double()) and torch.equal(lists.positions, lists.x[:, 0].long())
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == ["Fold1", "Fold2", "Fold3"]


def test_info_tells_them(tmp_path, capsys):
    main(["info", str(write_letor(tmp_path / "train.txt")), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["positions"] == {"min": 0.0, "mean": 0.8, "max": 2.0} and found["weights"]["max"] == 2.0
    main(["info", str(tmp_path / "train.txt")])
    assert "weights" in capsys.readouterr().out


def test_an_npz_file_with_wrong_weights_is_refused(tmp_path):
    arrays = {"x": np.eye(2), "labels": np.ones(2), "offsets": np.array([0, 2])}
    np.savez(tmp_path / "a.npz", **arrays, weights=np.array(["a", "b"]))
    with pytest.raises(DataError, match="the array weights is of type"):
        read_npz(tmp_path / "a.npz")


# ---- rankers --------------------------------------------------------------------------------------------------------


def weighted_lists(weights=True):
    random = np.random.default_rng(0)
    x = torch.tensor(random.normal(size=(60, 3))).float()
    labels, given = random.integers(3, size=60), random.random(60) * (random.random(60) > 0.2)
    return RankingSet(x, labels, group=[6] * 10, weights=given if weights else None)


def test_listnet_minimises_its_weighted_loss():
    lists = weighted_lists()
    ranker = ListNet(3, transform=None, l2=0.1).fit(lists)
    weight = ranker.scorer.weight.detach().clone().requires_grad_()
    losses = listnet_loss(lists.x.double() @ weight, lists.labels, lists.offsets, weights=lists.weights)
    (losses.mean() + 0.05 * weight.square().sum()).backward()
    assert ranker.certificate.proved and weight.grad.abs().max() < 2e-6
    plain = ListNet(3, transform=None, l2=0.1).fit(weighted_lists(weights=False))
    assert not torch.allclose(plain.scorer.weight, ranker.scorer.weight, atol=1e-3)
    lists.weights = torch.ones(60)
    assert torch.allclose(ListNet(3, transform=None, l2=0.1).fit(lists).scorer.weight, plain.scorer.weight, atol=1e-6)


def test_gradients_are_weighted_and_a_loss_without_weights_is_refused():
    lists = weighted_lists()
    found = [LambdaRank(3).fit(each, epochs=2).scorer.weight for each in (lists, weighted_lists(weights=False))]
    assert not torch.allclose(*found, atol=1e-4)

    def squares(scores, labels, offsets):
        return (scores - labels).square().mean()

    with pytest.raises(DataError, match=r"the data has weights, but the loss .* takes none"):
        NeuralRanker(3, loss=squares).fit(lists, epochs=1)


def test_rankers_without_weights_say_so():
    with pytest.warns(DataWarning, match="AdaRank does not learn with weights: those of the data have no effect"):
        AdaRank(3).fit(weighted_lists(), epochs=1)


@pytest.mark.filterwarnings("ignore")
def test_a_data_module_weighs_documents_by_given_propensities(tmp_path):
    rows = "".join(f"{row % 2} qid:{row // 2} 1:{row}\n" for row in range(20))
    path = write_letor(tmp_path / "train.txt", rows, range(20), [row % 4 for row in range(20)])
    chances = [1.0, 0.5, 0.1]  # position 3 has that of 2
    for own in (True, False):
        if not own:
            path.with_name("train.txt.weight").unlink()
        data = RankingDataModule("files", train=str(path), propensities=chances)
        data.setup()
        for lists in data.sets.values():
            row = lists.x[:, 0].long()
            expected = torch.tensor([1.0, 2.0, 10.0, 10.0], dtype=torch.float64)[row % 4]
            torch.testing.assert_close(lists.weights, expected * row if own else expected)
    path.with_name("train.txt.position").unlink()
    with pytest.raises(DataError, match=r"data\.propensities need the position of each training document"):
        RankingDataModule("files", train=str(path), propensities=chances).setup()
