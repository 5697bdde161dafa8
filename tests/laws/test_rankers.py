"""Laws that hold for every ranker of the table in `rankers.py`."""

import copy
import pickle
import signal
import warnings
from functools import cache
from inspect import signature

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.utilities.exceptions import MisconfigurationException

import torchrank
from tests.laws.rankers import CASES, FEATURES, KINDS, sets
from torchrank import (
    MLR,
    DataError,
    LambdaRank,
    ListNet,
    NeuralRanker,
    RandomRanker,
    RankBoost,
    RankingDataModule,
    RankingSet,
    SVMMap,
    TrainingLists,
)
from torchrank.data import SparseRows
from torchrank.data.state import Derived
from torchrank.data.transforms import transform_batch

BY_ROUNDS = [name for name, case in CASES.items() if case.make().by_rounds]
ONE_OF_EACH = list(KINDS.values())
pytestmark = pytest.mark.filterwarnings("ignore")


def make(name, seed=0):
    torch.manual_seed(seed)
    return CASES[name].make()


@cache
def kinds(kind):
    return sets(kind)


def data(name, **options):
    return RankingDataModule.from_sets(**kinds(CASES[name].kind), batch_documents=20, **options)


def trainer(folder, epochs, **options):
    settings = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler"), False
    )
    settings |= {"accelerator": "cpu", "devices": 1, "max_epochs": epochs, "num_sanity_val_steps": 0}
    last = ModelCheckpoint(folder, "last", save_on_train_epoch_end=True, enable_version_counter=False)
    return Trainer(**settings | {"default_root_dir": folder, "callbacks": [last]} | options)


def bare(folder, epochs, **options):
    """Without checkpoints and validation."""
    return trainer(folder, epochs, callbacks=[], enable_checkpointing=False, limit_val_batches=0, **options)


def fitted(name, val=True):
    """The ranker of a case after `fit`, with validation where it cannot do without."""
    ranker, own = make(name), kinds(CASES[name].kind)
    needed = own["val"] if val or ranker.chosen_by else None
    return ranker.fit(own["train"], needed, epochs=CASES[name].epochs, batch_documents=20)


@pytest.fixture(params=CASES, scope="module")
def after(request):
    """Name, and the ranker after a fit."""
    return request.param, fitted(request.param)


def scores(ranker, lists):
    batch = lists[:]
    with torch.no_grad():
        return ranker(batch.x, batch.offsets, **given(batch, ranker))


def given(batch, ranker):
    found = {"index": batch.index, "queries": batch.queries}
    found["query"] = batch.query if ranker.num_topics is not None else None
    return {name: part for name, part in found.items() if part is not None}


def equal(one, other, **tolerance):
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(
                theirs[key], value, **{"rtol": 0, "atol": 0} | tolerance, equal_nan=True, msg=key
            )
        elif "certificate" in value:
            assert value["certificate"] == theirs[key]["certificate"] and value["findings"] == theirs[key]["findings"]


def test_there_is_a_case_of_every_exported_ranker():
    assert {type(case.make()).__name__ for case in CASES.values()} == set(torchrank.RANKERS)


@pytest.mark.parametrize("name", torchrank.RANKERS)
def test_at_most_three_classes_between_a_ranker_and_lightning_and_no_diamond(name):
    line = [kind for kind in getattr(torchrank, name).__mro__ if kind.__module__.startswith("torchrank.")][1:]
    assert 1 <= len(line) <= 3
    assert all(len(kind.__bases__) == 1 for kind in (getattr(torchrank, name), *line))


# ---- a fit without Lightning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name != "local_network"])  # which keeps its best epoch
def test_a_fit_without_lightning_has_the_weights_of_one_through_a_trainer(name, tmp_path):
    own, through = fitted(name, val=False), make(name)
    runner = trainer if through.chosen_by else bare
    sets = {split: each for split, each in kinds(CASES[name].kind).items() if split == "train" or through.chosen_by}
    module = RankingDataModule.from_sets(**sets, batch_documents=20)
    runner(tmp_path, CASES[name].epochs).fit(through, datamodule=module)
    equal(through, own, **{} if through.by_rounds else {"rtol": 1e-6, "atol": 1e-7})
    assert not own.training and own._trainer is None


@pytest.mark.parametrize(
    "name",
    ["lambdarank", "rankboost", "adarank", "lgmml", "gbdt", "xgboost", "domination_path", "mlr_path", "lgmml_net"],
)
def test_the_best_round_is_kept_as_a_trainer_with_early_stopping_keeps_it(name, tmp_path):
    case, through, own = CASES[name], make(name), fitted(name)
    best = ModelCheckpoint(tmp_path, "best", monitor="val/ndcg@10", mode="max", enable_version_counter=False)
    stopper = EarlyStopping("val/ndcg@10", mode="max", patience=20)
    trainer(tmp_path, case.epochs, callbacks=[best, stopper]).fit(through, datamodule=data(name))
    loaded = torchrank.load(best.best_model_path)
    own.outline = loaded.outline = {}
    equal(loaded, own, **{} if through.by_rounds else {"rtol": 1e-6, "atol": 1e-7})


@pytest.mark.parametrize("name", CASES)
def test_a_fit_starts_over_and_is_deterministic(name):
    own, again = kinds(CASES[name].kind), fitted(name)
    first = copy.deepcopy(again.state_dict())
    state = torch.get_rng_state()
    again.fit(own["train"], own["val"], epochs=CASES[name].epochs, batch_documents=20)
    assert torch.equal(torch.get_rng_state(), state)  # the user's random numbers are not touched
    other = make(name, seed=7).fit(own["train"], own["val"], epochs=CASES[name].epochs, batch_documents=20)
    for ranker in (again, other):
        for key, value in first.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(ranker.state_dict()[key], value), key


def numbers_outside(value, known, seen):
    """How many numbers of tensors and arrays are reachable that are no parameters or buffers."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return 0 if value.untyped_storage().data_ptr() in known else value.numel()
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, dict):
        return sum(numbers_outside(each, known, seen) for each in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return sum(numbers_outside(each, known, seen) for each in value)
    if isinstance(value, torch.nn.Module | Derived) or (hasattr(value, "__dict__") and not callable(value)):
        return numbers_outside(vars(value), known, seen)
    return 0


def test_nothing_is_kept_after_a_fit_but_parameters_and_buffers(after):
    name, ranker = after
    tensors = [*ranker.parameters(), *ranker.buffers()]
    known = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    assert numbers_outside(ranker, known, set()) == 0, name
    assert not vars(ranker.kept)


def test_a_fitted_ranker_is_copied_and_pickled(after):
    name, ranker = after
    test = kinds(CASES[name].kind)["test"]
    expected = scores(ranker, test)
    for other in (copy.deepcopy(ranker), pickle.loads(pickle.dumps(ranker))):
        assert torch.equal(scores(other, test), expected)


def test_a_state_dict_is_all_that_a_new_ranker_of_the_same_options_needs(after):
    name, ranker = after
    other = make(name, seed=3)
    other.load_state_dict(ranker.state_dict())
    test = kinds(CASES[name].kind)["test"]
    assert torch.equal(scores(other.eval(), test), scores(ranker, test))


# ---- scores ---------------------------------------------------------------------------------------------------------


def test_the_labels_of_scored_lists_reach_no_score(after):
    name, ranker = after
    test = kinds(CASES[name].kind)["test"]
    batch = transform_batch(ranker.transform, test[:])
    turned = batch._replace(labels=batch.labels.flip(0))
    with torch.no_grad():
        for step in (ranker.test_step, ranker.validation_step, ranker.score):
            assert torch.equal(step(batch), step(turned))


def test_rank_orders_each_list_by_score(after):
    name, ranker = after
    test = kinds(CASES[name].kind)["test"]
    batch = test[:]
    rows, found = ranker.rank(batch.x, batch.offsets, **given(batch, ranker)), scores(ranker, test)
    for a, b in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
        order = sorted(range(a, b), key=lambda i: (-found[i].item(), i))
        expected = order if batch.index is None else batch.index[order].tolist()
        assert rows[a:b].tolist() == expected


def test_lists_without_documents_and_batches_without_lists(after):
    _, ranker = after
    if ranker.num_topics is not None:
        return
    x, none = torch.zeros(0, FEATURES), torch.zeros(0, dtype=torch.int64)
    with torch.no_grad():
        for offsets in (torch.tensor([0]), torch.tensor([0, 0])):
            kind = {"queries": torch.zeros(len(offsets) - 1, FEATURES), "index": none} if ranker.by_query else {}
            assert ranker(x, offsets, **kind).shape == (0,)


def test_integer_rows_and_offsets_of_any_width_are_scored_as_the_same_numbers(after):
    _, ranker = after
    if ranker.num_topics is not None:
        return
    x = torch.randint(-3, 4, (9, FEATURES), generator=torch.Generator().manual_seed(0))
    offsets, vectors = torch.tensor([0, 4, 9]), torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(1))
    kind = {"queries": vectors} if ranker.by_query else {}
    with torch.no_grad():
        assert torch.equal(ranker(x, offsets.int(), **kind), ranker(x.float(), offsets, **kind))


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_arrays_are_scored_and_ranked_as_the_same_tensors(after):
    name, ranker = after
    batch = kinds(CASES[name].kind)["test"][:]
    others, expected = given(batch, ranker), scores(ranker, kinds(CASES[name].kind)["test"])
    group = batch.offsets.diff()
    qid = [f"q{number}" for number in torch.arange(len(group)).repeat_interleave(group).tolist()]
    names = list("abcde")
    arrays = [(batch.x.numpy(), {"group": group.numpy()}), (batch.x.tolist(), {"offsets": batch.offsets.tolist()})]
    arrays += [(pd.DataFrame(batch.x.numpy(), columns=names), {"qid": pd.Series(qid)})]
    arrays += [(pl.DataFrame(batch.x.numpy(), schema=names), {"qid": pl.Series(qid)})]
    with torch.no_grad():
        order = ranker.rank(batch.x, batch.offsets, **others)
        for x, lists in arrays:
            theirs = {key: part.numpy() for key, part in others.items()}
            torch.testing.assert_close(ranker(x, **lists, **theirs), expected, rtol=0, atol=0)
            assert torch.equal(ranker.rank(x, **lists, **theirs), order)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_names_of_features_are_kept_and_compared(name, tmp_path):
    ranker, own = make(name), {key: copy.copy(lists) for key, lists in kinds(CASES[name].kind).items()}
    for lists in own.values():
        lists.feature_names = tuple("abcde")
    ranker.fit(own["train"], own["val"], epochs=1)
    assert ranker.feature_names == tuple("abcde")
    again = make(name)
    again.load_state_dict(copy.deepcopy(ranker.state_dict()))
    assert again.feature_names == tuple("abcde")
    swapped = pd.DataFrame(np.zeros((1, 5)), columns=list("abdce"))
    with pytest.raises(DataError, match=r"feature 2 .*: it is 'd', but \w+ was fitted with 'c' there"):
        again(swapped, group=[1])
    own["val"].feature_names = tuple("abcdx")
    with pytest.raises(DataError, match=r"feature 4 .*: it is 'x', but"):
        make(name).fit(own["train"], own["val"], epochs=1)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_data_that_a_ranker_does_not_take_is_refused_with_the_reason(name):
    ranker = make(name)
    rows, offsets, index = torch.zeros(2, FEATURES), torch.tensor([0, 2]), torch.tensor([0, 1])
    with pytest.raises(torchrank.DataError, match="made for 5 features, but these rows have 4"):
        ranker(torch.zeros(2, 4), offsets)
    calls = {
        "sparse": lambda: ranker(SparseRows.from_dense(rows), offsets),
        "corpus": lambda: ranker(rows, offsets, index=index),
        "queries": lambda: ranker(rows, offsets, queries=rows[:1]),
    }
    for kind in calls.keys() - ranker.takes:
        with pytest.raises(torchrank.DataError, match=f"{type(ranker).__name__} does not take"):
            calls[kind]()


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_rows_that_are_not_finite_are_refused_by_a_fit(name):
    case, ranker = CASES[name], make(name)
    train = kinds(case.kind)["train"]
    x = train.x.clone()
    x[3, 2] = torch.nan
    bad = RankingSet(x, train.relevance, queries=None if train.queries is None else train.queries.clone(), name="train")
    with pytest.raises(torchrank.DataError, match=r"feature 2 \(counted from 0\) of row 3 is nan"):
        ranker.fit(bad, kinds(case.kind)["val"])


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_lists_with_one_label_teach_nothing_and_break_nothing(name):
    case = CASES[name]
    own = kinds(case.kind)
    if case.kind != "lists":
        return
    flat = RankingSet(own["train"].x, torch.zeros_like(own["train"].labels), own["train"].offsets)
    ranker = make(name)
    try:
        ranker.fit(flat, own["val"], epochs=2, batch_documents=20)
    except torchrank.DataError as error:  # clear words are fine too
        assert "label" in str(error) or "relevant" in str(error) or "high documents" in str(error), error
        return
    except ValueError as error:
        assert "high documents" in str(error), error
        return
    assert scores(ranker, own["test"]).isfinite().all()


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_precisions_below_32_bits_are_refused(name, precision, tmp_path):
    with pytest.raises(ValueError, match="below 32 bits"):
        bare(tmp_path, 2, precision=precision).fit(make(name), datamodule=data(name))


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if name in BY_ROUNDS])
def test_rounds_refuse_what_would_spoil_them(name, tmp_path):
    with pytest.raises(ValueError, match="min_epochs must be 1 or unset, got 3"):
        bare(tmp_path, 5, min_epochs=3).fit(make(name), datamodule=data(name))
    with pytest.raises(MisconfigurationException, match="manual optimization"):
        bare(tmp_path, 2, gradient_clip_val=1.0).fit(make(name), datamodule=data(name))


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions_fit(name, precision, tmp_path):
    ranker = make(name)
    trainer(tmp_path, 2, precision=precision).fit(ranker, datamodule=data(name))
    assert all(part.isfinite().all() for part in ranker.parameters())
    assert scores(ranker.eval(), kinds(CASES[name].kind)["test"]).isfinite().all()


# ---- checkpoints and resume -----------------------------------------------------------------------------------------


def resumable(name):
    """LightGBM's text has 17 digits of every number; its trees are equal, sums of many in another order."""
    return {"rtol": 1e-12, "atol": 1e-12} if name == "gbdt" else {}


def daily(names):
    """The first case of every kind of ranker; the others of these names are run once a week."""
    every_day = set(KINDS.values())
    return [pytest.param(name, marks=[] if name in every_day else [pytest.mark.weekly]) for name in names]


@pytest.mark.parametrize("name", daily(CASES))
def test_a_fit_that_is_cut_and_resumed_ends_where_an_uninterrupted_one_does(name, tmp_path):
    case, test = CASES[name], kinds(CASES[name].kind)["test"]
    whole = make(name)
    runner = trainer(tmp_path / "whole", case.epochs)
    runner.fit(whole, datamodule=data(name))
    rounds = runner.current_epoch
    for cut in sorted({1, rounds // 2, rounds - 1} & set(range(1, rounds))):
        trainer(tmp_path / str(cut), cut).fit(make(name), datamodule=data(name))
        last, resumed = tmp_path / str(cut) / "last.ckpt", make(name, seed=5)
        again = trainer(tmp_path / str(cut), case.epochs)
        again.fit(resumed, datamodule=data(name), ckpt_path=last, weights_only=True)
        assert again.current_epoch == rounds
        equal(whole, resumed, **resumable(name))
        assert torch.equal(scores(torchrank.load(last), test), scores(resumed.eval(), test))


@pytest.mark.parametrize("name", daily(BY_ROUNDS))
def test_an_interrupt_at_any_sum_over_processes_loses_one_round_at_most(name, tmp_path, monkeypatch):
    case, calls, reduce = CASES[name], [], TrainingLists.reduce
    stop = None

    def counted(self, tensor):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return reduce(self, tensor)

    monkeypatch.setattr(TrainingLists, "reduce", counted)
    whole = make(name)
    trainer(tmp_path / "whole", case.epochs).fit(whole, datamodule=data(name))
    total = len(calls)  # 0 where nothing is summed
    for stop in sorted({each for each in (1, total // 3, 2 * total // 3, total) if 1 <= each <= total}):
        calls.clear()
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            trainer(tmp_path / str(stop), case.epochs).fit(make(name), datamodule=data(name))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        last, resumed = tmp_path / str(stop) / "last.ckpt", make(name, seed=5)
        stop = None
        again = trainer(last.parent, case.epochs)
        again.fit(resumed, datamodule=data(name), ckpt_path=last if last.exists() else None, weights_only=True)
        equal(whole, resumed, **resumable(name))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_fit_is_resumed_on_its_own_data_and_with_its_own_options_only(name, tmp_path):
    case = CASES[name]
    trainer(tmp_path, 1).fit(make(name), datamodule=data(name))
    own, last = kinds(case.kind), tmp_path / "last.ckpt"
    x = own["train"].x.clone()
    x[0, 0] += 1
    vectors = {} if own["train"].queries is None else {"queries": own["train"].queries}
    moved = RankingSet(x, own["train"].relevance, **vectors)
    other = RankingDataModule.from_sets(train=moved, val=own["val"], test=own["test"])
    with pytest.raises(torchrank.CheckpointError, match=r"Cannot resume: the training data .* differs .* rows"):
        trainer(tmp_path, 3).fit(make(name), datamodule=other, ckpt_path=last, weights_only=True)
    wrong = ListNet(FEATURES) if name != "listnet" else LambdaRank(FEATURES)
    if own["train"].has_queries:
        wrong = SVMMap(FEATURES, transform="standard") if not name.startswith("svmmap") else MLR(FEATURES)
    with pytest.raises(torchrank.CheckpointError, match=f"holds a {type(make(name)).__name__}, not a"):
        trainer(tmp_path, 3).fit(wrong, datamodule=data(name), ckpt_path=last, weights_only=True)
    kind = type(make(name))
    changed = next(each for each in ("transform", "pull", "members") if each in signature(kind).parameters)
    others = {"transform": lambda: kind(FEATURES, transform="quantile"), "pull": lambda: kind(FEATURES, pull=7.0)}
    different = others.get(changed, lambda: kind([RandomRanker(FEATURES)]))()
    with pytest.raises(torchrank.CheckpointError, match=f"Cannot resume: .*{changed}"):
        trainer(tmp_path, 3).fit(different, datamodule=data(name), ckpt_path=last, weights_only=True)


@pytest.mark.parametrize("name", ["lambdarank", "lambdarank_scheduled", "mlp_listnet_pca", "lowrank_mlr"])
def test_a_checkpoint_in_the_middle_of_an_epoch_is_resumed(name, tmp_path):
    every = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False)
    whole = make(name)
    trainer(tmp_path, 3, callbacks=[every]).fit(whole, datamodule=data(name))
    for step in (1, 2, 4, 5):
        resumed, again = make(name, seed=5), trainer(tmp_path / "again", 3)
        again.fit(resumed, datamodule=data(name), ckpt_path=tmp_path / f"{step}.ckpt", weights_only=True)
        equal(whole, resumed, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in BY_ROUNDS if name in ONE_OF_EACH])
def test_resuming_a_fit_that_is_over_runs_no_round(name, tmp_path):
    case, ranker = CASES[name], make(name)
    trainer(tmp_path, case.epochs).fit(ranker, datamodule=data(name))
    again = make(name, seed=5)
    again.round = None  # a round would fail
    runner = trainer(tmp_path, case.epochs)
    runner.fit(again, datamodule=data(name), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    equal(ranker, again)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_streamed_sets_give_the_fit_of_resident_ones(name, tmp_path):
    found = []
    for resident in (True, False):
        ranker = make(name)
        runner = trainer(tmp_path / str(resident), CASES[name].epochs)
        runner.fit(ranker, datamodule=data(name, resident=resident))
        found.append(ranker)
    equal(*found, rtol=1e-5, atol=1e-6)  # rows elsewhere in memory may be multiplied in another order


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_sanity_checks_and_sets_without_validation_lists_do_no_harm(name, tmp_path):
    case, ranker, module = CASES[name], make(name), data(name)
    trainer(tmp_path, case.epochs, num_sanity_val_steps=2).fit(ranker, datamodule=module)
    expected = make(name)
    trainer(tmp_path, case.epochs).fit(expected, datamodule=data(name))
    equal(expected, ranker)
    if not ranker.chosen_by:
        alone = RankingDataModule.from_sets(train=module.sets["train"], batch_documents=20)
        without = make(name)
        bare(tmp_path, case.epochs).fit(without, datamodule=alone)
        assert scores(without.eval(), module.sets["test"]).shape == module.sets["test"].labels.shape


def test_a_checkpoint_of_version_0_1_is_refused(tmp_path):
    trainer(tmp_path, 1).fit(make("rankboost"), datamodule=data("rankboost"))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del saved["format"]
    torch.save(saved, tmp_path / "old.ckpt")
    with pytest.raises(torchrank.CheckpointError, match=r"made with torchrank 0\.1"):
        torchrank.load(tmp_path / "old.ckpt")
    with pytest.raises(torchrank.CheckpointError, match=r"made with torchrank 0\.1"):
        trainer(tmp_path, 3).fit(
            RankBoost(FEATURES, rounds=12),
            datamodule=data("rankboost"),
            ckpt_path=tmp_path / "old.ckpt",
            weights_only=True,
        )


def test_an_unfitted_ranker_says_so():
    for name in ("lgmml", "queryknn", "dk", "local_listnet"):
        with pytest.raises(torchrank.NotFittedError, match="not fitted"):
            make(name).eval()(torch.zeros(2, FEATURES), torch.tensor([0, 2]))
    with pytest.raises(torchrank.NotFittedError, match="not fitted"):
        NeuralRanker(FEATURES)(torch.zeros(2, FEATURES), torch.tensor([0, 2]))


def test_nothing_is_printed_by_a_fit_without_lightning(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=torchrank.ConvergenceWarning)
        fitted("lambdarank")
        fitted("rankboost")
    assert capsys.readouterr() == ("", "")
