"""What `ranker(x, offsets, ...)` is given: every type of number that has a meaning, and clear words for the others."""

import warnings

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer

from tests.rankers.metric_fits import graded
from tests.rankers.small import FEATURES, lists, trainer
from torchrank import PAMIR, DominationRank, GBDTRanker, ListNet, NeuralRanker, RankingDataModule, RankingSet, SVMMap
from torchrank.data import SparseRows, make_transform

X = lists(2).x
OFFSETS = lists(2).offsets


@pytest.mark.parametrize("scorer", ["linear", "mlp", "local"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_neural_scorers_answer_in_the_type_of_the_rows(scorer, dtype):
    ranker = NeuralRanker(FEATURES, scorer=scorer, transform=None)
    rows = X.to(dtype).requires_grad_()
    found, expected = ranker(rows, OFFSETS), ranker(rows.detach().float(), OFFSETS)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1 if dtype != torch.float64 else 1e-5)
    found.float().sum().backward()
    assert rows.grad.isfinite().all()


def test_trees_take_half_precision_and_rows_of_a_network(tmp_path):
    pytest.importorskip("lightgbm")
    ranker = GBDTRanker(FEATURES, rounds=3, transform=None)
    module = RankingDataModule.from_sets(train=lists(0), val=lists(1))
    trainer(tmp_path, 3).fit(ranker, datamodule=module)
    rows = X.to(torch.bfloat16)
    expected = ranker(rows.float(), OFFSETS)
    assert torch.equal(ranker(rows, OFFSETS).to(expected), expected)
    assert torch.equal(ranker(rows.float().requires_grad_(), OFFSETS), expected)
    sparse = SparseRows.from_dense(X.half())
    assert torch.equal(ranker(sparse, OFFSETS), ranker(SparseRows.from_dense(X.half().float()), OFFSETS))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_row_numbers_of_any_width(dtype):
    ranker, index = NeuralRanker(FEATURES, transform=None), torch.tensor([3, 0, 200, 3, 1]) % len(X)
    expected = ranker(X, torch.tensor([0, 2, 5]), index=index)
    assert torch.equal(ranker(X, torch.tensor([0, 2, 5], dtype=dtype), index=index.to(dtype)), expected)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"index": torch.tensor([True, False])}, r"each of 2 entries, whole numbers .N,., got torch.bool"),
        ({"index": torch.tensor([0.0, 1.0])}, "got torch.float32"),
        ({"index": torch.tensor([[0], [1]])}, r"got torch.int64 .2, 1."),
        ({"index": torch.tensor([0, 1]), "query": torch.tensor([0, 1])}, "position of each of 1 lists"),
        ({"index": torch.tensor([0, 1]), "query": torch.tensor([0.0])}, "whole numbers, got torch.float32"),
        ({"index": torch.tensor([0])}, "offsets end at 2 but there are 1 entries"),
    ],
)
def test_what_are_no_rows_and_no_positions(parts, message):
    with pytest.raises(ValueError, match=message):
        ListNet(FEATURES, transform=None)(X, torch.tensor([0, 2]), **parts)


def test_arrays_are_refused():
    with pytest.raises(ValueError, match=r"rows are a ndarray: give a tensor"):
        ListNet(FEATURES, transform=None)(X.numpy(), OFFSETS)


@pytest.mark.parametrize("make", [DominationRank, PAMIR])
def test_topics_without_a_model_are_refused(tmp_path, make):
    ranker, lists_ = make(FEATURES, per_topic=True, rounds=2, transform=None), lists(0, num_lists=3)
    module = RankingDataModule.from_sets(train=lists_, val=lists_)
    trainer(tmp_path, 2).fit(ranker, datamodule=module)
    row, one = X[:1], torch.tensor([0, 1])
    assert ranker(row, one, query=torch.tensor([2], dtype=torch.int32)).shape == (1,)
    for query in (-1, 3):
        with pytest.raises(ValueError, match=f"query is {query}..{query}: {make.__name__} has models of 3 topics"):
            ranker(row, one, query=torch.tensor([query]))
    with pytest.raises(ValueError, match=r"query is 0..3"):
        ranker(X[:4], torch.arange(5))


def test_query_vectors_come_as_in_the_fit(tmp_path):
    vectors = graded("flat")
    none = RankingSet(vectors.x, vectors.labels, vectors.offsets)
    for form, other, there in ((vectors, none, True), (none, vectors, False)):
        ranker = SVMMap(form.num_features, C=3.0, eps=0.1, transform=None)
        module = RankingDataModule.from_sets(train=form, val=form, test=form)
        trainer(tmp_path, 500, monitor=None).fit(ranker, datamodule=module)
        words = f"SVMMap was fitted {'with' if there else 'without'} query vectors"
        given = {"queries": vectors.queries}
        with pytest.raises(ValueError, match=words):
            ranker(form.x, form.offsets, **{} if there else given)
        last = tmp_path / "x.ckpt"
        ranker.trainer.save_checkpoint(last)
        again = SVMMap.load_from_checkpoint(last, weights_only=True)
        given = given if there else {}
        assert torch.equal(again(form.x, form.offsets, **given), ranker(form.x, form.offsets, **given))
        fresh = SVMMap(form.num_features, C=3.0, eps=0.1, transform=None)
        wrong = RankingDataModule.from_sets(train=form, val=other, test=other)
        for use in (Trainer.validate, Trainer.test, Trainer.predict):  # the checkpoint says what it was fitted with
            with pytest.raises(ValueError, match=words):
                use(trainer(tmp_path), fresh, datamodule=wrong, ckpt_path=last, weights_only=True)
        with pytest.raises(ValueError, match=words):
            trainer(tmp_path, 2).fit(SVMMap(form.num_features, eps=0.1, transform=None), datamodule=wrong)
        trainer(tmp_path, 2, monitor=None).fit(fresh, datamodule=RankingDataModule.from_sets(train=other, val=other))
        trainer(tmp_path).test(fresh, datamodule=module, ckpt_path=last, weights_only=True, verbose=False)


def test_digits_that_float32_does_not_have_are_told(tmp_path):
    train = lists(0)
    far = train.x.double() + 1e8 * (torch.arange(FEATURES) == 1)

    def fit(x, transform=None):
        module = RankingDataModule.from_sets(train=RankingSet(x, train.labels, train.offsets))
        ranker = ListNet(FEATURES, transform=transform)
        trainer(tmp_path, 1, monitor=None, limit_val_batches=0).fit(ranker, datamodule=module)

    with pytest.warns(UserWarning, match=r"feature 1 .* in steps of 12 there. Use transform=standard"):
        fit(far)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*in steps of.*")
        fit(train.x.double())
        fit(far.float())  # what is lost already
        fit(far, "standard")
        fit(torch.where(torch.arange(FEATURES) == 1, 1e8, train.x.double()))  # a constant has no digits to lose


class Foreign(LightningModule):
    def predict_step(self, batch, batch_index):
        return batch.labels


def test_lists_are_read_by_modules_that_are_no_rankers(tmp_path):
    module, foreign = RankingDataModule.from_sets(test=lists(2)), Foreign()
    module.attach(make_transform(None, FEATURES), torch.device("cpu"))
    found = trainer(tmp_path).predict(foreign, datamodule=module)
    assert torch.equal(torch.cat(found), lists(2).labels)
