"""What a ranker and `ranker(x, offsets, ...)` are given: what has a meaning is taken, the rest is refused clearly."""

import pytest
import torch
from pytorch_lightning import Trainer
from scipy.sparse import csc_array

from tests.rankers.metric.fits import graded
from tests.rankers.small import FEATURES, lists, trainer
from torchrank import (
    PAMIR,
    AdaRank,
    DominationRank,
    GBDTRanker,
    LambdaRank,
    ListNet,
    LowRankMLR,
    NeuralRanker,
    RankingDataModule,
    RankingSet,
    SingleFeature,
    SVMMap,
)
from torchrank.data import SparseRows
from torchrank.rankers.neural.scorers import SCORERS

X = lists(2).x
OFFSETS = lists(2).offsets


@pytest.mark.parametrize(
    ("ranker", "options", "message"),
    [
        (ListNet, {"tolerance": 0}, "tolerance must be > 0, got 0"),
        (SingleFeature, {"k": 0}, "k must be >= 1, got 0"),
        (GBDTRanker, {"leaves": 1}, "leaves must be >= 2, got 1"),
        (NeuralRanker, {"scorer_options": {"hiden": 3}}, "'mlp' has no option hiden; its options are: hidden, dropout"),
        (NeuralRanker, {"loss_options": {"labels": 3}}, "'lambdarank' has no option labels; its options are: k"),
    ],
)
def test_options_without_a_meaning_are_refused(ranker, options, message):
    with pytest.raises(ValueError, match=message):
        ranker(FEATURES, **options)


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_neural_scorers_answer_in_the_type_of_the_rows(scorer, dtype):
    ranker = NeuralRanker(FEATURES, scorer=scorer, transform=None).eval()
    rows = X.to(dtype).requires_grad_()
    found, expected = ranker(rows, OFFSETS), ranker(rows.detach().float(), OFFSETS)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1 if dtype != torch.float64 else 1e-5)
    found.float().sum().backward()
    assert rows.grad.isfinite().all()


def test_trees_take_half_precision_and_rows_of_a_network():
    pytest.importorskip("lightgbm")
    ranker = GBDTRanker(FEATURES, rounds=3, transform=None).fit(lists(0))
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
        ({"index": torch.tensor([True, False])}, r"each of 2 entries .N,., got torch.bool"),
        ({"index": torch.tensor([0.0, 1.0])}, "got torch.float32"),
        ({"index": torch.tensor([[0], [1]])}, r"got torch.int64 .2, 1."),
        ({"index": torch.tensor([0, 1]), "query": torch.tensor([0, 1])}, "position of each of 1 lists"),
        ({"index": torch.tensor([0, 1]), "query": torch.tensor([0.0])}, "each of 1 lists, got torch.float32"),
        ({"index": torch.tensor([0])}, "offsets end at 2 but there are 1 entries"),
    ],
)
def test_what_are_no_rows_and_no_positions(parts, message):
    with pytest.raises(ValueError, match=message):
        ListNet(FEATURES, transform=None)(X, torch.tensor([0, 2]), **parts)


def test_states_of_earlier_versions_have_no_names_of_features(tmp_path):
    train = lists(0)
    train.feature_names = tuple(f"f{number}" for number in range(FEATURES))
    ranker, module = ListNet(FEATURES), RankingDataModule.from_sets(train=train, val=train)
    trainer(tmp_path, 2, monitor=None).fit(ranker, datamodule=module)
    assert ranker.feature_names == train.feature_names
    state = ranker.state_dict()
    del state["_extra_state"]["feature_names"]
    again = ListNet(FEATURES)
    again.load_state_dict(state)
    assert again.feature_names is None and torch.equal(again(X, OFFSETS), ranker(X, OFFSETS))


def test_sparse_matrices_of_scipy():
    ranker = NeuralRanker(FEATURES, transform=None)
    assert torch.equal(ranker(csc_array(X.numpy()), OFFSETS), ranker(SparseRows.from_dense(X), OFFSETS))
    with pytest.raises(ValueError, match="AdaRank does not take sparse rows"):
        AdaRank(FEATURES, transform=None)(csc_array(X.numpy()), OFFSETS)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([["a"] * FEATURES], "x must hold numbers, got the string 'a'"),
        ([[1.0, 2.0], [3.0]], "rows of x have different lengths, 2 and 1"),
        (5, "x is an int: give a tensor, a numpy array"),
        (X[0].numpy(), r"expected x .n, D."),
        (X.numpy()[:1, :2], f"was made for {FEATURES} features, but these rows have 2"),
    ],
)
def test_what_are_no_rows(x, message):
    with pytest.raises(ValueError, match=message) as caught:
        ListNet(FEATURES, transform=None)(x, group=[1])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [DominationRank, PAMIR])
def test_topics_without_a_model_are_refused(make):
    ranker = make(FEATURES, per_topic=True, rounds=2, transform=None).fit(lists(0, num_lists=3))
    row, one = X[:1], torch.tensor([0, 1])
    assert ranker(row, one, query=torch.tensor([2], dtype=torch.int32)).shape == (1,)
    for query in (-1, 3):
        with pytest.raises(ValueError, match=f"query is {query}..{query}, but {make.__name__} has models of 3 topics"):
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


def test_large_integers_keep_their_differences():
    x, offsets = 1_700_000_000 + 3 * torch.arange(6)[:, None], torch.tensor([0, 6])
    ranker = SVMMap(1, transform="standard")
    ranker.transform.fit(x, offsets)
    ranker.weight.data.fill_(1.0)
    assert torch.equal(ranker(x, offsets), ranker(x.double(), offsets).float())
    assert len(ranker(x, offsets).unique()) == 6


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"offsets": torch.tensor([0, 4, 2, 6])}, "offsets"),
        ({"offsets": torch.tensor([0, 4])}, "offsets end at 4"),
        ({"index": torch.tensor([0, 1, 2, 3, 4, -1])}, "-1..4"),
        ({"index": torch.tensor([0, 1, 2, 3, 4, 6])}, "corpus has 6 rows"),
        ({"queries": torch.zeros(2, FEATURES)}, r"\(2, 6\)"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(parts, message):
    given = {"offsets": torch.tensor([0, 4, 6, 6]), "queries": torch.zeros(3, FEATURES)} | parts
    with pytest.raises(ValueError, match=message):
        LowRankMLR(FEATURES, transform=None)(torch.zeros(6, FEATURES), given.pop("offsets"), **given)


def test_a_shared_corpus_is_scored_as_its_flat_copy():
    corpus, index, offsets = torch.randn(7, FEATURES), torch.tensor([3, 1, 1, 6, 0]), torch.tensor([0, 2, 5])
    ranker = NeuralRanker(FEATURES, transform=None).eval()
    with torch.no_grad():
        torch.testing.assert_close(ranker(corpus, offsets, index=index), ranker(corpus[index], offsets))
        ranked = ranker.rank(corpus, offsets, index=index)
    assert sorted(ranked[:2].tolist()) == [1, 3]


def test_sparse_rows_are_scored_as_dense_ones():
    dense = torch.randn(9, FEATURES) * (torch.rand(9, FEATURES) < 0.4)
    ranker, offsets = NeuralRanker(FEATURES, transform=None).eval(), torch.tensor([0, 4, 9])
    with torch.no_grad():
        torch.testing.assert_close(ranker(SparseRows.from_dense(dense), offsets), ranker(dense, offsets))


def test_integer_labels_change_nothing():
    train, test = lists(0), lists(2)
    whole = RankingSet(train.x, train.labels.to(torch.int64), train.offsets)
    one, other = (ListNet(FEATURES).fit(each) for each in (train, whole))
    assert torch.equal(one(test.x, test.offsets), other(test.x, test.offsets))


def test_loaders_in_place_of_a_datamodule_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"RankingDataModule\.from_sets"):
        trainer(tmp_path).fit(LambdaRank(FEATURES), [lists(0)[:]])


def test_sets_that_are_missing_are_named(tmp_path):
    ranker, module = LambdaRank(FEATURES), RankingDataModule.from_sets(train=lists(0))
    runner = trainer(tmp_path, 2, monitor=None)
    runner.fit(ranker, datamodule=module)  # a fit without validation lists is fine
    with pytest.raises(ValueError, match="needs test lists, but the data has train only"):
        runner.test(ranker, datamodule=module)
    with pytest.raises(TypeError, match="vali"):
        RankingDataModule.from_sets(train=lists(0), vali=lists(1))
