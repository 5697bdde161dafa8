"""What every ranker owes its user: scores of whole lists, safe checkpoints, clear refusals, labels out of reach."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import torchrank
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import (
    AdaRank,
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
from torchrank.functional import ndcg

RANKERS = {
    "listnet": lambda: ListNet(FEATURES, rounds=20),
    "listnet_gradient": lambda: ListNet(FEATURES, solver="gradient"),
    "lambdarank": lambda: LambdaRank(FEATURES, lr=0.05),
    "mlp": lambda: NeuralRanker(FEATURES, "mlp", "ranknet", scorer_options={"hidden": [8, 4], "dropout": 0.1}),
    "pca": lambda: NeuralRanker(FEATURES, "linear", "listnet", [{"name": "pca", "variance": 0.7}], lr=0.05),
    "listnet_pca": lambda: ListNet(FEATURES, transform={"name": "pca", "variance": 0.7}, rounds=20),
    "minmax": lambda: LambdaRank(FEATURES, transform="query_minmax", lr=0.05),
    "singlefeature": lambda: SingleFeature(FEATURES),
    "gbdt": lambda: GBDTRanker(FEATURES, rounds=8, min_leaf=3, leaves=4, threads=1),
    "gbdt_regression": lambda: GBDTRanker(FEATURES, "regression", rounds=8, min_leaf=3, leaves=4, threads=1),
}


@pytest.fixture(params=RANKERS, scope="module")
def fitted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    ranker = RANKERS[request.param]()
    runner = trainer(folder, ranker.rounds or 20)
    runner.fit(ranker, datamodule=data())
    runner.test(ranker, datamodule=data(), verbose=False)
    runner.save_checkpoint(folder / "saved.ckpt")
    return ranker.eval(), folder / "saved.ckpt"


def test_it_learns(fitted):
    ranker, _ = fitted
    test = lists(2)
    with torch.no_grad():
        learned = ndcg(ranker(test.x, test.offsets), test.labels, test.offsets, k=10).nanmean()
    by_chance = ndcg(torch.zeros(len(test.labels)), test.labels, test.offsets, k=10, ties="average").nanmean()
    assert learned > by_chance + 0.05
    assert learned == pytest.approx(ranker.measured["test"]["default"]["measures"]["ndcg@10"], abs=1e-6)


def test_a_checkpoint_is_all_that_is_needed(fitted):
    ranker, path = fitted
    test = lists(2)
    loaded = torchrank.load(path)
    assert type(loaded) is type(ranker)
    with torch.no_grad():
        torch.testing.assert_close(loaded(test.x, test.offsets), ranker(test.x, test.offsets), rtol=0, atol=0)


def test_integer_labels_change_nothing(fitted):
    ranker, path = fitted
    sets = {"train": lists(0), "val": lists(1), "test": lists(2)}
    whole = {name: RankingSet(s.x, s.labels.to(torch.int64), s.offsets) for name, s in sets.items()}
    module = RankingDataModule.from_sets(**whole, batch_documents=40)
    trainer(path.parent).test(ranker, datamodule=module, verbose=False)
    found = dict(ranker.measured["test"]["default"]["measures"])
    trainer(path.parent).test(ranker, datamodule=data(), verbose=False)
    assert found == ranker.measured["test"]["default"]["measures"]


def test_a_loaded_ranker_is_tested_on_test_lists_alone(fitted):
    loaded, module = torchrank.load(fitted[1]), RankingDataModule.from_sets(test=lists(2))
    trainer(fitted[1].parent).test(loaded, datamodule=module, verbose=False)
    assert loaded.measured["test"]["default"]["lists"] == 12


def test_rank_orders_each_list_by_score(fitted):
    ranker, _ = fitted
    test = lists(2)
    with torch.no_grad():
        rows, scores = ranker.rank(test.x, test.offsets), ranker(test.x, test.offsets)
    for a, b in zip(test.offsets[:-1].tolist(), test.offsets[1:].tolist(), strict=True):
        expected = sorted(range(a, b), key=lambda i: (-scores[i].item(), i))
        assert rows[a:b].tolist() == expected


def test_the_labels_of_an_evaluated_list_reach_no_score(fitted):
    ranker, _ = fitted
    wrong = lists(2)
    wrong.labels = wrong.labels[torch.randperm(len(wrong.labels), generator=torch.Generator().manual_seed(3))]
    module = RankingDataModule.from_sets(train=lists(0), val=lists(1), test=wrong, batch_documents=40)
    runner = trainer(fitted[1].parent)
    one = torch.cat(runner.predict(ranker, datamodule=data()))
    other = torch.cat(runner.predict(ranker, datamodule=module))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_lists_without_documents_and_without_lists(fitted):
    ranker, _ = fitted
    x = torch.zeros(0, FEATURES)
    with torch.no_grad():
        assert ranker(x, torch.tensor([0])).shape == (0,)
        assert ranker(x, torch.tensor([0, 0])).shape == (0,)


def test_other_numbers_of_features_are_refused(fitted):
    with pytest.raises(ValueError, match="made for 6 features, these rows have 4"):
        fitted[0](torch.zeros(2, 4), torch.tensor([0, 2]))


def test_integer_rows_are_scored_as_the_same_numbers(fitted):
    x = torch.randint(-3, 4, (9, FEATURES), generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, 4, 9])
    with torch.no_grad():
        expected = fitted[0](x.float(), offsets)
        assert torch.equal(fitted[0](x, offsets.int()), expected) and expected.any()


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
        ({"offsets": torch.tensor([0, 4, 2, 6])}, "never fall"),
        ({"offsets": torch.tensor([0, 4])}, "offsets end at 4"),
        ({"index": torch.tensor([0, 1, 2, 3, 4, -1])}, "index runs over -1..4"),
        ({"index": torch.tensor([0, 1, 2, 3, 4, 6])}, "the corpus has 6 rows"),
        ({"queries": torch.zeros(2, FEATURES)}, r"query vectors \(2, 6\) for lists"),
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


def test_kinds_of_data_that_a_ranker_does_not_take_are_refused_with_the_reason():
    offsets, index = torch.tensor([0, 2]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="SingleFeature does not take a corpus"):
        SingleFeature(FEATURES)(torch.zeros(2, FEATURES), offsets, index=index)
    with pytest.raises(ValueError, match="does not take query vectors"):
        LambdaRank(FEATURES)(torch.zeros(2, FEATURES), offsets, index=index, queries=torch.zeros(1, FEATURES))


@pytest.mark.parametrize("value", [np.float64(0.1), OmegaConf.create({"k": 1}), torch.tensor(1.0), lambda: 1])
def test_hyper_parameters_are_plain(value):
    with pytest.raises(ValueError, match="pass a plain"):
        LambdaRank(FEATURES, lr=value)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    torch.save({"ranker": "os.system"}, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=r"holds a os.system, not one of"):
        torchrank.load(tmp_path / "x.ckpt")
    np.savez(tmp_path / "x.npz", x=1)
    for content in ((tmp_path / "x.npz").read_bytes(), b"", b"# text", b"hello world", bytes(range(256))):
        (tmp_path / "y.ckpt").write_bytes(content)
        with pytest.raises(ValueError, match=r"y.ckpt is not a checkpoint of torchrank"):
            torchrank.load(tmp_path / "y.ckpt")
    with pytest.raises(FileNotFoundError):
        torchrank.load(tmp_path / "none.ckpt")


def test_rounds_refuse_settings_that_would_spoil_them(tmp_path):
    with pytest.raises(ValueError, match="min_epochs=3"):
        trainer(tmp_path, min_epochs=3).fit(ListNet(FEATURES), datamodule=data())
    for make in (ListNet, LambdaRank):
        with pytest.raises(ValueError, match="below 32 bits"):
            trainer(tmp_path, precision="bf16-true").fit(make(FEATURES), datamodule=data())


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
@pytest.mark.parametrize("make", [ListNet, LambdaRank, NeuralRanker])
def test_other_precisions(precision, make, tmp_path):
    dense = lists(0)
    sparse = RankingSet(SparseRows.from_dense(dense.x), dense.labels, dense.offsets)
    for train, transform in ((dense, "standard"), (sparse, "l2")):
        ranker = make(FEATURES, transform=transform)
        module = RankingDataModule.from_sets(train=train, val=train)
        trainer(tmp_path, 2, precision=precision).fit(ranker, datamodule=module)
        assert all(torch.isfinite(p).all() for p in ranker.parameters())


def test_the_last_round_is_validated_whatever_the_interval(tmp_path):
    ranker = ListNet(FEATURES, rounds=7, tolerance=0.0)
    trainer(tmp_path, 7, check_val_every_n_epoch=5).fit(ranker, datamodule=data())
    at_the_end = ranker.measured["val"]["default"]["measures"]
    trainer(tmp_path).validate(ranker, datamodule=data(), verbose=False)
    assert ranker.measured["val"]["default"]["measures"] == at_the_end


def test_loaders_in_place_of_a_datamodule_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"RankingDataModule\.from_sets"):
        trainer(tmp_path).fit(LambdaRank(FEATURES), [lists(0)[:]])


def test_totals_are_additive_and_reduce_every_tensor(tmp_path):
    sums = {}

    class Probe(SingleFeature):
        def round(self):
            batch = self.data.ready("train")[:]
            pair = self.total(lambda b: (b.labels.double().sum(), b.x.double().sum(0)))
            sums["parts"] = self.total(self.quality), pair
            sums["whole"] = self.quality(batch), (batch.labels.double().sum(), batch.x.double().sum(0))
            into = (torch.zeros(FEATURES, dtype=torch.float64),)
            self.total(lambda b, into: into[0].add_(b.x.double().sum(0)), into)
            sums["into"] = into[0]
            return super().round()

    trainer(tmp_path, 1).fit(Probe(FEATURES), datamodule=data(batch_documents=7))
    torch.testing.assert_close(sums["parts"], sums["whole"])
    torch.testing.assert_close(sums["into"], sums["whole"][1][1])


def test_streamed_sets_give_the_same_fit_as_resident_ones(tmp_path):
    states = []
    for resident in (True, False):
        torch.manual_seed(0)
        ranker = LambdaRank(FEATURES, lr=0.05)
        trainer(tmp_path, 3).fit(ranker, datamodule=data(resident=resident))
        states.append(ranker.state_dict())
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def test_a_set_of_lists_with_one_grade_teaches_nothing_and_breaks_nothing(tmp_path):
    flat = lists(0)
    flat = RankingSet(flat.x, torch.zeros_like(flat.labels), flat.offsets)
    for make in (RANKERS["listnet"], RANKERS["lambdarank"], RANKERS["mlp"]):
        ranker = make()
        trainer(tmp_path, 2).fit(ranker, datamodule=RankingDataModule.from_sets(train=flat, val=lists(1)))
        assert all(torch.isfinite(p).all() for p in ranker.parameters())


def test_sets_that_are_missing_are_named(tmp_path):
    ranker, module = LambdaRank(FEATURES), RankingDataModule.from_sets(train=lists(0))
    runner = trainer(tmp_path, 2, monitor=None)
    runner.fit(ranker, datamodule=module)  # a fit without validation lists is fine
    with pytest.raises(ValueError, match="needs test lists, and this data has train only"):
        runner.test(ranker, datamodule=module)
    with pytest.raises(TypeError, match="vali"):
        RankingDataModule.from_sets(train=lists(0), vali=lists(1))


def test_a_constant_feature_does_not_profit_from_lists_sorted_by_label(tmp_path):
    labels = torch.tensor([2.0, 1.0, 0.0, 0.0] * 5)
    x = torch.stack([torch.ones(20), labels + 0.6 * torch.tensor([0.0, 1.0, -1.0, 1.0, 0.0] * 4)], 1)
    sorted_lists = RankingSet(x, labels, torch.arange(0, 21, 4))
    ranker = SingleFeature(2)
    trainer(tmp_path, 1).fit(ranker, datamodule=RankingDataModule.from_sets(train=sorted_lists, val=sorted_lists))
    assert ranker.feature == 1 and ranker.sign == 1


def test_a_second_fit_fits_the_transform_again(tmp_path):
    ranker, other = ListNet(FEATURES, rounds=3), lists(5)
    trainer(tmp_path, 3).fit(ranker, datamodule=data())
    other = RankingSet(100 * other.x + 7, other.labels, other.offsets)
    trainer(tmp_path, 3).fit(ranker, datamodule=RankingDataModule.from_sets(train=other, val=other))
    torch.testing.assert_close(ranker.transform.mean, other.x.double().mean(0))


def test_a_certificate_that_was_not_reached_is_said(tmp_path):
    with pytest.warns(UserWarning, match="before its certificate"):
        trainer(tmp_path, 2).fit(ListNet(FEATURES, rounds=2), datamodule=data())


@pytest.mark.parametrize("options", [{"num_iterations": 5}, {"n_estimators": 5}, {"boosting": "dart"}])
def test_options_that_the_rounds_own_are_refused(options):
    with pytest.raises(ValueError, match="rounds are an option of the ranker"):
        GBDTRanker(FEATURES, options=options)


def test_what_is_stored_may_be_the_parameter_itself():
    ranker = AdaRank(FEATURES)
    ranker.store({"alpha": torch.tensor([1.0, 2.0])})
    ranker.store({"alpha": ranker.alpha})
    assert ranker.alpha.tolist() == [1.0, 2.0] and ranker.alpha.dtype == torch.float64
