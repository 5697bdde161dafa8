"""DominationRank as a ranker: paths, induction, topics, every form of the data, certificates, resume, refusals.

Its minimum is compared with that of another solver in tests/golden/test_domination_rank.py.
"""

import signal

import numpy as np
import pytest
import torch

import torchrank
from tests.golden.domination_reference import Objective
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import DominationRank, RankingDataModule, RankingSet
from torchrank.data import SparseRows
from torchrank.functional import average_precision, ndcg

TOPICS, DOCUMENTS, WORDS = 4, 40, 16
TIGHT = {"transform": None, "tolerance": 1e-6, "rounds": 200}
SOLVERS = {
    "lbfgs": {"l2": 0.5},
    "fista": {"l1": 1.0, "l2": 0.0},
    "pooled": {"l1": 1.0, "l2": 0.1, "group": "pooled"},
    "negatives": {"l1": 1.0, "l2": 0.0, "negatives": 0.5, "grades": "flat"},
    "induction": {"l1": 1.0, "l2": 0.0, "induction": 2},
    "path": {"l2": 0.0, "path": 4, "path_ratio": 0.05},
}


@pytest.fixture(autouse=True)
def interrupts():
    """Lightning ignores SIGINT for ever after one KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def corpus(split, *, shared=True, sparse=True, names=None):
    """Every document of a split in the list of every topic; a topic prefers words of its own. The last has none."""
    random = torch.Generator().manual_seed(len(split))
    x = torch.rand(DOCUMENTS, WORDS, generator=random) * (torch.rand(DOCUMENTS, WORDS, generator=random) < 0.3)
    scores = x @ torch.randn(WORDS, TOPICS, generator=torch.Generator().manual_seed(9))
    labels = (scores > scores.quantile(torch.tensor([0.6, 0.8, 0.9, 1.0]), 0).diagonal()).float().T.flatten()
    index = torch.arange(DOCUMENTS).repeat(TOPICS)
    rows = x if shared else x[index]
    return RankingSet(
        SparseRows.from_dense(rows) if sparse else rows,
        labels,
        torch.arange(0, TOPICS * DOCUMENTS + 1, DOCUMENTS),
        index=index if shared else None,
        query_ids=names or [f"topic {t}" for t in range(TOPICS)],
        name=split,
    )


def topic_data(batch_documents=100, **options):
    sets = {split: corpus(split, **options) for split in ("train", "val", "test")}
    return RankingDataModule.from_sets(**sets, batch_documents=batch_documents, measures=["map"])


def fit(folder, module=None, callbacks=(), **options):
    module = module or data()
    ranker = DominationRank(module.num_features, **TIGHT | options)
    runner = trainer(folder, ranker.rounds, monitor=f"val/{module.measures[-1]}", callbacks=callbacks)
    runner.fit(ranker, datamodule=module)
    return ranker


def reference(ranking_set, **penalty):
    return Objective(ranking_set.x, ranking_set.labels, ranking_set.offsets, **penalty)


def topic_reference(topic, **penalty):
    flat = corpus("train", shared=False, sparse=False)[topic]
    return Objective(flat.x, flat.labels, flat.offsets, **penalty)


def close(one, other, atol=1e-5):
    torch.testing.assert_close(one.weight, other.weight, rtol=0, atol=atol)


# ---- zeros, paths, induction ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"induction": 2}])
def test_from_the_largest_l1_on_all_weights_are_zero(tmp_path, options):
    largest = reference(lists(0)).lambda_max()
    for share, empty in ((1.0 + 1e-9, True), (3.0, True), (0.999, False)):
        ranker = fit(tmp_path / str(share), l1=share * largest, l2=0.0, **options)
        assert ranker.converged and bool((ranker.weight == 0).all()) == empty


def test_a_path_goes_from_zero_down_and_every_step_is_a_minimum(tmp_path):
    steps = []

    class Steps(torchrank.DominationRank):
        def _report(self, objective, violation, weight):
            super()._report(objective, violation, weight)
            steps.append((objective, violation, weight[0].numpy().copy()))

    ranker = Steps(FEATURES, path=6, path_ratio=0.01, l2=0.2, **TIGHT)
    trainer(tmp_path, 6).fit(ranker, datamodule=data())
    plain = reference(lists(0), l2=0.2)
    largest = plain.lambda_max()
    assert len(steps) == 6 and ranker.converged
    for step, (objective, violation, w) in enumerate(steps):
        plain.l1 = largest * 0.01 ** (step / 5)
        best, _ = plain.minimum()
        assert objective == pytest.approx(plain(w), rel=1e-10) and plain(w) <= best * (1 + 1e-8)
        assert violation <= 1e-6 and plain.violation(w) < 2e-6
    counts = [np.count_nonzero(w) for *_, w in steps]
    assert counts[0] == 0 and counts[-1] >= 5 and counts == sorted(counts)


def test_validation_chooses_on_a_path(tmp_path):
    """The best checkpoint is the step with the best validation measure, and a path is not a certified fit."""
    module = topic_data()
    seen = []

    class Seen(torchrank.DominationRank):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            seen.append((self.measured["val"]["default"]["measures"]["map"], self.weight.clone()))

    ranker = Seen(WORDS, path=6, per_topic=True, l2=0.0, transform=None)
    assert not ranker.certified and DominationRank(WORDS).certified
    trainer(tmp_path, 6, monitor="val/map").fit(ranker, datamodule=module)
    values = [value for value, _ in seen]
    best = max(range(6), key=values.__getitem__)
    state = torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"]
    assert len(set(values)) > 2 and torch.equal(state["weight"], seen[best][1])


def test_a_path_of_topics_starts_at_the_largest_l1_of_each(tmp_path):
    weights = []

    class Steps(torchrank.DominationRank):
        def _report(self, objective, violation, weight):
            super()._report(objective, violation, weight)
            weights.append(weight.numpy().copy())

    ranker = Steps(WORDS, path=3, path_ratio=0.1, per_topic=True, l2=0.0, **TIGHT)
    trainer(tmp_path, 3, monitor="val/map").fit(ranker, datamodule=topic_data())
    assert (weights[0] == 0).all() and (weights[1][:3] != 0).any(1).all()
    for t in range(3):
        plain = topic_reference(t)
        plain.l1 = 0.1 * plain.lambda_max()
        assert plain.violation(weights[2][t]) < 2e-6
    assert (weights[2][3] == 0).all()  # one label only


@pytest.mark.parametrize("penalty", [{"l1": 0.3, "l2": 0.0}, {"l1": 0.3, "l2": 0.1}])
@pytest.mark.parametrize("per_topic", [False, True])
def test_induction_ends_at_the_minimum_over_all_features(tmp_path, penalty, per_topic):
    """Taking in few features at a time, and not all of them."""
    module = topic_data()
    ranker = fit(tmp_path / "induced", module, induction=3, per_topic=per_topic, **penalty)
    whole = fit(tmp_path / "whole", module, per_topic=per_topic, **penalty)
    assert ranker.converged and ranker.certificate["kkt"] <= 1e-6
    close(ranker, whole, atol=1e-4)
    assert torch.equal(ranker.weight != 0, whole.weight != 0)
    assert (ranker.chosen | (ranker.weight == 0)).all() and ranker.chosen.sum() < ranker.chosen.numel()


def test_the_first_features_have_the_largest_sure_gains(tmp_path):
    """From the gradient at 0 and the range of each column, typed again."""
    train = lists(0)
    ranker = fit(tmp_path, l1=0.5, l2=0.1, induction=2, rounds=1)
    gradient, curvature = np.abs(reference(train).loss(np.zeros(FEATURES))[1]), np.zeros(FEATURES)
    for q in range(len(train)):
        x, y = train[q].x.numpy(), train[q].labels.numpy()
        curvature += (y > y.min()).sum() * (x.max(0) - x.min(0)) ** 2 / 4
    gains = np.maximum(gradient - 0.5, 0) ** 2 / (2 * (curvature + 0.2))
    assert set(ranker.chosen[0].nonzero().flatten().tolist()) == set(np.argsort(-gains)[:2].tolist())
    assert ranker.first_gain.item() == pytest.approx(gains.max(), rel=1e-6)


def test_a_tolerance_for_gains_ends_induction_with_l2(tmp_path):
    """Where no gain is ever 0: few features with a high threshold, more with a lower one; the rest is not proved."""
    counts = []
    for share in (0.3, 0.03, 1e-4):
        ranker = fit(tmp_path / str(share), topic_data(), l2=1.0, induction=1, gain_tolerance=share, tolerance=1e-5)
        counts.append(int(ranker.chosen.sum()))
        assert ranker.converged and torch.equal(ranker.weight != 0, ranker.chosen)
    assert 0 < counts[0] < counts[1] < counts[2]


def test_the_threshold_of_gains_is_that_of_each_topic(tmp_path):
    """The topics of one fit take in what they would by themselves."""
    options = {"l1": 0.1, "l2": 0.0, "induction": 1, "gain_tolerance": 0.1, "per_topic": True}
    together = fit(tmp_path / "all", topic_data(), **options)
    module = topic_data()
    for t in range(3):
        sets = {split: module.sets[split].subset(torch.tensor([t])) for split in module.sets}
        alone = fit(tmp_path / str(t), RankingDataModule.from_sets(**sets, measures=["map"]), **options)
        torch.testing.assert_close(together.first_gain[t], alone.first_gain[0])
        assert torch.equal(together.chosen[t], alone.chosen[0])


# ---- margins ------------------------------------------------------------------------------------------------------


def test_equal_margins_written_differently(tmp_path):
    matrix = [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [2.0, 1.5, 0.0]]
    for name, same in {"boundaries": ([0.5, 1.5], matrix), "number": (0.7, {"slope": 0.7, "offset": 0.0})}.items():
        one, other = (fit(tmp_path / f"{name}{i}", margin=margin) for i, margin in enumerate(same))
        close(one, other)


def test_a_margin_asks_for_longer_weights(tmp_path):
    norms = [float(fit(tmp_path / str(k), margin=k, l2=0.5).weight.norm()) for k in (0.0, 1.0, 3.0)]
    assert norms[0] < norms[1] < norms[2]


# ---- forms of the data ------------------------------------------------------------------------------------------


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


# ---- certificates, checkpoints, interrupts --------------------------------------------------------------------------


def test_a_fit_that_ends_early_says_so(tmp_path):
    with pytest.warns(UserWarning, match="stopped before its certificate .kkt"):
        ranker = fit(tmp_path, l1=0.1, l2=0.0, tolerance=1e-12, rounds=1)
    assert not ranker.converged and ranker.certificate["kkt"] > 1e-12
    expected = reference(lists(0), l1=0.1).violation(ranker.weight[0].numpy())
    assert ranker.certificate == {"kkt": pytest.approx(expected, abs=1e-9), "tolerance": 1e-12, "density": 1.0}


def test_a_certified_path_warns_of_nothing(tmp_path, recwarn):
    fit(tmp_path, **SOLVERS["path"])
    assert not [found for found in recwarn if "certificate" in str(found.message) or "path" in str(found.message)]


def test_a_step_of_a_path_that_is_not_proved_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("torchrank.rankers.domination.PATH_ROUNDS", 1)
    with pytest.warns(UserWarning, match="this step of the path ends at a KKT violation of"):
        fit(tmp_path, **SOLVERS["path"] | {"path_ratio": 1e-4, "tolerance": 1e-12})


@pytest.mark.parametrize("name", SOLVERS)
def test_checkpoints_hold_everything(tmp_path, name, monkeypatch):
    """Cut after every round and taken up by a new ranker, the fit ends at the same state."""
    monkeypatch.setattr("torchrank.rankers.domination.STEPS", 3)
    options = SOLVERS[name] | {"tolerance": 1e-3, "rounds": 4, "transform": None}

    def make():
        return DominationRank(FEATURES, **options)

    whole = make()
    trainer(tmp_path / "whole", 4).fit(whole, datamodule=data())
    for cut in range(1, whole.trainer.current_epoch):
        folder = tmp_path / str(cut)
        trainer(folder, cut).fit(make(), datamodule=data())
        resumed = make()
        trainer(folder, 4).fit(resumed, datamodule=data(), ckpt_path=folder / "last.ckpt", weights_only=True)
        for key, tensor in whole.state_dict().items():
            torch.testing.assert_close(resumed.state_dict()[key], tensor, rtol=1e-10, atol=1e-10, msg=f"{cut} {key}")
        assert torch.equal(torchrank.load(folder / "last.ckpt").weight, resumed.weight)


def counted(ranker, stop=None):
    """Count the sums that a fit asks for, and interrupt it at one of them."""
    total, calls = ranker.total, []

    def interrupted(fn, into=None):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return total(fn, into)

    ranker.total = interrupted
    return calls


@pytest.mark.parametrize("name", SOLVERS)
def test_an_interrupt_at_any_sum_loses_nothing(tmp_path, name, monkeypatch):
    monkeypatch.setattr("torchrank.rankers.domination.STEPS", 2)  # fewer sums, as many kinds of them
    options = SOLVERS[name] | {"tolerance": 1e-2 if "path" not in name else 5.0, "rounds": 3, "transform": None}

    def make():
        return DominationRank(FEATURES, **options)

    whole = make()
    calls = counted(whole)
    trainer(tmp_path / "whole", 3).fit(whole, datamodule=data())
    total = len(calls)
    for stop in sorted({1, 2, 3, *range(4, total, 1 + total // 4), total}):
        folder, cut, resumed = tmp_path / str(stop), make(), make()
        counted(cut, stop)
        with pytest.raises(SystemExit):
            trainer(folder, 3).fit(cut, datamodule=data())
        last = folder / "last.ckpt"
        trainer(folder, 3).fit(resumed, datamodule=data(), ckpt_path=last if last.exists() else None, weights_only=True)
        for key, tensor in whole.state_dict().items():
            torch.testing.assert_close(resumed.state_dict()[key], tensor, rtol=1e-10, atol=1e-10, msg=f"{stop} {key}")


def test_resuming_a_converged_fit_runs_no_round(tmp_path):
    fit(tmp_path, l1=1.0)
    again = DominationRank(FEATURES, l1=1.0, **TIGHT)
    again.round = None  # a round would fail
    trainer(tmp_path, 200).fit(again, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert again.converged


def test_a_ranker_can_be_fitted_again_to_other_lists(tmp_path):
    ranker = DominationRank(FEATURES, l1=1.0, l2=0.0, negatives=0.5, **TIGHT)
    trainer(tmp_path, 200).fit(ranker, datamodule=data())
    other = RankingDataModule.from_sets(train=lists(5), val=lists(1))
    trainer(tmp_path, 200).fit(ranker, datamodule=other)
    close(ranker, fit(tmp_path / "new", other, l1=1.0, l2=0.0, negatives=0.5))


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
        ({"l1": -1.0}, "must not be negative"),
        ({"l2": -1.0}, "must not be negative"),
        ({"negatives": 0.0}, "above 0, at most 1"),
        ({"negatives": 1.5}, "above 0, at most 1"),
        ({"solver": "lbfgs", "l1": 1.0}, "lbfgs needs a smooth objective"),
        ({"solver": "lbfgs", "path": 3}, "lbfgs needs a smooth objective"),
        ({"group": "pooled", "per_topic": True}, "choose one"),
        ({"induction": 2, "path": 3}, "choose one"),
        ({"induction": 0}, "induction=0 has to be 1 at least"),
        ({"path": 0}, "path=0 has to be 1 at least"),
        ({"path": 3, "path_ratio": 1.5}, "between 0 and 1"),
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
    turned = [f"topic {t}" for t in (0, 2, 1, 3)]
    module = RankingDataModule.from_sets(train=corpus("train"), val=corpus("val", names=turned), measures=["map"])
    with pytest.raises(ValueError, match="topic"):
        fit(tmp_path, module, per_topic=True)
    fewer = RankingDataModule.from_sets(
        train=corpus("train"), val=corpus("val").subset(torch.arange(3)), measures=["map"]
    )
    with pytest.raises(ValueError, match="topic"):
        fit(tmp_path, fewer, per_topic=True)
