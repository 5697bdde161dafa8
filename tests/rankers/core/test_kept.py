"""What a fit keeps for its validation lists: the same scores as from scratch, whatever happens in between."""

import copy

import pytest
import torch
from pytorch_lightning import Trainer

from tests.laws.rankers import CASES, sets
from torchrank import LGMML, AdaRank, GBDTRanker, RankBoost, RankingDataModule, RankingSet
from torchrank.data import SameClass, SparseRows
from torchrank.rankers.core.kept import BatchMemory

pytestmark = pytest.mark.filterwarnings("ignore")
KEEPING = [name for name, case in CASES.items() if type(case.make()) in (LGMML, RankBoost, AdaRank, GBDTRanker)]
OF_PLACES = ["local_shrunk", "local_rankboost"]  # which training lists are most similar
QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler"), False)


def small(seed=0):
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(seed))
    return RankingSet(x, torch.arange(9.0) % 3, torch.tensor([0, 4, 6, 9]))


def checked(ranker):
    """The ranker, which compares every validation with scores from scratch; and their number."""
    seen, own = [], ranker.validation_scores

    def compare(batch):
        found = own(batch)
        torch.testing.assert_close(found, ranker.score(batch), rtol=1e-12, atol=1e-12)
        seen.append(found)
        return found

    ranker.validation_scores = compare
    return seen


def made(name):
    torch.manual_seed(0)
    return CASES[name].make()


# ---- laws over the rankers that keep something -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*KEEPING, *OF_PLACES])
def test_every_validation_of_a_fit_equals_scores_from_scratch(name):
    own, ranker = sets(CASES[name].kind), made(name)
    seen = checked(ranker)
    ranker.fit(own["train"], own["val"], epochs=CASES[name].epochs, batch_documents=7)
    assert len(seen) >= 1 and not vars(ranker.kept)


@pytest.mark.parametrize("name", ["lgmml", "lgmml_similar", "rankboost", "adarank", "gbdt", "xgboost"])
def test_validations_of_a_resumed_fit_and_those_after_it(name, tmp_path):
    """The second half of a fit, then its best state on other lists."""
    own, epochs = sets(CASES[name].kind), CASES[name].epochs

    def trained(epochs, **options):
        data = RankingDataModule.from_sets(**own, batch_documents=7)
        ranker = made(name)
        seen = checked(ranker)
        trainer = Trainer(**QUIET, accelerator="cpu", devices=1, max_epochs=epochs, default_root_dir=tmp_path)
        trainer.fit(ranker, datamodule=data, **options)
        trainer.validate(ranker, datamodule=data, verbose=False)
        trainer.test(ranker, datamodule=data, verbose=False)
        return trainer, ranker, seen

    first, _, seen = trained(epochs // 2)
    assert seen
    first.save_checkpoint(tmp_path / "half.ckpt")
    _, resumed, seen = trained(epochs, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    whole = trained(epochs)[1]
    val = own["val"]
    torch.testing.assert_close(resumed(val.x, val.offsets), whole(val.x, val.offsets), rtol=1e-12, atol=1e-12)
    assert seen


@pytest.mark.parametrize("name", ["lgmml", "lgmml_similar", "rankboost", "adarank", "gbdt", "xgboost"])
def test_other_lists_and_other_weights_in_between(name):
    """A second validation set of the same shape, and a state that is changed by hand, between two rounds."""
    own, ranker = sets(CASES[name].kind), made(name)
    ranker.fit(own["train"], epochs=2)
    state = copy.deepcopy(ranker.state_dict())
    lists = RankingDataModule.from_sets(train=own["train"])._divided(own["train"].to("cpu", ranker.transform))
    ranker.begin(lists)
    if name.startswith("lgmml"):
        ranker.load_state_dict(state)
    ranker.resume(lists)
    seen, other = checked(ranker), small_like(own["val"]).to("cpu", ranker.transform)
    val = own["val"].to("cpu", ranker.transform)
    for number in range(4):
        ranker.take_round(number + name.startswith("lgmml"))
        for each in (val, other, val, other):
            ranker.validation_step(each[0:2])
        if number == 1 and name not in ("gbdt", "xgboost"):
            with torch.no_grad():
                (ranker.weights if name.startswith("lgmml") else ranker.alpha).mul_(2)
            ranker.validation_step(val[0:2])
        if number == 2:
            val.x[0, 0] += 1
            ranker.validation_step(val[0:2])
    assert len(seen) >= 17


def small_like(lists):
    return RankingSet(lists.x.flip(0).contiguous(), lists.labels, lists.offsets)


def opened(name):
    """A fit before its first round, and its validation lists."""
    own, ranker = sets(CASES[name].kind), made(name)
    ranker.fit(own["train"], epochs=1)
    lists = RankingDataModule.from_sets(train=own["train"])._divided(own["train"].to("cpu", ranker.transform))
    ranker.begin(lists)
    ranker.resume(lists)
    return ranker, own["val"]


@pytest.mark.parametrize("name", OF_PLACES)
def test_other_lists_at_the_same_positions(name):
    ranker, val = opened(name)
    ranker.take_round(0)
    seen = checked(ranker)
    for each in (val, small_like(val), val, RankingSet(val.x, val.labels, torch.tensor([0, 3, 17]))):
        ranker.validation_step(each[0:2])
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["rankboost", "adarank", "gbdt", "xgboost", "lgmml"])
def test_scores_that_somebody_writes_to_are_not_those_that_are_kept(name):
    """With rows in float64 no conversion makes a copy."""
    ranker, val = opened(name)
    seen = checked(ranker)
    for number in range(3):
        ranker.take_round(number)
        for _ in range(2):
            ranker.validation_step(val[0:2]).fill_(7)
    assert len(seen) == 6


def test_a_later_validation_computes_the_new_part_alone(monkeypatch):
    """Kernel values once, and one rule each."""
    own, asked, summed = sets("lists"), [], []
    lgmml, boosted = made("lgmml"), made("rankboost")
    features, sums = lgmml.scorer.features, boosted._sum_from
    lgmml.scorer.features = lambda batch: asked.append(int(batch.query[0])) or features(batch)
    boosted._sum_from = lambda first, batch: summed.append(first) or sums(first, batch)
    lgmml.fit(own["train"], own["val"], batch_documents=10_000)
    boosted.fit(own["train"], own["val"])
    assert len(asked) == 2  # training lists, and validation lists
    assert summed == list(range(12))  # validated after each of 12 rounds


def test_lists_that_are_more_than_the_room_are_computed_again(monkeypatch):
    own, ranker = sets("lists"), made("lgmml")
    whole = made("lgmml").fit(own["train"], own["val"], batch_documents=7)
    monkeypatch.setattr("torchrank.rankers.lgmml.ranker.KEPT_BYTES", 200)
    seen = checked(ranker)
    ranker.fit(own["train"], own["val"], batch_documents=7)
    assert seen and torch.equal(whole.weights, ranker.weights)


# ---- the memory ------------------------------------------------------------------------------------------------------


def test_the_same_lists_are_known_again():
    lists, memory = small(), BatchMemory(1000)
    memory.keep(lists[0:2], "one")
    memory.keep(lists[2:3], "other")
    assert memory.find(lists[0:2]) == memory.find(lists[torch.tensor([0, 1])]) == "one"
    assert memory.find(lists[2:3]) == memory.find(lists[2]) == "other"
    assert memory.find(lists[1:3]) is memory.find(lists[0:1]) is memory.find(lists[torch.tensor([1, 0])]) is None


def test_in_inference_mode():
    lists, memory = small(), BatchMemory(1000)
    with torch.inference_mode():
        memory.keep(lists[0:2], "one")
        assert memory.find(lists[0:2]) == "one"
    assert memory.find(lists[0:2]) == "one"
    weight = torch.ones(3, requires_grad=True)
    (lists[0:2].x @ weight)[lists[0:2].offsets[:-1]].sum().backward()  # as every other batch


def test_other_lists_are_not_taken_for_them():
    lists, memory = small(), BatchMemory(1000)
    memory.keep(lists[0:2], "one")
    others = RankingSet(lists.x, lists.labels, torch.tensor([0, 3, 6, 9]))  # other lists of the same rows
    assert memory.find(others[0:2]) is None
    assert memory.find(RankingSet(lists.x, lists.labels, lists.offsets)[0:2]) is None  # equal, but who knows
    assert memory.find(lists[0:2]._replace(x=2 * lists[0:2].x)) is None
    assert memory.find(lists.streamed("cpu", None)[0:2]) is None


def test_rows_that_were_written_to_are_others():
    lists, memory = small(), BatchMemory(1000)
    memory.keep(lists[0:2], "one")
    lists.x[8] = 0.0  # of the third list: who knows
    assert memory.find(lists[0:2]) is None


def test_memory_that_is_used_again_is_not_taken_for_the_old_one():
    memory = BatchMemory(1000)
    for number in range(50):
        lists = small(number)
        assert memory.find(lists[0:2]) is None
        memory.keep(lists[0:2], torch.zeros(10))
        del lists
    assert len(memory._held) <= 2  # what is gone takes no room


def test_lists_over_a_whole_corpus():
    corpus, classes = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    lists = RankingSet(corpus, SameClass(classes, classes, ("a", "b"), own=torch.arange(6)), queries=corpus)
    memory = BatchMemory(1000)
    memory.keep(lists[0:2], "one")
    memory.keep(lists[2:4], "other")
    assert memory.find(lists[0:2]) == "one" and memory.find(lists[2:4]) == "other"
    batch = lists[0:2]
    assert memory.find(batch._replace(index=batch.index.flip(0))) is None
    assert memory.find(batch._replace(queries=batch.queries + 1)) is None and memory.find(batch.flat()) is None


def test_sparse_rows():
    lists, memory = small(), BatchMemory(1000)
    sparse = RankingSet(SparseRows.from_dense(lists.x), lists.labels, lists.offsets)
    memory.keep(sparse[0:2], "one")
    assert memory.find(sparse[0:2]) == "one" and memory.find(sparse[1:3]) is None
    batch = sparse[0:2]
    moved = batch.x.row_offsets.clone()
    moved[1] -= 1
    assert memory.find(batch._replace(x=SparseRows(batch.x.values, batch.x.columns, moved, 3))) is None


def test_what_does_not_fit_is_not_kept():
    lists, memory = small(), BatchMemory(100)
    memory.keep(lists[0:1], torch.zeros(10, dtype=torch.float64))
    memory.keep(lists[1:2], torch.zeros(10))
    memory.keep(lists[2:3], torch.zeros(5))
    assert [memory.find(lists[q]) is None for q in range(3)] == [False, True, False]
    memory.keep(lists[0:1], torch.zeros(2))  # smaller than before
    memory.keep(lists[1:2], torch.zeros(10))
    assert all(memory.find(lists[q]) is not None for q in range(3)) and memory.room == 100 - 8 - 40 - 20


def test_empty_lists_and_copies():
    memory, none = BatchMemory(100), RankingSet(torch.zeros(0, 3), torch.zeros(0), torch.tensor([0, 0]))
    memory.keep(none[:], torch.zeros(0))
    assert memory.find(none[:]) is None
    lists = small()
    memory.keep(lists[:], torch.zeros(10))
    assert copy.deepcopy(memory).find(lists[:]) is None and copy.deepcopy(memory).room == 100
