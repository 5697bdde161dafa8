"""LocalRank as a ranker: the choice of clusters, rounds and resume, checkpoints, bases, forms of data, refusals.

Its clusters and models are compared with a plain form in tests/rankers/test_localrank.py.
"""

import signal

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.localrank_reference import Plain, module, queries, quick
from tests.rankers.rounds import check_every_cut, check_every_interrupt, equal_states, interrupted
from tests.rankers.small import FEATURES, data, trainer
from torchrank import LocalRank, RankingDataModule, RankingSet
from torchrank.data import SparseRows
from torchrank.functional import ndcg
from torchrank.rankers.localrank.ranker import smallest_not_worse

SMALL = {"clusters": [2, 3], "transform": None, "min_lists": 1, "base_options": {"l2": 0.3}}
FAST = {"base": "singlefeature", "base_options": {}, "rounds": 1}


def fit(given=None, rounds=30, **options):
    ranker = LocalRank(4, rounds=rounds, **SMALL | options)
    quick(rounds).fit(ranker, datamodule=given or module())
    return ranker


def scores_of(ranker, lists):
    return ranker(lists.x, lists.offsets).detach()


# ---- the number of clusters -----------------------------------------------------------------------------------------


def plain_choice(values):
    """Rows of numbers in rising size: the first one whose mean loss to the best is within its standard error."""
    kept = [column for column in values.T if not np.isnan(column).any()]
    means = [np.mean([column[row] for column in kept]) for row in range(len(values))]
    best = means.index(max(means))
    for row in range(len(values)):
        losses = [column[best] - column[row] for column in kept]
        middle = sum(losses) / len(losses)
        error = (sum((loss - middle) ** 2 for loss in losses) / (len(losses) - 1) / len(losses)) ** 0.5
        if middle <= error:
            return row


def test_the_rule_of_one_standard_error():
    random, found = np.random.default_rng(0), set()
    for _ in range(60):
        values = random.random((4, 30)) * 0.5 + np.sort(random.random(4))[:, None] * random.choice([0.1, 1.0])
        values[:, random.random(30) < 0.2] = np.nan
        row, gain, error = smallest_not_worse(torch.tensor(values))
        losses = np.nanmax(np.nanmean(values, 1)) - np.nanmean(values, 1)
        assert row == plain_choice(values) and gain == pytest.approx(losses[0]) and error >= 0
        found.add(row)
    assert found >= {0, 1, 2, 3}
    assert smallest_not_worse(torch.tensor([[0.1, np.nan], [0.9, np.nan]])) == (0, 0.0, 0.0)


@pytest.mark.parametrize(("noise", "helps"), [(0.3, True), (30.0, False)])
def test_validation_chooses_among_all_numbers_and_one(noise, helps):
    given = module(queries(0, noise=noise), queries(1, 16, noise))
    ranker, val = fit(given), given.sets["val"]
    assert ranker.numbers == [1, 2, 3]
    chosen, values = int(ranker.chosen), []
    for row in range(3):
        ranker.chosen.fill_(row)
        values.append(ndcg(scores_of(ranker, val), val.labels, val.offsets, k=10).double().numpy())
    assert chosen == plain_choice(np.array(values)) and helps == (chosen > 0)
    measured = ranker.measured["val"]["default"]
    np.testing.assert_allclose(measured["per_query"]["ndcg@10"], values[chosen], rtol=1e-6)
    assert measured["measures"]["ndcg@10"] == pytest.approx(np.nanmean(values[chosen]))
    assert ranker.findings["clusters"] == [1, 2, 3][chosen]
    best = np.nanmean(values, 1)
    assert f"{[1, 2, 3][best.argmax()]} ({max(best) - best[0]:+.4f}" in ranker.findings["of validation"]
    alone, row = fit(given, clusters=3), 2
    ranker.chosen.fill_(row)
    torch.testing.assert_close(scores_of(alone, val), scores_of(ranker, val), rtol=1e-4, atol=1e-5)


def test_neither_test_lists_nor_validation_labels_touch_the_models():
    ranker = fit()
    other = queries(7, 5)
    equal_states(ranker, fit(module(test=RankingSet(1e3 * other.x, 2 - other.labels, other.offsets))), exact=True)
    val = queries(1, 9)
    turned = fit(module(val=RankingSet(val.x, 2 - val.labels, val.offsets)))
    turned.chosen.copy_(ranker.chosen)
    equal_states(ranker, turned, exact=True)


def test_tested_as_it_was_chosen(tmp_path):
    """The number of clusters of the checkpoint, and no other one is tried."""
    given = module(queries(0, noise=0.3), queries(1, 16, 0.3))
    ranker = LocalRank(4, rounds=30, **SMALL)
    trainer(tmp_path, 30).fit(ranker, datamodule=given)
    again, test = torchrank.load(tmp_path / "last.ckpt"), given.sets["test"]
    assert again.chosen == ranker.chosen > 0 and again.findings == ranker.findings
    quick(1).test(again, datamodule=given, verbose=False)
    expected = ndcg(scores_of(ranker, test), test.labels, test.offsets, k=10).nanmean()
    assert again.measured["test"]["default"]["measures"]["ndcg@10"] == pytest.approx(float(expected))
    quick(1).validate(again, datamodule=given, verbose=False)
    assert again.measured["val"]["default"]["measures"] == pytest.approx(ranker.measured["val"]["default"]["measures"])


# ---- partitions and searches ----------------------------------------------------------------------------------------


def test_the_placebo_has_clusters_of_the_same_sizes():
    found, dealt, again = (
        fit(partition=partition, seed=seed, clusters=4, **FAST).clusters.labels[0]
        for partition, seed in (("clouds", 0), ("random", 0), ("random", 5))
    )
    assert not torch.equal(dealt, again) and not torch.equal(dealt, found)
    for labels in (dealt, again):
        assert torch.equal(labels[labels >= 0].bincount(), found[found >= 0].bincount())
        assert torch.equal(labels < 0, found < 0)


def test_hashed_search_with_buckets_for_everyone_is_exact():
    test = queries(2, 8)
    exact, hashed = (fit(clusters=4, lsh=lsh, **FAST) for lsh in (None, {"bits": 1, "tables": 8, "rerank": 14}))
    for name, found in exact.nearest(test.x, test.offsets).items():
        torch.testing.assert_close(hashed.nearest(test.x, test.offsets)[name], found)
    torch.testing.assert_close(scores_of(hashed, test), scores_of(exact, test))


@pytest.mark.parametrize("similarity", ["subspace", "weighted", "skew", "jeffreys"])
def test_other_similarities(similarity):
    """Every list is in its own cluster, and is most similar to itself."""
    ranker, train = fit(similarity=similarity, clusters=12, **FAST), queries(0)
    assert ranker.clusters.labels[0].max() == 11
    shaped = torch.tensor([number for number in range(14) if number not in (2, 5)])
    assert torch.equal(ranker.nearest(train.x, train.offsets)["list"][shaped], shaped)


# ---- rounds and checkpoints -----------------------------------------------------------------------------------------


def make(base="rankboost", **options):
    """A ranker whose parts' sums over processes are its own."""
    given = {"rounds": 2, "clusters": [2], "min_lists": 1, "transform": "standard"}
    ranker = LocalRank(FEATURES, base=base, **given | options)
    for part in ranker.parts:
        part._reduce = lambda tensor: ranker._reduce(tensor)
    return ranker


@pytest.mark.parametrize(
    ("base", "options"),
    [
        ("rankboost", {"base_options": {"bins": 8}}),
        ("listnet", {"base_options": {"l2": 0.01}, "assignment": "shrink", "clusters": [2, 3]}),
    ],
)
def test_cut_after_any_round_the_fit_ends_the_same(tmp_path, base, options):
    check_every_cut(tmp_path, lambda: make(base, **options), 2)


def test_a_network_is_cut_and_goes_on(tmp_path):
    def network():
        torch.manual_seed(0)
        return make("neural", base_options={"scorer_options": {"hidden": [3]}})

    check_every_cut(tmp_path, network, 2)


def test_an_interrupt_at_a_sum_loses_nothing(tmp_path):
    check_every_interrupt(tmp_path, lambda: make(base_options={"bins": 4}), 2, step=5)


def test_an_interrupt_inside_a_round_does_not_repeat_the_parts_that_are_through(tmp_path):
    whole, cut, before = make(rounds=3), make(rounds=3), signal.getsignal(signal.SIGINT)
    count = interrupted(whole)
    quick(3).fit(whole, datamodule=data())
    interrupted(cut, len(count) - 1)
    stopped = trainer(tmp_path, 3)
    with pytest.raises(SystemExit):
        stopped.fit(cut, datamodule=data())
    signal.signal(signal.SIGINT, before)
    assert cut.done.tolist() == [3, 2, 0] and cut.trainer.current_epoch == 2
    for part in cut.parts:  # as the loop would go on
        part.trainer = stopped
    del cut._reduce
    assert not cut.parts.round(cut.done)
    assert cut.done.tolist() == [3, 3, 0]
    for name, tensor in whole.parts.state_dict().items():
        assert torch.equal(cut.parts.state_dict()[name], tensor), name


def test_fitted_again_it_starts_anew(tmp_path):
    """Also where fewer parts are used than before; the checkpoint can be read."""
    few = module(train=queries(0).subset(np.array([0, 2, 5])))
    again, fresh = (LocalRank(4, "rankboost", {}, [2, 3], rounds=2, min_lists=1) for _ in range(2))
    quick(2).fit(again, datamodule=module())
    for name, ranker in (("again", again), ("fresh", fresh)):
        with pytest.warns(UserWarning, match="3 clusters of 1 lists"):
            trainer(tmp_path / name, 2).fit(ranker, datamodule=few)
    assert again.parts.count == fresh.parts.count == 2
    loaded, test = torchrank.load(tmp_path / "again" / "last.ckpt"), queries(2, 8)
    for ranker in (again, loaded):
        assert torch.equal(scores_of(ranker, test), scores_of(fresh, test))


# ---- bases ----------------------------------------------------------------------------------------------------------

BASES = {
    "listnet": {},
    "rankboost": {"bins": 8},
    "adarank": {},
    "gbdt": {"min_leaf": 2, "leaves": 3, "threads": 1},
    "svmmap": {},
    "domination": {},
    "pamir": {},
    "gmml": {},
    "lgmml": {"metrics": 2},
    "lgmml_net": {"metrics": 2},
    "neural": {"scorer_options": {"hidden": [3]}},
    "lambdarank": {"lr": 0.1},
}


@pytest.mark.parametrize("base", BASES)
def test_every_base(tmp_path, base):
    """Fitted, chosen, saved, loaded and tested; a cluster's lists are ranked by its part."""
    given = module(queries(0, flat=False))
    ranker = LocalRank(4, base, BASES[base], [2], rounds=2, min_lists=3, transform="standard")
    trainer(tmp_path, 2).fit(ranker, datamodule=given)
    assert ranker.parts.count == 3
    again, train = torchrank.load(tmp_path / "last.ckpt"), given.sets["train"]
    for each in (ranker, again):
        each.chosen.fill_(1)
    quick(1).test(again, datamodule=given, verbose=False)
    assert 0 < again.measured["test"]["default"]["measures"]["ndcg@10"] <= 1
    scores, parts = scores_of(ranker, train), ranker.nearest(train.x, train.offsets)["part"]
    assert torch.equal(scores_of(again, train), scores) and set(parts.tolist()) == {1, 2}
    batch = ranker.inputs(train.x, train.offsets)
    every = torch.stack([part.score(batch).detach() for part in ranker.parts])
    entries = parts.repeat_interleave(train.offsets.diff())
    assert torch.equal(scores.to(every), every.gather(0, entries[None])[0])


def test_the_loss_of_a_list_is_that_of_all_lists_and_of_its_cluster():
    torch.manual_seed(0)
    ranker = fit(base="lambdarank", base_options={"lr": 0.1}, rounds=2)
    train = queries(0)
    assert len(ranker.parts) == 6 and ranker.parts.count < 6
    batch = train[torch.tensor([3, 0, 2, 9])]
    expected = ranker.parts[0].loss(batch)
    for place, number in enumerate(batch.query.tolist()):
        here = train[torch.tensor([number])]
        labels = enumerate(ranker.clusters.labels[:, number].tolist())
        parts = {int(ranker.models[row, label]) for row, label in labels if label >= 0}
        expected[place] += sum(ranker.parts[part].loss(here)[0] for part in parts - {0})
    torch.testing.assert_close(ranker.loss(batch), expected)


# ---- forms of data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "assignment"), [("listnet", "hard"), ("listnet", "shrink"), ("lambdarank", "soft")])
def test_a_shared_corpus_is_its_flat_copy(base, assignment):
    flat = {split: queries(seed, 10) for seed, split in enumerate(("train", "val", "test"))}
    corpus = torch.cat([given.x for given in flat.values()]).flip(0)
    shared, end = {}, len(corpus)
    for split, given in flat.items():
        index = torch.arange(end - 1, end - 1 - len(given.x), -1)
        shared[split] = RankingSet(corpus, given.labels, given.offsets, index=index)
        end -= len(given.x)
    options = {"base": base, "assignment": assignment, "rounds": 4, "base_options": {}, "clusters": 3}
    one, other = (fit(RankingDataModule.from_sets(**sets, batch_documents=50), **options) for sets in (flat, shared))
    test = shared["test"]
    found = other(test.x, test.offsets, index=test.index).detach()
    torch.testing.assert_close(found, scores_of(one, flat["test"]), rtol=1e-4, atol=1e-5)
    assert torch.equal(one.clusters.labels, other.clusters.labels) and found.std() > 0


def test_batches_change_nothing():
    one, small = (
        fit(RankingDataModule.from_sets(**module().sets, batch_documents=size), 4, base="rankboost", base_options={})
        for size in (10_000, 20)
    )
    equal_states(one, small)


def test_all_lists_without_a_shape():
    """There is nothing to cluster, and the global model ranks."""
    train = queries(0)
    x = train.x[train.offsets[:-1]].repeat_interleave(train.offsets.diff(), 0)
    ranker = fit(module(train=RankingSet(x, train.labels, train.offsets)))
    assert not ranker.models.any() and ranker.parts.count == 1 and (ranker.clusters.labels[1:] == -1).all()
    assert ranker.nearest(train.x, train.offsets)["list"].tolist() == [-1] * 14
    assert torch.isfinite(scores_of(ranker, train)).all()


def test_a_transform_that_sizes_the_rows(tmp_path):
    ranker, test = LocalRank(4, rounds=3, **SMALL | {"transform": {"name": "pca", "variance": 0.8}}), queries(2, 8)
    trainer(tmp_path, 3).fit(ranker, datamodule=module())
    assert ranker.parts[0].num_features == ranker.transform.num_outputs < 4
    assert torch.equal(scores_of(torchrank.load(tmp_path / "last.ckpt"), test), scores_of(ranker, test))


def test_training_lists_are_those_of_the_plain_form_after_a_transform():
    ranker, train = fit(transform="query_minmax", clusters=4, **FAST), queries(0)
    rows = ranker.inputs(train.x, train.offsets).x
    plain = Plain(RankingSet(rows, train.labels, train.offsets))
    assert ranker.clusters.labels[0].tolist() == plain.labels(4).tolist()


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base": "mlr"}, "unknown base='mlr': choose one of listnet"),
        ({"base_options": {"transform": "standard"}}, "base_options have transform: set it for the whole"),
        ({"base_options": {"rounds": 3}}, "base_options have rounds: set it for the whole"),
        ({"base": "pamir", "base_options": {"per_topic": True}}, "per_topic, a model of each list"),
        ({"clusters": [0, 2]}, r"clusters=\[0, 1, 2\].*1 at least"),
        ({"clusters": 2.0}, r"clusters=\[2\.0\]"),
        ({"clusters": True}, r"clusters=\[True\]"),
        ({"min_lists": 0}, "min_lists=0"),
        ({"components": 0}, "components=0"),
        ({"components": "all"}, "components='all' is a number of principal directions, or auto"),
        ({"variance": 0.0}, r"variance=0\.0 is a share"),
        ({"variance": float("nan")}, "variance=nan is a share"),
        ({"similarity": "cosine"}, "unknown similarity='cosine': choose one of ordered"),
        ({"partition": "labels"}, "unknown partition='labels': choose one of clouds, random"),
        ({"assignment": "gate"}, "unknown assignment='gate': choose one of hard, soft, shrink"),
        ({"assignment": "soft", "similarity": "mean"}, "assignment=soft needs a similarity of 0 to 1"),
        ({"assignment": "shrink", "base": "rankboost"}, "assignment=shrink corrects linear models, base=rankboost"),
        ({"assignment": "shrink", "base": "gbdt"}, "assignment=shrink corrects linear models, base=gbdt"),
        ({"assignment": "shrink", "base": "neural"}, "assignment=shrink corrects linear models, base=neural"),
        ({"temperature": 0.0}, r"temperature=0\.0 and stiffness=3\.0 must be positive"),
        ({"stiffness": -1.0}, r"stiffness=-1\.0 must be positive"),
        ({"choose_by": "domination_error"}, "choose_by=domination_error is better when it is smaller"),
        ({"lsh": {"bits": 3}}, "with bits, tables and rerank"),
        ({"lsh": {"bits": 63, "tables": 1, "rerank": 1}}, "bits are 1 to 62, tables and rerank 1 at least"),
        ({"lsh": {"bits": 3, "tables": 0, "rerank": 1}}, "bits are 1 to 62, tables and rerank 1 at least"),
        ({"lsh": {"bits": 3, "tables": 1, "rerank": 0}}, "bits are 1 to 62, tables and rerank 1 at least"),
        ({"lsh": {"bits": 3, "tables": 1, "rerank": 1}, "similarity": "squared"}, "hashed search is for simil"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        LocalRank(4, **given)


def test_a_choice_without_lists_or_measure_is_refused():
    train = RankingDataModule.from_sets(train=queries(0))
    with pytest.raises(
        ValueError, match=r"clusters=\[1, 2, 3\] are chosen from on validation lists, and there are none"
    ):
        fit(train)
    with pytest.raises(ValueError, match=r"choose_by=ndcg@3 is not among the measures ndcg@1, ndcg@5"):
        fit(choose_by="ndcg@3")
    assert fit(train, clusters=2, choose_by="ndcg@3", rounds=1).models.any()


def test_other_forms_of_data_are_refused():
    train = queries(0)
    sparse = RankingSet(SparseRows.from_dense(train.x), train.labels, train.offsets)
    shared = RankingSet(train.x, train.labels, train.offsets, index=torch.arange(len(train.x)))
    for given, options, message in (
        (sparse, {}, "LocalRank does not take sparse rows"),
        (shared, {"base": "rankboost", "base_options": {}}, "LocalRank does not take a corpus shared by the lists"),
        (shared, {"transform": "query_minmax"}, "works inside each list"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(RankingDataModule.from_sets(train=given, val=given), **options)
    with pytest.raises(ValueError, match="LocalRank takes its training lists apart, on the device"):
        fit(RankingDataModule.from_sets(train=train, val=train, resident=False))


def test_scores_before_a_fit_are_refused():
    lists, ranker = queries(0), LocalRank(4)
    for ask in (ranker, ranker.nearest):
        with pytest.raises(ValueError, match="this LocalRank is not fitted"):
            ask(lists.x, lists.offsets)


@pytest.mark.parametrize(
    ("model", "how"),
    [
        (FAST, {"limit_val_batches": 0}),
        ({"base": "neural", "base_options": {}}, {"num_sanity_val_steps": 2, "check_val_every_n_epoch": 9}),
    ],
    ids=["no validation", "a look at untrained networks"],
)
def test_numbers_that_no_validation_compared_are_told(tmp_path, model, how):
    ranker = LocalRank(4, **SMALL | model)
    with pytest.warns(UserWarning, match=r"clusters=\[1, 2, 3\] were never compared on validation lists"):
        trainer(tmp_path, 1, monitor=None, **how).fit(ranker, datamodule=module())
    assert ranker.chosen == 0 and "of validation" not in ranker.findings
