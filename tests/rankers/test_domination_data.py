"""DominationRank on every form of the data, and what it refuses."""

import math

import pytest
import torch

import torchrank
from tests.rankers.domination_fits import SOLVERS, TOPICS, WORDS, close, corpus, fit, topic_data, topic_reference
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import DominationRank, RankingDataModule, RankingSet
from torchrank.functional import average_precision, ndcg

# ---- forms of the data ------------------------------------------------------------------------------------------

NO_SIZES = (-1.0, math.nan, math.inf)


@pytest.mark.parametrize("penalty", [{"l2": 0.3}, {"l1": 0.4, "l2": 0.0}])
def test_pooled_lists_are_one_list(tmp_path, penalty):
    train = lists(0)
    one = RankingSet(train.x, train.labels, torch.tensor([0, len(train.labels)]))
    module = RankingDataModule.from_sets(train=one, val=lists(1))
    close(fit(tmp_path / "pooled", group="pooled", **penalty), fit(tmp_path / "one", module, **penalty))


@pytest.mark.parametrize("name", SOLVERS)
def test_batches_change_nothing(tmp_path, name):
    whole, small = (
        fit(tmp_path / str(size), data(batch_documents=size), **SOLVERS[name]) for size in (10_000, 25)
    )  # fmt: skip
    close(whole, small, atol=1e-6)
    assert whole.certificate["kkt"] <= 1e-6


@pytest.mark.parametrize(
    "options", [SOLVERS["lbfgs"], SOLVERS["fista"], SOLVERS["pooled"], SOLVERS["induction"], SOLVERS["negatives"]]
)
@pytest.mark.parametrize("per_topic", [False, True])
def test_sparse_and_shared_rows_change_nothing(tmp_path, options, per_topic):
    if per_topic and options.get("group") == "pooled":
        return
    found = [
        fit(tmp_path / f"{shared}{sparse}", topic_data(shared=shared, sparse=sparse), per_topic=per_topic, **options)
        for shared, sparse in ((True, True), (True, False), (False, True))
    ]
    for other in found[1:]:
        close(other, found[0])
        assert torch.equal(other.weight != 0, found[0].weight != 0)


@pytest.mark.parametrize("options", [SOLVERS["lbfgs"], SOLVERS["fista"], {"l1": 0.2, "l2": 0.2, "induction": 2}])
def test_topics_are_fits_of_their_own(tmp_path, options):
    module = topic_data()
    together = fit(tmp_path / "all", module, per_topic=True, **options)
    assert together.weight.shape == (TOPICS, WORDS) and together.converged
    for t in range(TOPICS):
        sets = {split: module.sets[split].subset(torch.tensor([t])) for split in module.sets}
        alone = fit(tmp_path / str(t), RankingDataModule.from_sets(**sets, measures=["map"]), **options)
        torch.testing.assert_close(together.weight[t], alone.weight[0], rtol=0, atol=1e-5)
        plain = topic_reference(t, l1=options.get("l1", 0.0), l2=options["l2"])
        assert plain.violation(together.weight[t].numpy()) < 2e-6


@pytest.mark.parametrize("sparse", [False, True])
def test_topic_scores_of_every_form(tmp_path, sparse):
    ranker = fit(tmp_path, topic_data(), per_topic=True)
    test, flat = corpus("test", sparse=sparse), corpus("test", sparse=sparse, shared=False)
    x = test.x.dense() if sparse else test.x
    expected = (x.double() @ ranker.weight.T).T.flatten().float()
    close_to = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(ranker(test.x, test.offsets, index=test.index), expected, **close_to)
    torch.testing.assert_close(ranker(flat.x, flat.offsets), expected, **close_to)
    query, rows = torch.tensor([3, 1]), torch.tensor([5, 7, 5, 30])  # few rows of the corpus, other topics
    short = ranker(test.x, torch.tensor([0, 2, 4]), index=rows, query=query)
    torch.testing.assert_close(short, expected.view(TOPICS, -1)[[3, 3, 1, 1], rows], **close_to)


def test_topics_learn_and_are_measured(tmp_path):
    ranker = fit(tmp_path, topic_data(), per_topic=True, l2=0.1)
    runner = trainer(tmp_path, 1, monitor="val/map")
    runner.test(ranker, datamodule=topic_data(), verbose=False)
    test = corpus("test")
    by_hand = average_precision(ranker(test.x, test.offsets, index=test.index), test.labels, test.offsets)
    found = ranker.measured["test"]["default"]["measures"]["map"]
    assert found == pytest.approx(float(by_hand.nanmean()), abs=1e-6) and found > 0.6


def test_the_same_negatives_for_every_batch_and_never_for_evaluation(tmp_path):
    drawn = []
    for size in (25, 10_000):
        ranker = fit(tmp_path / str(size), data(batch_documents=size), negatives=0.4, rounds=1)
        ranker.trainer.datamodule.attach(ranker.transform, ranker.device)
        drawn.append(torch.cat([batch.x for batch in ranker.batches()]))
    assert torch.equal(*drawn) and len(drawn[0]) < len(lists(0).x)
    assert len(ranker.measured["val"]["default"]["per_query"]["ndcg@10"]) == len(lists(1))


def test_it_learns(tmp_path):
    """With the standard transform, and again from its checkpoint."""
    ranker = fit(tmp_path, transform="standard", l2=1.0, tolerance=1e-3)
    test = lists(2)
    scores = ranker(test.x, test.offsets)
    by_chance = ndcg(torch.zeros_like(scores), test.labels, test.offsets, k=10, ties="average").nanmean()
    assert ndcg(scores, test.labels, test.offsets, k=10).nanmean() > by_chance + 0.2
    truth = torch.tensor([0, 1, 0, -0.5, 0, 0]).double()
    assert torch.nn.functional.cosine_similarity(ranker.weight[0], truth, dim=0) > 0.9
    assert torch.equal(torchrank.load(tmp_path / "last.ckpt")(test.x, test.offsets), scores)


@pytest.mark.parametrize(
    "options", [{}, {"l1": 1.0}, {"group": "pooled"}, {"l1": 1.0, "induction": 2}, {"path": 3}, {"l2": 0.0}]
)
def test_lists_of_one_grade_teach_nothing(tmp_path, options):
    flat = lists(0)
    flat.labels.fill_(1.0)
    ranker = fit(tmp_path, RankingDataModule.from_sets(train=flat, val=lists(1)), **options)
    assert ranker.converged and (ranker.weight == 0).all() and ranker.certificate["kkt"] == 0


# ---- sums and refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_topic", [False, True])
@pytest.mark.parametrize("margin", [None, 0.5])
def test_losses_and_gradients_add_over_lists(tmp_path, per_topic, margin):
    """fn(A and B) = fn(A) + fn(B): what one process sums is the sum of what two do."""
    module = topic_data(batch_documents=10_000)
    ranker = fit(tmp_path, module, per_topic=per_topic, margin=margin, rounds=1)
    module.attach(ranker.transform, ranker.device)
    weight, sums = torch.randn(ranker.weight.shape, generator=torch.Generator().manual_seed(0)).double(), []
    whole = ranker._slopes(weight)
    assert torch.equal(ranker._values(weight), whole[0])
    for a, b in ((0, 1), (1, TOPICS)):
        ranker.batches = lambda a=a, b=b: iter([module.ready("train")[a:b]])
        sums.append(ranker._slopes(weight))
    for found, *parts in zip(whole, *sums, strict=True):
        torch.testing.assert_close(sum(parts), found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"solver": "newton"}, "unknown solver='newton': choose one of auto, lbfgs, fista"),
        ({"bound": "all"}, "unknown bound='all'"),
        ({"grades": "three"}, "unknown grades='three'"),
        ({"group": "list"}, "unknown group='list'"),
        *(({name: value}, f"{name}={value} has to be 0 or a finite") for name in ("l1", "l2") for value in NO_SIZES),
        *(({"tolerance": value}, f"tolerance={value} has to be above 0") for value in (0.0, *NO_SIZES)),
        *(({"negatives": value}, "above 0, at most 1") for value in (0.0, 1.5, math.nan)),
        *(({"gain_tolerance": value}, "at least 0, below 1") for value in (-0.1, 1.0, math.nan)),
        *(({"path": 3, "path_ratio": value}, "between 0 and 1") for value in (0.0, 1.5, math.nan)),
        ({"margin": {"slop": 2.0}}, "margin has no 'slop'"),
        ({"margin": -1.0}, "margin is -1.0: give a finite number of at least 0"),
        ({"rounds": 0}, "rounds=0 has to be an integer, 1 at least"),
        ({"solver": "lbfgs", "l1": 1.0}, "lbfgs needs a smooth objective"),
        ({"solver": "lbfgs", "path": 3}, "lbfgs needs a smooth objective"),
        ({"group": "pooled", "per_topic": True}, "choose one"),
        ({"induction": 0}, "induction=0 has to be 1 at least"),
        ({"path": 0}, "path=0 has to be 1 at least"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        DominationRank(FEATURES, **given)


def test_margins_for_fewer_grades_are_refused(tmp_path):
    for margin in ([1.0], [[0.0, 0.0], [1.0, 0.0]]):
        with pytest.raises(ValueError, match=r"for the grades 0\.\.1, the training labels are grades 0\.\.2"):
            fit(tmp_path, margin=margin)
        assert fit(tmp_path / "flat", margin=margin, grades="flat").converged


def test_other_topics_are_refused(tmp_path):
    turned, fewer = [f"topic {t}" for t in (0, 2, 1, 3)], corpus("val").subset(torch.arange(3))
    for val, message in (
        (corpus("val", names=turned), "list 1 of the set 'val' is topic 'topic 2', that of the training"),
        (fewer, "weights for 4 topics, but the set 'val' has 3 lists"),
    ):
        module = RankingDataModule.from_sets(train=corpus("train"), val=val, measures=["map"])
        with pytest.raises(ValueError, match=message):
            fit(tmp_path, module, per_topic=True)


def test_a_loaded_ranker_refuses_other_topics(tmp_path):
    ranker = fit(tmp_path, topic_data(), per_topic=True, rounds=1)
    loaded = torchrank.load(tmp_path / "last.ckpt")
    assert loaded.topics == ranker.topics == [f"topic {t}" for t in range(TOPICS)]
    turned, fewer = [f"topic {t}" for t in (0, 2, 1, 3)], corpus("test").subset(torch.arange(3))
    for test, message in ((corpus("test", names=turned), "is topic 'topic 2'"), (fewer, "'test' has 3 lists")):
        module = RankingDataModule.from_sets(test=test, measures=["map"])
        with pytest.raises(ValueError, match=message):
            trainer(tmp_path, 1, monitor=None).test(loaded, datamodule=module, verbose=False)


def test_a_fit_that_overflows_says_so():
    ranker = DominationRank(FEATURES)
    for objective, violation in ((math.nan, 0.0), (math.inf, 0.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match=f"objective is {objective}, its violation {violation}: .* too large"):
            ranker._report(objective, violation, ranker.weight)
