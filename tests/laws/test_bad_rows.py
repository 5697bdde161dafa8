"""Rows that are no numbers, and measures that have no value: laws for every ranker."""

import warnings
from copy import copy

import pytest
import torch
from pytorch_lightning import Trainer

from tests.laws.fitted import fitted, kinds
from tests.laws.rankers import CASES, KINDS
from torchrank import (
    LGMML,
    DataError,
    DataWarning,
    ListNet,
    RankingDataModule,
    RankingEstimator,
    RankingSet,
    RankSVM,
    SVMMap,
)
from torchrank.cli import main
from torchrank.rankers.core.evaluation import RankingEvaluation

each_ranker = pytest.mark.parametrize("name", KINDS.values())
pytestmark = pytest.mark.filterwarnings("ignore:.*(does not have many workers|GPU|TPU|litlogger).*")
PLACE = r"feature 2 \(counted from 0\) of row 3 is {}.*data\.missing=0"


def spoilt(lists: RankingSet, value: float) -> RankingSet:
    """The same lists with one feature that is not finite."""
    bad = copy(lists)
    bad.x, bad._finite = lists.x.clone(), False
    bad.x[3, 2] = value
    return bad


def trainer() -> Trainer:
    off = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return Trainer(accelerator="cpu", devices=1, use_distributed_sampler=False, **off)


@each_ranker
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_are_refused_by_calls(name, value):
    ranker, bad = fitted(name), spoilt(kinds(CASES[name].kind)["test"], value)
    batch = bad[:]
    given = {"index": batch.index, "queries": batch.queries}
    given = {key: part for key, part in given.items() if part is not None}
    for dtype in (torch.float32, torch.float64):
        for call in (ranker, ranker.rank):
            with pytest.raises(DataError, match=PLACE.format(str(value).removeprefix("-") if value > 0 else value)):
                call(batch.x.to(dtype), batch.offsets, **given)


@each_ranker
def test_rows_that_are_not_finite_are_refused_by_trainers(name):
    own, ranker = kinds(CASES[name].kind), fitted(name)
    bad = {"train": own["train"], "val": spoilt(own["val"], torch.nan), "test": spoilt(own["test"], torch.inf)}
    for stage, split in (("validate", "val"), ("test", "test"), ("predict", "test")):
        data = RankingDataModule.from_sets(**{**own, split: bad[split]}, batch_documents=20)
        with pytest.raises(DataError, match=PLACE.format("nan" if split == "val" else "inf")) as told:
            getattr(trainer(), stage)(ranker, datamodule=data)
        assert f"of the set '{split}'" in str(told.value) and "\n" not in str(told.value)


@each_ranker
def test_rows_that_are_not_finite_are_refused_in_validation_lists(name):
    case = CASES[name]
    own = kinds(case.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DataError, match=PLACE.format("nan")):
            case.make().fit(own["train"], spoilt(own["val"], torch.nan), epochs=case.epochs, batch_documents=20)


def test_the_query_of_the_row_is_named():
    x = torch.zeros(3, 2)
    x[2, 1] = torch.nan
    lists = RankingSet(x, [0, 1, 1], group=[2, 1], query_ids=["a", "b"], name="test")
    told = r"feature 1 .* of row 2 is nan, in query 'b' of the set 'test': clean"
    with pytest.raises(DataError, match=told):
        lists.check_rows()


def test_finite_rows_whose_sum_is_not_are_no_mistake():
    x = torch.full((4, 2), 3e38)
    RankingSet(x, [0, 1, 1, 0], group=[4]).check_rows()


@pytest.mark.parametrize(
    ("labels", "group", "reason"),
    [
        ([0, 0, 0], [2, 1], "val/ndcg@10 is nan: none of the 2 lists has a relevant document (a label above 0)"),
        ([0, 1, 0], [1, 1, 1], "val/auc and val/all_pairs_error are nan: none of the 3 lists has two documents"),
        ([1, 1, 1], [2, 1], "val/auc is nan: none of the 2 lists has both relevant documents"),
        ([2, 2, 2], [2, 1], "val/all_pairs_error is nan: none of the 2 lists has documents with different labels"),
        ([], [0, 0], "val/ndcg@10, val/map, val/auc and val/all_pairs_error are nan: all 2 lists are empty"),
    ],
)
def test_measures_that_are_nan_say_why(labels, group, reason):
    train = kinds("lists")["train"]
    val = RankingSet(torch.randn(len(labels), 5), torch.tensor(labels, dtype=torch.float32), group=group, name="val")
    run = trainer()
    run.callbacks.append(RankingEvaluation(["ndcg@10", "map", "auc", "all_pairs_error"]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run.validate(fitted("listnet"), datamodule=RankingDataModule.from_sets(train=train, val=val), verbose=False)
    found = [str(each.message) for each in told if each.category is DataWarning]
    assert any(each.startswith(reason) for each in found), found


def test_measures_with_a_value_say_nothing():
    own = kinds("lists")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        trainer().test(fitted("listnet"), datamodule=RankingDataModule.from_sets(**own), verbose=False)
        ListNet(5, rounds=2).fit(own["train"], own["val"])


@pytest.mark.parametrize("kind", ["queries", "points"])
@pytest.mark.parametrize("make", [SVMMap, RankSVM])
def test_structural_svms_take_the_transform_that_fits_the_lists(make, kind):
    for lists, named in ((kinds(kind)["train"], "standard"), (kinds("lists")["train"], "standard")):
        batch, by_name = lists[:], make(5, eps=0.1, transform=named).fit(lists)
        found = make(5, eps=0.1).fit(lists)
        given = {"index": batch.index, "queries": batch.queries}
        scores = [ranker(batch.x, batch.offsets, **given) for ranker in (found, by_name)]
        assert torch.equal(*scores)


def test_lgmml_query_needs_query_vectors():
    options = {"groups": "random", "metrics": 3, "queries_per_metric": 1, "anchor": "best", "kernel": "localized"}
    with pytest.raises(DataError, match=r"lgmml_query .* these lists have no query vectors: use model=lgmml"):
        LGMML(5, **options, tau=1.0, rounds=1).fit(kinds("lists")["train"])


def test_the_score_of_an_estimator_says_why_it_is_nan():
    x, y = kinds("lists")["train"].x.numpy(), kinds("lists")["train"].labels.numpy()
    estimator = RankingEstimator("listnet", rounds=2).fit(x, y, group=[len(x)])
    with pytest.warns(DataWarning, match="the score is nan: none of the 1 lists has a relevant document"):
        assert torch.isnan(torch.tensor(estimator.score(x, 0 * y, group=[len(x)])))


def test_torchrank_evaluate_says_why_measures_are_nan(tmp_path, capsys):
    (tmp_path / "labels").write_text("0 qid:1 1:1\n0 qid:1 1:2\n0 qid:2 1:1\n")
    (tmp_path / "scores").write_text("1\n2\n3\n")
    assert main(["evaluate", str(tmp_path / "scores"), str(tmp_path / "labels"), "--measures", "ndcg@5", "auc"]) == 0
    told = capsys.readouterr().err
    assert "ndcg@5 is nan: none of the 2 lists has a relevant document (a label above 0)" in told
    assert "auc is nan: none of the 2 lists has both relevant documents (a label of 1 or more) and others" in told
