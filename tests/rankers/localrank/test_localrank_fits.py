"""LocalRank as a ranker: the choice of clusters, its parts and what they read, bases, forms of data, refusals.

Its clusters and models are compared with a plain form in tests/rankers/localrank/test_localrank.py.
"""

import numpy as np
import pytest
import torch

import torchrank
from tests.rankers.by_hand import begin, resumed, same_state, take_rounds
from tests.rankers.small import measured, trainer
from tests.reference.localrank import Plain, queries
from torchrank import (
    ConvergenceWarning,
    DataWarning,
    LocalRank,
    RankingDataModule,
    RankingSet,
    SingleFeature,
    TrainingLists,
)
from torchrank.data import SparseRows
from torchrank.data.rows import Chunks
from torchrank.functional import ndcg
from torchrank.rankers.localrank.ranker import smallest_not_worse

SMALL = {"clusters": [2, 3], "transform": None, "min_lists": 1, "base_options": {"l2": 0.3}, "rounds": 30}
FAST = {"base": "singlefeature", "base_options": {}, "rounds": 1}
NETWORK = {"base": "neural", "base_options": {"scorer_options": {"hidden": [3], "dropout": 0.5}}}


def make(**options):
    return LocalRank(4, **SMALL | options)


def fit(train=None, val=None, **options):
    epochs = options.pop("epochs", None)
    return make(**options).fit(train or queries(0), val or queries(1, 9), epochs=epochs, batch_documents=50)


def data(**sets):
    given = {"train": queries(0), "val": queries(1, 9), "test": queries(2, 8)}
    return RankingDataModule.from_sets(**given | sets, batch_documents=50)


def scores_of(ranker, lists):
    return ranker(lists.x, lists.offsets, index=lists.index).detach()


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


@pytest.mark.parametrize("through", ["fit", "trainer"])
@pytest.mark.parametrize(("noise", "helps"), [(0.3, True), (30.0, False)])
def test_validation_chooses_among_all_numbers_and_one(noise, helps, through, tmp_path):
    train, val = queries(0, noise=noise), queries(1, 16, noise)
    ranker, runner = make(), trainer(tmp_path, 30)
    if through == "fit":
        ranker.fit(train, val, batch_documents=50)
    else:
        runner.fit(ranker, datamodule=data(train=train, val=val))
    assert ranker.numbers == [1, 2, 3]
    chosen, values = int(ranker.chosen), []
    for row in range(3):
        ranker.chosen.fill_(row)
        values.append(ndcg(scores_of(ranker, val), val.labels, val.offsets, k=10).double().numpy())
    assert chosen == plain_choice(np.array(values)) and helps == (chosen > 0)
    assert ranker.findings["clusters"] == [1, 2, 3][chosen]
    best = np.nanmean(values, 1)
    assert f"{[1, 2, 3][best.argmax()]} ({max(best) - best[0]:+.4f}" in ranker.findings["validation"]
    if through == "trainer":  # what is measured and watched is the chosen number
        np.testing.assert_allclose(measured(runner, "val")["per_query"]["ndcg@10"], values[chosen], rtol=1e-6)
        assert runner.callback_metrics["val/ndcg@10"] == pytest.approx(np.nanmean(values[chosen]))
    alone = fit(train, val, clusters=3)
    ranker.chosen.fill_(2)
    torch.testing.assert_close(scores_of(alone, val), scores_of(ranker, val), rtol=1e-4, atol=1e-5)


def test_the_labels_of_validation_lists_do_not_touch_the_models():
    val = queries(1, 9)
    ranker, turned = fit(), fit(val=RankingSet(val.x, 2 - val.labels, val.offsets))
    turned.chosen.copy_(ranker.chosen)
    same_state(ranker, turned)


def test_the_best_round_is_kept_with_the_number_that_was_chosen_in_it():
    """Where the fit is not certified: rounds and numbers of clusters are chosen together."""
    train, val, options = queries(0, noise=0.3), queries(1, 16, 0.3), {"base": "rankboost", "base_options": {"bins": 8}}
    kept, by_hand = fit(train, val, rounds=8, **options), make(rounds=8, **options)
    begin(by_hand, train, 50)
    found = []
    for number in range(8):
        take_rounds(by_hand, number, number + 1)
        values = []
        for row in range(3):
            by_hand.chosen.fill_(row)
            values.append(ndcg(scores_of(by_hand, val), val.labels, val.offsets, k=10).double().numpy())
        chosen = plain_choice(np.array(values))
        found.append((np.nanmean(values[chosen]), chosen))
    best = max(range(8), key=lambda number: (found[number][0], -number))
    assert int(kept.done.max()) == best + 1 < 8 and int(kept.chosen) == found[best][1] > 0


def test_tested_as_it_was_chosen(tmp_path):
    """The number of clusters of the checkpoint, and no other one is tried."""
    given = data(train=queries(0, noise=0.3), val=queries(1, 16, 0.3))
    ranker, runner = make(), trainer(tmp_path, 30)
    runner.fit(ranker, datamodule=given)
    again, test = torchrank.load(tmp_path / "last.ckpt"), given.sets["test"]
    assert again.chosen == ranker.chosen > 0 and again.findings == ranker.findings
    other = trainer(tmp_path)
    other.test(again, datamodule=given, verbose=False)
    expected = ndcg(scores_of(ranker, test), test.labels, test.offsets, k=10).nanmean()
    assert measured(other, "test")["measures"]["ndcg@10"] == pytest.approx(float(expected))
    other.validate(again, datamodule=given, verbose=False)
    assert measured(other, "val")["measures"] == pytest.approx(measured(runner, "val")["measures"])


@pytest.mark.parametrize(
    ("model", "how"),
    [
        (FAST, {"limit_val_batches": 0}),
        (NETWORK, {"num_sanity_val_steps": 2, "check_val_every_n_epoch": 9}),
    ],
    ids=["no validation", "a look at untrained networks"],
)
def test_a_warning_says_that_no_validation_has_chosen(tmp_path, model, how):
    ranker = make(**model)
    with pytest.warns(ConvergenceWarning, match="No validation ran, so the number of clusters was not chosen"):
        trainer(tmp_path, 1, monitor=None, **how).fit(ranker, datamodule=data())
    assert ranker.chosen == 0 and "validation" not in ranker.findings


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


def test_hash_tables_follow_a_second_fit():
    lsh, test = {"bits": 6, "tables": 8, "rerank": 3}, queries(2, 8)
    again = fit(clusters=4, lsh=lsh, **FAST)
    again.nearest(test.x, test.offsets)  # makes tables of the first training lists
    again.fit(queries(7), batch_documents=50)
    fresh = fit(queries(7), clusters=4, lsh=lsh, **FAST)
    for name, found in fresh.nearest(test.x, test.offsets).items():
        assert torch.equal(again.nearest(test.x, test.offsets)[name], found)


@pytest.mark.parametrize("similarity", ["subspace", "weighted", "skew", "jeffreys"])
def test_other_similarities(similarity):
    """Every list is in its own cluster, and is most similar to itself."""
    ranker, train = fit(similarity=similarity, clusters=12, **FAST), queries(0)
    assert ranker.clusters.labels[0].max() == 11
    shaped = torch.tensor([number for number in range(14) if number not in (2, 5)])
    assert torch.equal(ranker.nearest(train.x, train.offsets)["list"][shaped], shaped)


# ---- the parts ------------------------------------------------------------------------------------------------------


def test_rows_are_read_and_transformed_once_for_all_parts(monkeypatch, tmp_path):
    """As often as for one ranker, and no part has a datamodule of its own."""
    read, modules, chunk, construct = [], [], Chunks._chunk, RankingDataModule.__init__
    monkeypatch.setattr(Chunks, "_chunk", lambda self, *at: read.append((len(self.x), at[:2])) or chunk(self, *at))
    monkeypatch.setattr(
        RankingDataModule, "__init__", lambda self, *a, **o: modules.append(1) or construct(self, *a, **o)
    )
    for transform in (None, "standard", {"name": "pca", "variance": 0.9}):
        counts, local = [], make(clusters=[2, 3, 5], transform=transform, **FAST)
        for ranker in (SingleFeature(4, transform=transform), local):
            read.clear()
            ranker.fit(queries(0), queries(1, 9))
            counts.append(list(read))
        assert counts[0] == counts[1] != [] and len(local.parts) > 5
    assert not modules
    given = data()
    trainer(tmp_path, 1).fit(make(**FAST), datamodule=given)
    assert len(modules) == 1  # the user's


def test_in_a_round_each_part_reads_its_own_lists_as_often_as_its_base_asks(monkeypatch):
    """SingleFeature asks for one sum: all lists once by the global model, and at most once for each number of
    clusters, since lists without a shape are in none. To cluster, each list is read once."""
    entries, iterate = [], TrainingLists.__iter__

    def counted(self):
        for batch in iterate(self):
            entries.append(len(batch.labels))
            yield batch

    monkeypatch.setattr(TrainingLists, "__iter__", counted)
    ranker, train = make(clusters=[2, 3, 5], **FAST), queries(0)
    begin(ranker, train, 50)
    first = entries[0]  # how wide the rows are
    assert first < sum(entries) == first + len(train.x)
    entries.clear()
    take_rounds(ranker, 0, 1)
    lengths, places = train.offsets.diff(), ranker._places()
    own = [int(lengths[ranker.clusters.labels[row] == each].sum()) for row, each in places]
    assert sum(entries) == len(train.x) + sum(own) <= 4 * len(train.x)
    assert len(own) == len(ranker.parts) - 1 > 5 and ranker.converged


def test_an_interrupt_inside_a_round_does_not_repeat_the_parts_that_are_through():
    options = {"base": "rankboost", "base_options": {"bins": 8}, "clusters": 2, "rounds": 3}
    whole, cut = make(**options), make(**options)
    training = begin(whole, queries(0), 50)
    take_rounds(whole, 0, 3)
    begin(cut, queries(0), 50)
    take_rounds(cut, 0, 2)
    last, go_on = cut.parts[2], cut.parts[2].round

    def interrupt(*_):
        raise KeyboardInterrupt

    last.round = interrupt
    with pytest.raises(KeyboardInterrupt):
        take_rounds(cut, 2, 3)
    assert cut.done.tolist() == [3, 3, 2]
    again = resumed(cut, lambda: make(**options), training)
    last.round = go_on
    for ranker in (cut, again):  # in the same process, and from its state in another one
        take_rounds(ranker, 2, 3)
        assert ranker.done.tolist() == [3, 3, 3]
        same_state(whole, ranker)


def test_fitted_again_it_starts_over():
    """Also where there are fewer parts than before."""
    few = queries(0).subset(np.array([0, 2, 5]))
    again = fit(base="rankboost", base_options={}, rounds=2)
    assert len(again.parts) > 3
    with pytest.warns(DataWarning, match="3 clusters were requested of 1 lists"):
        again.fit(few, queries(1, 9), batch_documents=50)
        fresh = fit(few, base="rankboost", base_options={}, rounds=2)
    assert len(again.parts) == len(fresh.parts) == 2
    same_state(fresh, again)


def test_parts_take_the_mode_of_the_ranker_that_loads_them():
    """Dropout of parts that are made when a state is loaded would change the scores of a ranker in evaluation mode."""
    ranker, test = fit(epochs=2, **NETWORK), queries(2, 8)
    other = make(**NETWORK).eval()
    other.load_state_dict(ranker.state_dict())
    assert torch.equal(scores_of(other, test), scores_of(ranker, test))
    other.train().load_state_dict(ranker.state_dict())
    assert all(part.training for part in other.modules())


def test_parts_start_in_the_precision_of_the_trainer(tmp_path):
    """With lr=0 they stay where the closed form put them, which is not rounded to 32 bits on the way."""
    ranker = make(base="lgmml_net", base_options={"groups": "random", "metrics": 2, "lr": 0.0}, min_lists=3)
    trainer(tmp_path, 1, precision="64-true").fit(ranker, datamodule=data(train=queries(0, flat=False)))
    for part in ranker.parts:
        assert (part.scorer.factors != part.scorer.factors.float().double()).any()


def test_what_a_part_has_to_say_at_the_end_of_its_fit_is_said():
    """All documents of one type of lists are relevant: the model of their cluster is 0."""
    train = queries(0, flat=False)
    odd = torch.repeat_interleave(torch.arange(14) % 2, train.offsets.diff())
    given = RankingSet(train.x, train.labels + odd, train.offsets)
    with pytest.warns(ConvergenceWarning, match="w = 0 is the best model found"):
        ranker = fit(given, base="svmmap", base_options={"eps": 0.1}, clusters=2, min_lists=3, rounds=200)
    assert ranker.converged and [bool(part.weight.any()) for part in ranker.parts].count(False) == 1


# ---- bases ----------------------------------------------------------------------------------------------------------

BASES = {
    "listnet": {},
    "rankboost": {"bins": 8},
    "adarank": {},
    "gbdt": {"min_leaf": 2, "leaves": 3, "threads": 1},
    "singlefeature": {},
    "svmmap": {},
    "ranksvm": {},
    "domination": {},
    "pamir": {},
    "gmml": {},
    "lgmml": {"groups": "random", "metrics": 2},
    "lgmml_net": {"groups": "random", "metrics": 2},
    "neural": {"scorer_options": {"hidden": [3]}},
    "lambdarank": {"lr": 0.1},
}


@pytest.mark.parametrize("base", BASES)
def test_every_base(base):
    """Fitted, chosen, loaded from its state; a cluster's lists are ranked by its part."""
    train, test = queries(0, flat=False), queries(2, 8)
    options = {"base": base, "base_options": BASES[base], "clusters": [2], "rounds": 2, "min_lists": 3}
    ranker = fit(train, transform="standard", epochs=2, **options)
    assert len(ranker.parts) == 3
    again = make(transform="standard", **options).eval()
    again.load_state_dict(ranker.state_dict())
    for each in (ranker, again):
        each.chosen.fill_(1)
    assert 0 < ndcg(scores_of(again, test), test.labels, test.offsets, k=10).nanmean() <= 1
    scores, parts = scores_of(ranker, train), ranker.nearest(train.x, train.offsets)["part"]
    assert torch.equal(scores_of(again, train), scores) and set(parts.tolist()) == {1, 2}
    batch = ranker.inputs(train.x, train.offsets)
    every = torch.stack([part.score(batch).detach() for part in ranker.parts])
    entries = parts.repeat_interleave(train.offsets.diff())
    assert torch.equal(scores.to(every), every.gather(0, entries[None])[0])


def test_the_loss_of_a_list_is_that_of_all_lists_and_of_its_cluster():
    ranker, train = fit(base="lambdarank", base_options={"lr": 0.1}, epochs=2), queries(0)
    batch = train[torch.tensor([3, 0, 2, 9])]
    expected = ranker.parts[0].loss(batch)
    for place, number in enumerate(batch.query.tolist()):
        here = train[torch.tensor([number])]
        labels = enumerate(ranker.clusters.labels[:, number].tolist())
        parts = {int(ranker.models[row, label]) for row, label in labels if label >= 0}
        expected[place] += sum(ranker.parts[part].loss(here)[0] for part in parts - {0})
    torch.testing.assert_close(ranker.loss(batch), expected)


# ---- forms of data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "assignment"),
    [
        ("listnet", "hard"),
        ("listnet", "shrink"),
        ("lambdarank", "soft"),
        ("lambdarank", "shrink"),
        ("svmmap", "shrink"),
        ("domination", "shrink"),
        ("pamir", "hard"),
        ("lgmml", "soft"),
    ],
)
def test_a_shared_corpus_is_its_flat_copy(base, assignment):
    flat = {split: queries(seed, 10) for seed, split in enumerate(("train", "test"))}
    corpus = torch.cat([given.x for given in flat.values()]).flip(0)
    shared, end = {}, len(corpus)
    for split, given in flat.items():
        index = torch.arange(end - 1, end - 1 - len(given.x), -1)
        shared[split] = RankingSet(corpus, given.labels, given.offsets, index=index)
        end -= len(given.x)
    base_options = (
        {"groups": "random", "metrics": 2, "tau": 1.0} if base == "lgmml" else {}
    )  # else tau is that of a sample of the rows
    options = {"base": base, "assignment": assignment, "rounds": 4, "base_options": base_options, "clusters": 3}
    one, other = (fit(sets["train"], sets["test"], epochs=4, **options) for sets in (flat, shared))
    found = scores_of(other, shared["test"])
    torch.testing.assert_close(found, scores_of(one, flat["test"]), rtol=1e-4, atol=1e-5)
    assert torch.equal(one.clusters.labels, other.clusters.labels) and found.std() > 0


def test_batches_change_nothing():
    options = {"base": "rankboost", "base_options": {}, "rounds": 4}
    one, small = (make(**options).fit(queries(0), queries(1, 9), batch_documents=size) for size in (10_000, 20))
    same_state(one, small, 1e-12)


def test_all_lists_without_a_shape():
    """There is nothing to cluster, and the global model ranks."""
    train = queries(0)
    x = train.x[train.offsets[:-1]].repeat_interleave(train.offsets.diff(), 0)
    ranker = fit(RankingSet(x, train.labels, train.offsets))
    assert not ranker.models.any() and len(ranker.parts) == 1 and (ranker.clusters.labels[1:] == -1).all()
    assert ranker.nearest(train.x, train.offsets)["list"].tolist() == [-1] * 14
    assert torch.isfinite(scores_of(ranker, train)).all()


@pytest.mark.parametrize("assignment", ["hard", "shrink"])
def test_a_transform_that_decides_the_width_of_the_rows(assignment):
    options, test = {"transform": {"name": "pca", "variance": 0.8}, "assignment": assignment}, queries(2, 8)
    ranker, again = fit(**options), make(**options).eval()
    assert ranker.parts[0].num_features == ranker.transform.num_outputs < 4
    again.load_state_dict(ranker.state_dict())
    assert torch.equal(scores_of(again, test), scores_of(ranker, test))


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
        (
            {"base_options": {"transform": "standard"}},
            "base_options cannot have transform: set model.transform instead",
        ),
        ({"base_options": {"rounds": 3}}, "base_options cannot have rounds: set model.rounds instead"),
        ({"base": "pamir", "base_options": {"per_topic": True}}, "base_options cannot have per_topic"),
        ({"clusters": [0, 2]}, r"clusters must be >= 1, got 0"),
        ({"clusters": 2.0}, r"clusters must be an integer >= 1, got 2\.0"),
        ({"clusters": True}, r"clusters must be an integer >= 1, got True"),
        ({"min_lists": 0}, "min_lists must be >= 1, got 0"),
        ({"components": 0}, "components must be an integer >= 1 or auto, got 0"),
        ({"components": "all"}, "components must be an integer >= 1 or auto, got 'all'"),
        ({"variance": 0.0}, r"variance must be > 0 and <= 1, got 0\.0"),
        ({"variance": float("nan")}, "variance must be a number > 0 and <= 1, got nan"),
        ({"similarity": "cosine"}, "unknown similarity='cosine': choose one of ordered"),
        ({"partition": "labels"}, "unknown partition='labels': choose one of clouds, random"),
        ({"assignment": "gate"}, "unknown assignment='gate': choose one of hard, soft, shrink"),
        ({"assignment": "soft", "similarity": "mean"}, "assignment=soft needs a similarity from 0 to 1"),
        ({"assignment": "shrink", "base": "rankboost"}, "assignment=shrink corrects linear models, not base=rankboost"),
        ({"assignment": "shrink", "base": "gbdt"}, "assignment=shrink corrects linear models, not base=gbdt"),
        ({"assignment": "shrink", "base": "neural"}, "assignment=shrink corrects linear models, not base=neural"),
        ({"temperature": 0.0}, r"temperature must be > 0, got 0\.0"),
        ({"stiffness": -1.0}, r"stiffness must be > 0, got -1\.0"),
        ({"choose_by": "domination_error"}, "choose_by must be a measure to maximise, got domination_error"),
        ({"lsh": {"bits": 3}}, "lsh needs bits, tables and rerank, and similarity=ordered"),
        ({"lsh": {"bits": 63, "tables": 1, "rerank": 1}}, "lsh.bits must be from 1 to 62"),
        ({"lsh": {"bits": 3, "tables": 0, "rerank": 1}}, "lsh.tables and lsh.rerank >= 1"),
        ({"lsh": {"bits": 3, "tables": 1, "rerank": 0}}, "lsh.tables and lsh.rerank >= 1"),
        ({"lsh": {"bits": 3, "tables": 1, "rerank": 1}, "similarity": "squared"}, "got lsh=.*, similarity=squared"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        LocalRank(4, **given)


def test_a_choice_without_lists_or_measure_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Choosing among clusters=\[1, 2, 3\] needs a validation set; pass val="):
        make().fit(queries(0))
    with pytest.raises(
        ValueError, match=r"LocalRank chooses by ndcg@3, which is not among the measures ndcg@1, ndcg@5"
    ):
        trainer(tmp_path, 1).fit(make(choose_by="ndcg@3"), datamodule=data())
    assert "by ndcg@3" in fit(choose_by="ndcg@3", **FAST).findings["validation"]  # a fit without a trainer measures it
    assert make(clusters=2, choose_by="ndcg@3", **FAST).fit(queries(0)).models.any()


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
            fit(given, given, **options)


def test_scores_before_a_fit_are_refused():
    lists, ranker = queries(0), LocalRank(4)
    for ask in (ranker, ranker.nearest):
        with pytest.raises(torchrank.NotFittedError, match="this LocalRank is not fitted"):
            ask(lists.x, lists.offsets)
