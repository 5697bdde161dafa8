"""Lists with fewer entries: drawn negatives, which depend on seed and position only, and nearest neighbours."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from torchrank import RankingSet
from torchrank.data import SparseRows
from torchrank.data.batch import make_batch
from torchrank.rankers.core.selection import keep_nearest, keep_negatives, narrow


def lists(lengths=(7, 0, 1, 30, 12, 5), seed=0):
    """Documents are told apart by their one feature; list 4 has the grades 1 and 2, the last has one grade."""
    random = torch.Generator().manual_seed(seed)
    size = sum(lengths)
    labels = torch.randint(0, 3, (size,), generator=random).float() * (torch.rand(size, generator=random) < 0.5)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
    labels[offsets[4] : offsets[5]] = (torch.arange(12) % 4 == 0) + 1.0
    labels[offsets[5] :] = 2.0
    return RankingSet(torch.arange(size)[:, None].float(), labels, offsets)


def kept_of(batch, q):
    return set(batch.x[batch.offsets[q] : batch.offsets[q + 1], 0].int().tolist())


@pytest.mark.parametrize("share", [0.001, 0.1, 0.25, 0.5, 0.77])
def test_how_many_and_which(share):
    whole = lists()
    found = keep_negatives(whole[:], share, seed=5)
    for q in range(len(whole)):
        a, b = whole.offsets[q : q + 2].tolist()
        labels = whole.labels[a:b].tolist()
        low = [a + i for i, y in enumerate(labels) if y == min(labels)]
        kept = kept_of(found, q)
        assert kept >= set(range(a, b)) - set(low)  # dominating documents stay, those between the grades too
        assert len(kept & set(low)) == (max(1, round(share * len(low))) if low else 0)
    assert (found.x[:, 0].diff() > 0).all()  # in the order of the set
    assert torch.equal(found.labels, whole.labels[found.x[:, 0].long()])
    assert found.max_length == int(found.offsets.diff().max()) and torch.equal(found.query, whole[:].query)
    pairs = [
        (y[:, None] > y).sum()
        for y in (found.labels[a:b] for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True))
    ]
    assert found.num_pairs == sum(pairs)


def test_batches_do_not_matter():
    whole = lists()
    expected = keep_negatives(whole[:], 0.3, seed=1)
    for cut in ([0, 1, 2, 3, 4, 5, 6], [0, 4, 6], [0, 2, 6]):
        parts = [keep_negatives(whole[a:b], 0.3, seed=1) for a, b in itertools.pairwise(cut)]
        assert torch.equal(torch.cat([part.x for part in parts]), expected.x)
    turned = keep_negatives(whole[torch.tensor([4, 3])], 0.3, seed=1)
    assert kept_of(turned, 0) == kept_of(expected, 4) and kept_of(turned, 1) == kept_of(expected, 3)


def test_seeds_and_lists_draw_differently():
    whole = lists((40, 40, 40, 40, 12, 5))
    whole.labels[:160] = 0
    drawn = [keep_negatives(whole[:], 0.5, seed) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0].x, drawn[1].x) and not torch.equal(drawn[0].x, drawn[2].x)
    places = [{i - 40 * q for i in kept_of(drawn[0], q)} for q in range(3)]
    assert places[0] != places[1] and places[1] != places[2]


def test_every_document_is_as_likely_as_any_other():
    one = RankingSet(torch.arange(20)[:, None].float(), torch.zeros(20), torch.tensor([0, 20]))
    counts, together = np.zeros(20), np.zeros((20, 20))
    for seed in range(2000):
        kept = list(kept_of(keep_negatives(one[:], 0.25, seed), 0))
        counts[kept] += 1
        together[np.ix_(kept, kept)] += 1
    assert counts.sum() == 5 * 2000
    assert chisquare(counts).pvalue > 1e-3
    assert chisquare(together[np.triu_indices(20, 1)]).pvalue > 1e-3  # in pairs too


def test_the_lowest_label_of_all_lists():
    """Where lists are compared with each other, documents above the lowest label of all of them stay."""
    whole = lists()
    found = keep_negatives(whole[:], 0.2, seed=0, lowest=0.0)
    above = set((whole.labels > 0).nonzero().flatten().tolist())
    assert above <= set(found.x[:, 0].int().tolist())
    assert len(kept_of(found, 5)) == 5  # all of them have grade 2


@pytest.mark.parametrize("sparse", [False, True])
def test_every_form_of_rows(sparse):
    whole = lists()
    rows = torch.cat((whole.x + 1, -whole.x), 1)
    kind = SparseRows.from_dense if sparse else torch.clone
    own = keep_negatives(RankingSet(kind(rows), whole.labels, whole.offsets)[:], 0.3, seed=2)
    index = torch.arange(len(rows)).flip(0)
    shared = RankingSet(kind(rows.flip(0)), whole.labels, whole.offsets, index=index)
    found = keep_negatives(shared[:], 0.3, seed=2)
    assert found.x is shared[:].x or not sparse
    flat = found.flat()
    for a, b in ((own.x, flat.x), (own.labels, flat.labels), (own.offsets, flat.offsets)):
        a, b = (part.dense() if isinstance(part, SparseRows) else part for part in (a, b))
        assert torch.equal(a, b)


# ---- nearest neighbours -----------------------------------------------------------------------------------------


def with_queries(seed=0, lengths=(12, 0, 1, 30), *, ties=False):
    random = torch.Generator().manual_seed(seed)
    size = sum(lengths)
    x, queries = torch.randn(size, 3, generator=random), torch.randn(len(lengths), 3, generator=random)
    if ties:
        x, queries = x.sign(), torch.zeros_like(queries)
    labels = torch.randint(0, 3, (size,), generator=random)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
    return make_batch(x, labels, offsets, queries=queries)


def nearest_by_hand(batch, neighbours, threshold):
    kept = []
    for q in range(batch.num_lists):
        entries = range(int(batch.offsets[q]), int(batch.offsets[q + 1]))
        by_distance = sorted(entries, key=lambda i: ((batch.x[i] - batch.queries[q]) ** 2).sum().item())
        near = [i for i in by_distance if batch.labels[i] >= threshold][:neighbours]
        far = [i for i in by_distance if batch.labels[i] < threshold][: 3 * neighbours]
        kept.append(sorted(near + far))
    return kept


@pytest.mark.parametrize("neighbours", [1, 2, 5, 100])
@pytest.mark.parametrize("threshold", [1.0, 2.0])
@pytest.mark.parametrize("ties", [False, True])
def test_the_nearest_relevant_and_three_times_as_many_others_stay(neighbours, threshold, ties):
    """Of equal distances the first."""
    batch = with_queries(ties=ties)
    found, expected = keep_nearest(batch, neighbours, threshold), nearest_by_hand(batch, neighbours, threshold)
    assert found.offsets.diff().tolist() == [len(kept) for kept in expected]
    rows = torch.tensor(list(itertools.chain.from_iterable(expected)))
    assert torch.equal(found.x, batch.x[rows]) and torch.equal(found.labels, batch.labels[rows])
    assert torch.equal(found.queries, batch.queries) and torch.equal(found.query, batch.query)


def test_neighbours_of_a_shared_corpus_are_those_of_its_rows():
    batch = with_queries()
    order = torch.randperm(len(batch.x), generator=torch.Generator().manual_seed(1))
    shared = make_batch(batch.x[order], batch.labels, batch.offsets, index=order.argsort(), queries=batch.queries)
    found, own = keep_nearest(shared, 2, 1.0), keep_nearest(batch, 2, 1.0)
    assert found.x is shared.x and torch.equal(found.flat().x, own.x) and torch.equal(found.offsets, own.offsets)


def test_a_list_that_loses_all_entries_stays_as_an_empty_one():
    batch = with_queries(lengths=(3, 2))
    found = narrow(batch, torch.tensor([False, False, False, True, True]))
    assert found.offsets.tolist() == [0, 0, 2] and torch.equal(found.x, batch.x[3:]) and found.max_length == 2
