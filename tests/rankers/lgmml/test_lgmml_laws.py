"""Laws of L-GMML: batches, order, units and axes change nothing; limits in which the answer is known; atomic rounds."""

import numpy as np
import pytest
import torch

import torchrank.functional as F
from tests.rankers.lgmml.fits import (
    GIVEN,
    KERNELS,
    SMALL,
    WEIGHTS,
    WIDTH,
    assert_equal_fits,
    close,
    fitted,
    graded,
    rows_of,
    scores_of,
    split,
    state,
    with_corpus,
    write,
)
from tests.rankers.small import FEATURES, data, lists, trainer
from tests.reference import local_metrics as plain
from tests.reference.measures import blocks
from torchrank import GMML, LGMML, RankingSet
from torchrank.data.training import TrainingLists

FITS = [
    {"rounds": 4},
    {"anchor": "best", "rounds": 3},
    {"anchor": "search", "kernel": "rbf", "rounds": 3},
    {"weights": "per_query", "fallback": "knn", "rounds": 3},
    {"weights": "amortized", "rounds": 3, "tau": "q95"},
    {"kernel": "localized", "rounds": 3},
    {"queries_per_metric": None, "metrics": 1},
]


# ---- batches, corpora, order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", FITS, ids=str)
def test_batches_are_only_a_way_to_read(options):
    whole = fitted(wide=True, documents=100_000, **options)
    assert_equal_fits(whole, fitted(wide=True, documents=1, **options))


@pytest.mark.parametrize("options", [FITS[0], FITS[3]], ids=str)
def test_streamed_lists_are_those_in_memory(tmp_path, options):
    streamed = LGMML(FEATURES, **SMALL | options)
    trainer(tmp_path, streamed.rounds, monitor=None).fit(streamed, datamodule=data(40, resident=False))
    assert_equal_fits(fitted(**options), streamed, 1e-6)


@pytest.mark.parametrize("options", FITS, ids=str)
def test_a_shared_corpus_is_its_flat_copy(options):
    flat, corpus = (fitted(train, wide=True, **options) for train in (lists(0), with_corpus(lists(0))))
    assert_equal_fits(flat, corpus, 1e-9)
    test, other = lists(2), with_corpus(lists(2))
    np.testing.assert_allclose(scores_of(corpus, other, index=other.index), scores_of(flat, test), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [options for options in FITS if "anchor" not in options], ids=str)
def test_the_order_of_documents_does_not_matter(options):
    train = lists(0)
    keys = torch.rand(len(train.x), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.argsort(torch.repeat_interleave(train.offsets.diff()) + keys)
    mixed = RankingSet(train.x[order], train.labels[order], train.offsets)
    one, other = (scores_of(fitted(part, wide=True, **options), lists(2)) for part in (train, mixed))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_the_order_of_lists_does_not_matter_where_all_are_used():
    mixed = lists(0).subset(torch.randperm(12, generator=torch.Generator().manual_seed(0)))
    one, other = (scores_of(fitted(train, GMML), lists(2)) for train in (lists(0), mixed))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_permuted_documents_and_permuted_metrics(kernel):
    train, test = graded(24), graded(25)
    ranker = fitted(train, kernel=kernel)
    write(ranker.weights, torch.rand(ranker.weights.shape, generator=torch.Generator().manual_seed(0)))
    before = scores_of(ranker, test)
    rng = np.random.default_rng(26)
    places = np.concatenate([block.start + rng.permutation(block.stop - block.start) for block in blocks(test.offsets)])
    permuted = RankingSet(test.x[places], test.labels[places], test.offsets)
    close(scores_of(ranker, permuted), before[places], 2e-6)
    assert np.array_equal(
        ranker.rank(permuted.x, test.offsets).numpy(), np.argsort(places)[ranker.rank(test.x, test.offsets).numpy()]
    )
    order = torch.tensor(rng.permutation(len(ranker.tau)))
    for part in (ranker.factors, ranker.anchors, ranker.tau, ranker.weights):
        write(part, part[order].clone())
    close(scores_of(ranker, test), before, 2e-6)


@pytest.mark.parametrize("mode", WEIGHTS)
def test_lists_do_not_disturb_each_other(mode):
    """A batch is the concatenation of its lists."""
    ranker, test = fitted(graded(27), rounds=3, **WEIGHTS[mode]), graded(28)
    for block, expected in zip(blocks(test.offsets), split(scores_of(ranker, test), test.offsets), strict=True):
        one = RankingSet(test.x[block], test.labels[block], torch.tensor([0, block.stop - block.start]))
        close(scores_of(ranker, one), expected, 5e-6)


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_unit_and_axes_of_all_features_together():
    """X -> a X: same metrics, scales times a, same scores. X -> X Q: same scores (relative ridge, no transform)."""
    train, test = graded(20, dead=False), graded(21, dead=False)
    base = fitted(train, transform=None)
    axes = torch.tensor(np.linalg.qr(np.random.default_rng(22).normal(size=(WIDTH, WIDTH)))[0]).float()
    for change in (lambda x: 8 * x, lambda x: x @ axes):
        moved = [RankingSet(change(part.x), part.labels, part.offsets) for part in (train, test)]
        other = fitted(moved[0], transform=None)
        assert torch.equal(other.sources, base.sources)
        close(scores_of(other, moved[1]), scores_of(base, test), 1e-4)
    scaled = fitted(RankingSet(8 * train.x, train.labels, train.offsets), transform=None)
    close(state(scaled, train).metrics, state(base, train).metrics, 1e-5)
    close(state(scaled, train).tau, 8 * state(base, train).tau, 1e-5)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_the_unit_of_all_features_whatever_its_size(scale):
    similar, dissimilar = torch.diag(torch.tensor([1.0, 2.0])).double(), torch.diag(torch.tensor([4.0, 2.0])).double()
    expected = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(F.gmml(scale * similar, scale * dissimilar), expected, rtol=1e-12, atol=1e-12)


def test_a_huge_ridge_is_euclid():
    for metric in state(fitted(graded(23), ridge=1e9), graded(23)).metrics:
        close(metric, np.eye(len(metric)) * metric[0, 0], 1e-6)


def test_lists_of_equal_documents_give_euclid():
    """Both scatters are 0 and get the same, smallest ridge: M = I."""
    rng = np.random.default_rng(0)
    x = torch.tensor(np.repeat(rng.normal(size=(5, 3)), 6, axis=0), dtype=torch.float32)
    train = RankingSet(x, torch.tensor([1.0, 1, 0, 0, 0, 1] * 5), torch.arange(0, 31, 6))
    for metric in state(fitted(train), train).metrics:
        np.testing.assert_allclose(metric, np.eye(3), atol=1e-6)


@pytest.mark.parametrize("t", [0.0, 0.5])
def test_a_far_virtual_anchor_is_a_linear_ranker(t):
    """With weights M (mu+ - mu-); at t = 0 this is Fisher's discriminant."""
    train = graded(44)
    ranker = fitted(train, GMML, **GIVEN | {"kappa": 1e4, "t": t}).double()
    rows, labels = split(rows_of(train), train.offsets), split(train.labels.numpy(), train.offsets)
    own = [(rows[q], labels[q]) for q in ranker.sources[0].tolist()]
    direction = plain.virtual_anchor(own, "half", 1.0) - plain.virtual_anchor(own, "half", 0.0)
    linear = rows_of(train) @ state(ranker, train).metrics[0] @ direction
    scores = ranker(train.x.double(), train.offsets).numpy()
    assert np.corrcoef(scores, linear)[0, 1] > 1 - 1e-5


# ---- the life of a fit -----------------------------------------------------------------------------------------------


def test_kernel_values_are_kept_or_made_again(monkeypatch):
    kept = fitted(rounds=4, wide=True)
    monkeypatch.setattr("torchrank.rankers.lgmml.ranker.KEPT_BYTES", 0)
    assert_equal_fits(kept, fitted(rounds=4, wide=True))


@pytest.mark.parametrize("options", FITS, ids=str)
def test_a_second_fit_forgets_the_first(options):
    """Other lists in other batches, after scores that made derived tensors."""
    ranker, fresh = fitted(**options), fitted(lists(5), documents=70, **options)
    scores_of(ranker, lists(2))
    ranker.fit(lists(5), batch_documents=70)
    assert_equal_fits(fresh, ranker, 0.0)
    np.testing.assert_array_equal(scores_of(ranker, lists(2)), scores_of(fresh, lists(2)))


@pytest.mark.parametrize("options", [
    {"rounds": 3, **WEIGHTS["shared"]},
    *({"rounds": 3, **WEIGHTS[mode]} for mode in ("knn", "amortized")),
    {"kernel": "localized", "transform": {"name": "pca", "variance": 0.7}},
    {"make": GMML},
], ids=str)  # fmt: skip
def test_a_loaded_state_is_scored_also_where_another_one_was_scored_before(options):
    """Nothing that was derived from the old tensors is left, whatever their sizes."""
    one, other = fitted(**options), fitted(lists(5).subset(torch.arange(9)), **options)
    before = scores_of(other, lists(2))
    other.load_state_dict(one.state_dict())
    assert not np.allclose(before, scores_of(one, lists(2)))
    np.testing.assert_array_equal(scores_of(other, lists(2)), scores_of(one, lists(2)))


@pytest.mark.parametrize("options", [
    {"anchor": "best", "rounds": 3, "lr": 0.1},
    {"weights": "per_query", "fallback": "knn", "mode": "sgd", "rounds": 3},
    {"weights": "amortized", "rounds": 3},
], ids=str)  # fmt: skip
def test_a_round_that_is_interrupted_at_any_sum_has_changed_nothing(monkeypatch, options):
    """And can be taken again, with what the fit keeps from round to round."""
    seen, total = {"sums": 0, "stop": 0}, TrainingLists.total

    def counted(lists, fn, into=None):
        seen["sums"] += 1
        if seen["sums"] == seen["stop"]:
            raise KeyboardInterrupt
        return total(lists, fn, into)

    def tensors(ranker):
        return {name: part.clone() for name, part in ranker.state_dict().items() if isinstance(part, torch.Tensor)}

    monkeypatch.setattr(TrainingLists, "total", counted)
    whole, stops = fitted(**options), range(1, seen["sums"] + 1)
    assert len(stops) >= 4
    for stop in stops:
        seen |= {"sums": 0, "stop": stop}
        ranker, number, interrupts = LGMML(FEATURES, **SMALL | options), 0, 0
        ranker.learn_transform(lists(0))
        ready = TrainingLists(lists(0).to("cpu", ranker.transform), budget=40)
        ranker.begin(ready)
        ranker.resume(ready)
        while number < ranker.rounds:
            before = tensors(ranker)
            try:
                ranker.take_round(number)
                number += 1
            except KeyboardInterrupt:
                interrupts += 1
                assert all(torch.equal(part, before[name]) for name, part in tensors(ranker).items())
        assert interrupts == 1
        assert_equal_fits(whole, ranker, 0.0)
