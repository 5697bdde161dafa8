"""RankingDataModule without a Trainer: its loaders in plain torch loops, resident and streamed sets, and resuming."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.rankers.small import FEATURES, lists
from torchrank import RankingDataModule, RankingSet
from torchrank.data import Explicit, Judged, SparseRows, make_transform
from torchrank.data.datamodule import CATALOGUE, LOADERS
from torchrank.data.training import batch_entries, pass_room
from torchrank.errors import DataError, DataWarning
from torchrank.functional import listnet_loss


def data(**options) -> RankingDataModule:
    given = {"batch_documents": 40} | options
    return RankingDataModule.from_sets(train=lists(0), val=lists(1), test=lists(2), **given)


def shared(sparse: bool = False) -> RankingSet:
    """Four topics over 30 rows, all of which every list holds."""
    random = np.random.default_rng(0)
    y = random.random((4, 30)) < 0.3
    relevance = Judged.make(y.nonzero()[1], np.ones(y.sum()), y.sum(1), 30)
    x = torch.from_numpy(random.random((30, FEATURES), dtype=np.float32))
    return RankingSet(SparseRows.from_dense(x) if sparse else x, relevance)


def parts(batch) -> list:
    x = batch.x.dense() if isinstance(batch.x, SparseRows) else batch.x
    return [x.tolist(), *(None if part is None else part.tolist() for part in batch[1:6]), *batch[6:]]


def loaded(module: RankingDataModule, epochs: int = 2) -> dict[str, list]:
    """All batches of all loaders."""
    train, found = module.train_dataloader(), []
    for epoch in range(epochs):
        train.set_epoch(epoch)
        found += map(parts, train)
    others = {"val": module.val_dataloader(), "test": module.test_dataloader(), "predict": module.predict_dataloader()}
    return {"train": found} | {split: list(map(parts, loader)) for split, loader in others.items()}


@pytest.mark.parametrize("of", [lists, lambda seed: shared(), lambda seed: shared(sparse=True)])
def test_batches_are_the_same_whether_sets_are_resident_or_not(of):
    found = []
    for resident in (True, False, "auto"):
        module = RankingDataModule.from_sets(
            train=of(0), val=of(1), test=of(2), batch_documents=40, resident=resident, order_seed=7
        )
        module.setup()
        found.append(loaded(module))
    assert found[0] == found[1] == found[2]
    assert len(found[0]["train"]) > 4 and found[0]["test"] == found[0]["predict"]


def test_batches_without_a_module_are_the_rows_in_float32():
    train = lists(0)
    train.x = train.x.double()
    for resident in (True, False):
        module = RankingDataModule.from_sets(train=train, resident=resident)
        (batch,) = module.train_dataloader()
        assert batch.x.dtype == torch.float32 and torch.equal(batch.x, train[batch.query].x.float())


def test_evaluation_is_in_order_and_training_shuffles_by_its_own_seed():
    module = data()
    for split in ("val", "test"):
        loader = getattr(module, f"{split}_dataloader")()
        assert torch.cat([batch.query for batch in loader]).tolist() == list(range(12))
    orders = [loaded(data(order_seed=seed), 1)["train"] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def loop(epochs: int, resident: bool, stop: int | None = None, resume: dict | None = None) -> dict:
    """Gradient steps in plain torch; the state after `stop` steps, or at the end."""
    torch.manual_seed(0)
    module, source = torch.nn.Linear(FEATURES, 1), data(resident=resident)
    source.setup()
    optimizer, loader, steps = torch.optim.Adam(module.parameters(), lr=0.1), source.train_dataloader(), 0
    if resume is not None:
        for name, part in (("module", module), ("optimizer", optimizer), ("loader", loader)):
            part.load_state_dict(resume[name])
        steps = resume["steps"]

    def state() -> dict:
        now = {"module": module, "optimizer": optimizer, "loader": loader}
        return copy.deepcopy({name: part.state_dict() for name, part in now.items()} | {"steps": steps})

    for epoch in range(loader.state_dict()["epoch"], epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            listnet_loss(module(batch.x)[:, 0], batch.labels, batch.offsets).mean().backward()
            optimizer.step()
            steps += 1
            if steps == stop:
                return state()
    return state()


@pytest.mark.parametrize("resident", [True, False])
def test_a_plain_loop_resumed_after_any_step_ends_in_the_same_weights(resident):
    whole = loop(3, resident)
    assert whole["steps"] == 3 * len(data().train_dataloader()) > 6
    for stop in range(1, whole["steps"] + 1):
        resumed = loop(3, resident, resume=loop(3, resident, stop=stop))
        assert resumed["steps"] == whole["steps"]
        for name, value in whole["module"].items():
            assert torch.equal(resumed["module"][name], value)


def test_resident_and_streamed_loops_end_in_the_same_weights():
    one, other = loop(2, True), loop(2, False)
    assert all(torch.equal(value, other["module"][name]) for name, value in one["module"].items())


# ---- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [2, 3])
def test_processes_of_a_plain_loop_divide_every_batch(world, monkeypatch):
    whole = [batch.query.tolist() for batch in data().train_dataloader()]
    shares = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)
    for rank in range(world):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        shares.append([batch.query.tolist() for batch in data().train_dataloader()])
        assert (data().training_lists().rank, data().training_lists().world) == (rank, world)
    for batch, *divided in zip(whole, *shares, strict=True):
        assert sorted(batch) == sorted(query for share in divided for query in share)


def test_training_lists_are_the_whole_set_in_batches():
    for resident in (True, False):
        training = data(resident=resident).training_lists()
        assert len(training) == 12 and training.device.type == "cpu" and len(list(training)) > 1
        assert torch.equal(torch.cat([batch.x for batch in training]), lists(0).x)
        assert int(training.total(lambda batch: batch.query.sum())) == sum(range(12))


# ---- with a module ---------------------------------------------------------------------------------------------------


class Attached:
    """What the data module sees of a trainer."""

    def __init__(self, module):
        self.lightning_module, self.global_rank, self.world_size = module, 0, 1
        self.strategy = SimpleNamespace(root_device=torch.device("cpu"))
        self.state = SimpleNamespace(status="running")


class Module(torch.nn.Module):
    def __init__(self, transform=None, **options):
        super().__init__()
        self.transform = transform
        for name, value in options.items():
            setattr(self, name, value)


def test_rows_go_through_the_transform_of_a_module_and_no_other_attribute_of_this_name():
    transform = make_transform("standard", FEATURES).fit(lists(0).x)
    expected = lists(1).to("cpu", transform)[:].x
    for resident in (True, False):
        module = data(resident=resident)
        for given, wanted in ((transform, expected), (torch.nn.Identity(), lists(1).x), (None, lists(1).x)):
            module.trainer = Attached(Module(given))
            module.setup()
            assert torch.equal(torch.cat([batch.x for batch in module.val_dataloader()]), wanted)


def test_a_module_that_learns_by_rounds_gets_one_token():
    module = data()
    module.trainer = Attached(Module(by_rounds=True))
    assert list(module.train_dataloader()) == [0] and len(list(module.val_dataloader())) > 1


def test_sets_are_prepared_again_after_every_setup_only():
    module = data()
    first = module.ready("train")
    assert module.ready("train") is first
    module.setup("fit")
    assert module.ready("train") is not first and torch.equal(module.ready("train").x, first.x)


# ---- sizes and names -------------------------------------------------------------------------------------------------


def test_batches_over_a_whole_corpus_may_be_larger():
    class Costly:
        corpus_entries = 100

    whole, own = shared(), lists(0)
    index = torch.arange(30)[torch.arange(60) % 30]
    half = RankingSet(whole.x, Explicit(torch.zeros(60), torch.arange(0, 61, 15), index))
    few = RankingSet(whole.x, Explicit(torch.zeros(60), torch.arange(0, 61, 6), index))
    empty = RankingSet(whole.x, Explicit(torch.zeros(0), torch.tensor([0]), index[:0]))
    for given, entries in ((whole, 100), (half, 100), (few, 40), (own, 40), (empty, 100)):
        assert batch_entries(given, 40) == batch_entries(given, 40, object()) == 40
        assert batch_entries(given, 40, Costly) == entries and batch_entries(given, 1000, Costly) == 1000
    module = RankingDataModule.from_sets(train=whole, val=whole, batch_documents=40)
    module.trainer = Attached(Module(corpus_entries=100))
    assert (
        len(module.train_dataloader()) == 3 and len(module.val_dataloader()) == len(list(module.val_dataloader())) == 2
    )
    assert len(list(module.training_lists())) == 2


def test_what_is_missing_is_named():
    module = RankingDataModule.from_sets(train=lists(0))
    assert module.val_dataloader() == [] and module.num_features == FEATURES
    with pytest.raises(DataError, match="this needs test lists, but the data has only train: add test="):
        module.test_dataloader()
    assert RankingDataModule.from_sets(test=lists(0)).num_features == FEATURES
    unread = RankingDataModule("synthetic", num_queries=20)
    for ask in (unread.train_dataloader, unread.val_dataloader, unread.training_lists, lambda: unread.num_features):
        with pytest.raises(DataError, match=r"the data set 'synthetic' is not read yet: call setup\(\) first"):
            ask()


def test_unknown_options_are_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"unknown name='mslr': choose one of clouds, .*gaussian.*mslr10k"):
        RankingDataModule("mslr")
    with pytest.raises(ValueError, match=r"unknown clean='yes': choose one of none, train, all"):
        RankingDataModule("synthetic", clean="yes")
    with pytest.raises(ValueError, match=r"unknown resident='no': choose one of True, False, auto"):
        RankingDataModule("synthetic", resident="no")
    assert not set(LOADERS) & set(CATALOGUE)


def test_the_title_names_the_part_of_a_collection():
    for name, options, title in (
        ("letor3", {"subset": "td2003"}, "letor3/td2003"),
        ("points", {"source": "wine"}, "points/wine"),
        ("gaussian", {"centres": 10}, "gaussian/10"),
        ("mq2008", {}, "mq2008"),
        ("points", {"source": ["a.csv", "b.csv"]}, "points"),
        ("files", {"root": "/data/shop", "train": "train.txt"}, "files/shop"),
        ("files", {"root": "/data/shop", "train": "Fold2/train.txt.gz"}, "files/shop"),
        ("files", {"train": "/data/shop/clicks.v2.txt"}, "files/clicks.v2"),
        ("retrieval", {"file": "songs.npz"}, "retrieval/songs"),
        ("embeddings", {"root": "beir/scifact"}, "embeddings/scifact"),
    ):
        assert RankingDataModule(name, **options).title == title


def test_data_is_read_once_and_cleaned_where_it_was_asked_for(monkeypatch):
    calls = []

    def read(**options):
        calls.append(options)
        x, labels, offsets = torch.tensor([[1.0], [1.0], [2.0]]), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 3])
        return {split: RankingSet(x, labels, offsets, name=split) for split in ("train", "test")}

    monkeypatch.setitem(LOADERS, "synthetic", read)
    for clean, sizes in (("none", (3, 3)), ("train", (1, 3)), ("all", (1, 1))):
        module = RankingDataModule("synthetic", clean=clean, fold=2, seed=5, size=7)
        if clean == "none":
            module.setup()
        else:
            with pytest.warns(DataWarning, match="Removed from train: 2 contradictory documents, then 0 queries"):
                module.setup()
        module.setup("fit")
        assert tuple(len(module.sets[split].x) for split in ("train", "test")) == sizes
    assert calls == [{"fold": 2, "seed": 5, "size": 7}] * 3


def test_after_a_fit_the_batches_are_those_without_a_module(tmp_path):
    from pytorch_lightning import Trainer

    from tests.rankers.small import FEATURES, lists
    from torchrank import SingleFeature

    data = RankingDataModule.from_sets(train=lists(0), val=lists(1))
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    Trainer(accelerator="cpu", default_root_dir=tmp_path, **options).fit(
        SingleFeature(FEATURES, transform="standard"), datamodule=data
    )
    assert data._ready == {}
    (batch,) = data.val_dataloader()
    assert torch.equal(batch.x, lists(1).x)
    assert sum(batch.num_lists for batch in data.train_dataloader()) == len(lists(0))


def letor_files(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return {"root": folder, **{name: f"{name}.txt" for name in texts}}


ROWS = "2 qid:1 1:0.5 2:1\n0 qid:1 1:0.25 2:3\n1 qid:2 1:4 2:5\n0 qid:3 1:6 2:7\n"


def test_queries_in_two_splits_are_counted(tmp_path):
    """In another order of lists and of rows, too; a query that only has the id of another one is none."""
    test = "0 qid:2 1:4 2:5\n1 qid:1 1:0.25 2:3\n1 qid:1 1:0.5 2:1\n1 qid:3 1:6 2:8\n"
    module = RankingDataModule("files", **letor_files(tmp_path, train=ROWS, val="1 qid:9 1:1\n", test=test))
    told = r"2 of 3 queries of test are in train too, with the same rows \(the first is query 1\)"
    with pytest.warns(DataWarning, match=told) as caught:
        module.setup()
    assert len(caught) == 1


def test_files_that_number_their_queries_from_one_share_none(tmp_path, recwarn):
    others = {"val": "1 qid:1 1:0.5 2:1\n0 qid:2 1:1 2:1\n", "test": "1 qid:2 1:4 2:5.5\n"}
    RankingDataModule("files", **letor_files(tmp_path, train=ROWS, **others)).setup()
    assert not [str(warning.message) for warning in recwarn if issubclass(warning.category, DataWarning)]


def test_feature_names_are_a_list_or_a_file(tmp_path):
    files = letor_files(tmp_path, train=ROWS, val=ROWS, test=ROWS)
    (tmp_path / "names.txt").write_text("bm25\n\npage rank \n")
    for given in (["bm25", "page rank"], "names.txt"):
        module = RankingDataModule("files", feature_names=given, **files)
        with pytest.warns(DataWarning, match="are in train too"):
            module.setup()
        assert {lists.feature_names for lists in module.sets.values()} == {("bm25", "page rank")}
        assert module.sets["train"].subset([1]).feature_names == ("bm25", "page rank")


@pytest.mark.filterwarnings("ignore:.*are in train too")
@pytest.mark.parametrize(
    "given, text",
    [
        (["a"], r"data\.feature_names: 1 names for 2 features, expected one name per feature"),
        (["a", "a"], r"data\.feature_names: the name 'a' occurs twice"),
        ("none.txt", r"not found: .*none\.txt \(data\.feature_names=none\.txt, relative to data\.root="),
    ],
)
def test_wrong_feature_names_are_refused(tmp_path, given, text):
    module = RankingDataModule("files", feature_names=given, **letor_files(tmp_path, train=ROWS, val=ROWS))
    with pytest.raises((DataError, FileNotFoundError), match=text):
        module.setup()


def test_a_device_reads_what_fits_and_the_host_what_a_step_takes(monkeypatch):
    class Known:
        def entry_bytes(self, width: int) -> int:
            return 10 * width

    own, need = lists(0), 10 * FEATURES
    assert batch_entries(own, 40, Known(), None) == batch_entries(own, 40, object(), 10**9) == 40
    assert batch_entries(own, 40, Known(), 1024 * need) == batch_entries(own, 40, Known(), 1900 * need) == 1024
    assert batch_entries(own, 40, Known(), 2**50) * FEATURES <= 2**31
    assert pass_room(torch.device("cpu")) is None
    monkeypatch.setattr("torchrank.data.training.free_memory", lambda device: 2048 * need)
    assert pass_room(torch.device("cuda")) == 1024 * need
