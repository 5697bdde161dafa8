"""Ensembles against plain numpy: means of standardised scores, greedy and fitted weights, nesting, one file."""

import copy
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import torchrank
from tests.laws.rankers import CASES, queries
from tests.laws.rankers import lists as law_lists
from tests.rankers.small import lists, trainer
from tests.reference import ensembles as plain
from torchrank import (
    MLR,
    Ensemble,
    GBDTRanker,
    ListNet,
    NeuralRanker,
    RandomRanker,
    RankBoost,
    Ranker,
    RankingDataModule,
    RankingSet,
    Round,
    SingleFeature,
    SparseRows,
)
from torchrank.functional import err
from torchrank.rankers.ensemble.standard import standard_scores

pytestmark = pytest.mark.filterwarnings("ignore")


class Given(Ranker):
    """Scores that are a column of the rows."""

    takes = frozenset({"sparse", "corpus"})

    def __init__(self, num_features: int, column: int = 0):
        super().__init__(num_features, rounds=1)
        self.column = column

    def score(self, batch):
        return batch.at_entries(batch.x[:, self.column])

    def round(self, lists, number):
        return Round(done=True)


def columns(count, seed=0, lengths=(4, 1, 0, 7, 3, 12)):
    """Lists whose features are the scores of members that know the labels more or less."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (sum(lengths),), generator=generator).float()
    noise = torch.randn(len(labels), count, generator=generator) * torch.linspace(0.5, 2, count)
    return RankingSet(labels[:, None] + noise, labels, group=list(lengths))


@pytest.fixture(scope="module")
def members():
    train = lists(0)
    trees = GBDTRanker(6, rounds=5, min_leaf=2, threads=1)
    network = NeuralRanker(6, "mlp", "listnet", ["standard", "pca"], {"hidden": [4], "dropout": 0.5})
    found = [ListNet(6, transform="quantile"), trees, RankBoost(6, rounds=8), network]
    return [each.fit(train, epochs=4) for each in found]


def scores_by_list(members, lists):
    with torch.no_grad():
        return np.stack([member(lists.x, lists.offsets).double().numpy() for member in members])


# ---- standardised scores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 1e4, 1e-8, 1e200, 1e-200])
def test_standard_scores_are_those_of_numpy(dtype, size):
    some = columns(1, seed=3)
    scores, offsets = (some.x[:, 0].double() * size).to(dtype), some.offsets
    if not scores.isfinite().all() or not scores.any():
        return
    found = standard_scores(scores, offsets)
    scaled = scores.double().numpy() / size  # squares of the largest are no numbers
    np.testing.assert_allclose(found, plain.standardised(scaled, offsets.tolist()), atol=1e-12)
    assert found.dtype == torch.float64


def test_lists_of_equal_scores_count_nothing_and_rounding_is_no_difference():
    tenth = torch.tensor([0.1, 0.1, 0.1, 0.1 + 1e-8, 5.0, 7.0, 7.0])
    offsets = torch.tensor([0, 3, 4, 4, 5, 7])
    assert standard_scores(tenth, offsets).tolist() == [0.0] * 7
    noise = torch.tensor([1e4, 1e4 + 1e-3])  # neighbours in float32
    assert standard_scores(noise, torch.tensor([0, 2])).tolist() == [0.0, 0.0]
    assert standard_scores(noise + torch.tensor([0.0, 1.0]), torch.tensor([0, 2])).tolist() == [-1.0, 1.0]
    assert standard_scores(torch.zeros(0), torch.tensor([0])).shape == (0,)
    assert standard_scores(torch.tensor([1.0, torch.nan, 2.0]), torch.tensor([0, 2, 3])).isnan().tolist() == [1, 1, 0]


def test_standard_scores_have_slopes():
    scores, offsets = torch.randn(9, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 5, 5, 9])
    assert torch.autograd.gradcheck(lambda each: standard_scores(each, offsets), scores)


# ---- means -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 3.0, 0.5], np.array([1, 2, 3, 4]), torch.tensor([2, 2, 2, 2])])
def test_scores_are_the_mean_of_the_standardised_scores_of_the_members(members, weights):
    test, whole = lists(2), Ensemble(members, weights)
    expected = plain.mean(scores_by_list(members, test), test.offsets.tolist(), weights)
    np.testing.assert_allclose(whole(test.x, test.offsets), expected, atol=1e-6)
    assert float(whole.weights.sum()) == pytest.approx(1)


def test_one_member_alone_ranks_as_the_member(members):
    test = lists(2)
    for place, member in enumerate(members):
        order = member.rank(test.x, test.offsets)
        assert torch.equal(Ensemble([member]).rank(test.x, test.offsets), order)
        alone = np.eye(len(members))[place]
        assert torch.equal(Ensemble(members, alone).rank(test.x, test.offsets), order)


def test_nested_ensembles_equal_the_flat_one_with_the_products_of_the_weights(members):
    test, (a, b, c, d) = lists(2), members
    nested = Ensemble([Ensemble([a, b], [1, 3]), c, [a, d]], [2, 1, 1])
    flat = Ensemble([a, b, c, a, d], [0.5 * 0.25, 0.5 * 0.75, 0.25, 0.125, 0.125])
    torch.testing.assert_close(nested(test.x, test.offsets), flat(test.x, test.offsets), rtol=0, atol=1e-12)
    again = Ensemble([[[a, b], [c]], [[d]]])
    flat = Ensemble([a, b, c, d], [0.125, 0.125, 0.25, 0.5])
    torch.testing.assert_close(again(test.x, test.offsets), flat(test.x, test.offsets), rtol=0, atol=1e-12)


def test_an_average_over_seeds_of_trees_is_the_mean_of_what_lightgbm_itself_predicts():
    train, test = lists(0, 40), lists(2)
    options = {"feature_fraction": 0.5, "bagging_fraction": 0.7, "bagging_freq": 1}
    seeds = [GBDTRanker(6, rounds=9, min_leaf=2, threads=1, seed=seed, options=options).fit(train) for seed in range(4)]
    every = np.stack([each.booster.predict(test.x.numpy(), raw_score=True) for each in seeds])
    assert len(np.unique(every, axis=0)) == 4
    expected = plain.mean(every, test.offsets.tolist())
    np.testing.assert_allclose(Ensemble(seeds)(test.x, test.offsets), expected, atol=1e-12)


def test_members_are_copies_that_nothing_changes(members):
    test, whole = lists(2), Ensemble(members, weights="fitted")
    before = [copy.deepcopy(each.state_dict()) for each in members]
    whole.fit(lists(5), lists(1))
    expected = whole(test.x, test.offsets)
    member = copy.deepcopy(members[0])
    other = Ensemble([member, members[1]])
    first = other(test.x, test.offsets)
    member.fit(lists(7))
    assert torch.equal(other(test.x, test.offsets), first)
    for old, each in zip(before, members, strict=True):
        new = each.state_dict()
        assert all(torch.equal(new[key], value) for key, value in old.items() if isinstance(value, torch.Tensor))
    whole.train()  # dropout of a member stays off
    assert torch.equal(whole(test.x, test.offsets), expected)


# ---- chosen weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_greedy_weights_are_those_of_brute_force(seed):
    val = columns(4, seed, lengths=[9] * 12)
    every = val.x.T.double().numpy()
    counts = plain.greedy(every, val.labels.numpy(), val.offsets.tolist(), steps=8)
    whole = Ensemble([Given(4, column) for column in range(4)], weights="greedy", steps=8).fit(val, val)
    values = {"greedy": counts / counts.sum(), "equal": np.full(4, 0.25)} | {str(m): np.eye(4)[m] for m in range(4)}
    measured = {
        name: plain.ndcg(plain.mean(every, val.offsets.tolist(), each), val.labels.numpy(), val.offsets.tolist())
        for name, each in values.items()
    }
    best = max(measured.values())
    chosen = whole.weights.numpy()
    assert plain.ndcg(
        plain.mean(every, val.offsets.tolist(), chosen), val.labels.numpy(), val.offsets.tolist()
    ) == pytest.approx(best, abs=1e-12)
    if measured["greedy"] > max(value for name, value in measured.items() if name != "greedy") + 1e-9:
        np.testing.assert_allclose(chosen, values["greedy"])
    assert "alone" in whole.findings["weights"] and "equal weights" in whole.findings["weights"]


def test_the_best_member_alone_is_chosen_where_the_others_spoil_it():
    val = columns(3, lengths=[8] * 10)
    val = RankingSet(torch.cat([-val.x[:, :2], val.labels[:, None]], 1), val.labels, val.offsets)
    for way in ("greedy", "fitted"):
        whole = Ensemble([Given(3, column) for column in range(3)], weights=way).fit(val, val)
        assert whole.weights.tolist() == [0, 0, 1] and whole.findings["weights"].startswith("member 2 alone 1.0000")


@pytest.mark.parametrize("loss", ["listnet", "ranknet"])
def test_fitted_weights_minimise_the_loss_over_weights_that_are_not_negative(loss):
    from torchrank.rankers.ensemble.weights import PENALTY, ValidationScores, fitted

    val = columns(3, 1, lengths=[9] * 12)
    val.x[:, 2] *= -1  # a member that is better turned round, which weights >= 0 cannot do
    members = [Given(3, column) for column in range(3)]
    whole = Ensemble(members)
    found = fitted(ValidationScores(torchrank.TrainingLists(val), whole.every_score, "ndcg@10"), loss)
    every = np.stack([plain.standardised(each, val.offsets.tolist()) for each in val.x.T.numpy()])

    def objective(weights):
        scores = torch.tensor(weights @ every)
        values = torchrank.functional.losses.LOSSES[loss](scores, val.labels, val.offsets)
        return float(values.mean()) + PENALTY / 2 * (weights**2).sum()

    solved = minimize(objective, np.ones(3), bounds=[(0, None)] * 3, method="Nelder-Mead", options={"fatol": 1e-12})
    np.testing.assert_allclose(found, solved.x / solved.x.sum(), atol=2e-3)
    assert found[2] == 0 and float(found.sum()) == pytest.approx(1)


def test_weights_are_chosen_before_they_are_used():
    whole = Ensemble([Given(2)], weights="greedy")
    with pytest.raises(torchrank.NotFittedError, match="fit chooses its greedy weights on validation lists"):
        whole(torch.zeros(2, 2), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="weights=greedy are chosen on validation lists: give val"):
        whole.fit(columns(2))
    flat = RankingSet(torch.randn(4, 2), torch.ones(4), torch.tensor([0, 4]))
    with pytest.raises(torchrank.DataError, match="no validation list has entries with different labels"):
        whole.fit(columns(2), flat)


def test_weights_may_be_chosen_by_err_whose_top_grade_is_that_of_the_training_lists(members):
    train, val = lists(0), lists(1)
    whole = Ensemble(members, weights="greedy", choose_by="err@5").fit(train, val)
    top = float(train.labels.max())
    alone = [err(each(val.x, val.offsets), val.labels, val.offsets, k=5, max_label=top).nanmean() for each in members]
    told = whole.findings["weights"]
    assert f"member {int(torch.stack(alone).argmax())} alone {float(max(alone)):.4f}" in told


# ---- other kinds of data ---------------------------------------------------------------------------------------------


def test_members_with_and_without_query_vectors_rank_together():
    own, flat = queries("train"), law_lists("train")
    metric = MLR(5, C=3.0, eps=1e-2).fit(own)
    linear = ListNet(5, transform="query_minmax").fit(flat)
    whole, test = Ensemble([metric, linear], [1, 2]), queries("test")
    given = {"index": test.index, "queries": test.queries}
    every = [metric(test.x, test.offsets, **given), linear(test.x[test.index], test.offsets)]
    found = whole(test.x, test.offsets, **given)
    np.testing.assert_allclose(
        found, plain.mean([each.double().numpy() for each in every], test.offsets.tolist(), [1, 2]), atol=1e-6
    )
    with pytest.raises(torchrank.DataError, match="was fitted with query vectors"):
        whole(flat.x, flat.offsets)


def test_sparse_rows_reach_members_that_take_none_as_dense_ones(members):
    test = lists(2)
    whole = Ensemble(members)
    sparse = whole(SparseRows.from_dense(test.x), test.offsets)
    torch.testing.assert_close(sparse, whole(test.x, test.offsets))


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "options", "message"),
    [
        (lambda: [Given(2), Given(3)], {}, r"member 1 \(Given\) has 3 features, but member 0 \(Given\) has 2"),
        (lambda: [Given(2)], {"num_features": 5}, r"member 0 \(Given\) has 2 features, but the data has 5"),
        (lambda: [], {}, r"needs members=\["),
        (lambda: "run", {}, "members must be a list"),
        (lambda: [3], {}, "member 0 must be a fitted ranker, a checkpoint or a run folder, got 3"),
        (lambda: [Given(2)], {"weights": [1, 2]}, "a number >= 0 for each of 1 members"),
        (lambda: [Given(2)], {"weights": [-1]}, r"weights\[0\] must be >= 0, got -1"),
        (lambda: [Given(2)], {"weights": [0.0]}, "a finite sum above 0"),
        (lambda: [Given(2)] * 2, {"weights": [1e308, 1e308]}, "a finite sum above 0"),
        (lambda: [Given(2)], {"weights": [float("nan")]}, r"weights\[0\] must be"),
        (lambda: [Given(2)], {"weights": "best"}, "unknown weights='best': choose one of greedy, fitted"),
        (lambda: [Given(2)], {"loss": "lad"}, "unknown loss='lad'"),
        (lambda: [Given(2)], {"choose_by": "all_pairs_error"}, "to maximise"),
        (lambda: [Given(2)], {"steps": 0}, "steps must be >= 1, got 0"),
        (lambda: [[Given(2)] * 600] * 2, {}, "at most 1000 rankers"),
    ],
)
def test_what_cannot_be_an_ensemble_is_refused_in_one_line(members, options, message):
    with pytest.raises(ValueError, match=message) as error:
        Ensemble(members(), **options)
    assert "\n" not in str(error.value)


def test_members_that_are_not_fitted_or_have_other_features_say_so():
    x, offsets = torch.zeros(2, 6), torch.tensor([0, 2])
    with pytest.raises(torchrank.NotFittedError):
        Ensemble([ListNet(6, transform="standard")])(x, offsets)
    with pytest.raises(FileNotFoundError, match="checkpoint not found: no/such/run"):
        Ensemble(["no/such/run"])
    named = [copy.copy(lists(0)) for _ in range(2)]
    for each, names in zip(named, ("abcdef", "abcdeg"), strict=True):
        each.feature_names = tuple(names)
    with pytest.raises(torchrank.DataError, match="feature 5"):
        Ensemble([SingleFeature(6).fit(each) for each in named])


# ---- one file --------------------------------------------------------------------------------------------------------


def test_an_ensemble_is_one_file_that_needs_no_other(members, tmp_path):
    test, folder = lists(2), tmp_path / "run" / "checkpoints"
    members[0].save(folder / "best.ckpt")
    whole = Ensemble([tmp_path / "run", str(folder / "best.ckpt"), [members[1], members[2]], members[3]], [1, 1, 2, 3])
    path = whole.save(tmp_path / "ensemble.ckpt")
    (folder / "best.ckpt").unlink()
    loaded = torchrank.load(path)
    assert torch.equal(loaded(test.x, test.offsets), whole(test.x, test.offsets))
    assert isinstance(loaded.members[2], Ensemble) and not any(
        each.requires_grad for each in loaded.members.parameters()
    )
    again = torchrank.load(loaded.save(tmp_path / "again.ckpt"))
    assert torch.equal(again(test.x, test.offsets), whole(test.x, test.offsets))
    again.fit(lists(0))  # starts over with the members that it has
    assert torch.equal(again(test.x, test.offsets), whole(test.x, test.offsets))


def test_weights_that_a_trainer_has_chosen_are_those_of_a_fit(members, tmp_path):
    module = RankingDataModule.from_sets(train=lists(0), val=lists(1), test=lists(2))
    whole, own = Ensemble(members, "greedy"), Ensemble(members, "greedy").fit(lists(0), lists(1))
    runner = trainer(tmp_path)
    runner.fit(whole, datamodule=module)
    loaded = torchrank.load(tmp_path / "best.ckpt")
    assert torch.equal(loaded.weights, own.weights) and loaded.findings == own.findings
    assert runner.test(loaded, datamodule=module, verbose=False)


def test_a_file_that_names_other_files_or_too_many_members_is_refused(members, tmp_path):
    path = Ensemble(members[:2]).save(tmp_path / "whole.ckpt")
    members[0].save(tmp_path / "member.ckpt")
    content = torch.load(path, weights_only=True)

    def refused(given, message):
        content["hyper_parameters"]["members"] = given
        torch.save(content, tmp_path / "forged.ckpt")
        with pytest.raises(torchrank.CheckpointError, match=message) as error:
            torchrank.load(tmp_path / "forged.ckpt")
        assert "\n" not in str(error.value)

    own = content["hyper_parameters"]["members"]
    refused([str(tmp_path / "member.ckpt"), own[1]], "member 0 of the ensemble is not in the file")
    refused([{"ranker": "os.system", "options": {}}, own[1]], "not one of")
    refused([{"ranker": "ListNet", "options": {"num_features": 6, "colour": 1}}, own[1]], "forged.ckpt")
    refused([{"ranker": "ListNet", "options": {"num_features": 7}}, own[1]], "features")
    many = [own[0]] * 900
    for _ in range(4):  # each level refers to the one below 900 times
        many = [{"ranker": "Ensemble", "options": {"members": many}}] * 900
    refused(many, "at most 1000 rankers")


def test_a_member_with_a_network_of_its_own_needs_it_to_be_loaded(tmp_path):
    train, test = lists(0), lists(2)
    own = NeuralRanker(6, scorer=torch.nn.Linear(6, 1), loss="listnet").fit(train, epochs=2)
    whole = Ensemble([own, RandomRanker(6)])
    path = whole.save(tmp_path / "own.ckpt")
    with pytest.raises(torchrank.CheckpointError, match="the checkpoint needs scorer="):
        torchrank.load(path)
    loaded = torchrank.load(path, scorer=torch.nn.Linear(6, 1))
    assert torch.equal(loaded(test.x, test.offsets), whole(test.x, test.offsets))


def test_every_ranker_of_lists_can_be_a_member():
    own = {split: law_lists(split) for split in ("train", "val", "test")}
    members = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (
            "listnet",
            "gbdt",
            "lgmml_similar",
            "local_listnet",
            "queryknn",
            "dk",
            "svmmap",
            "adarank",
            "pamir",
        ):
            members.append(CASES[name].make().fit(own["train"], own["val"], epochs=2))
    whole, test = Ensemble(members), own["test"]
    expected = plain.mean(scores_by_list(members, test), test.offsets.tolist())
    np.testing.assert_allclose(whole(test.x, test.offsets), expected, atol=1e-6)
