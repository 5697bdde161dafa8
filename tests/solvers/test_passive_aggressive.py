"""Passive-aggressive steps against plain numpy, a constrained solver and counted probabilities."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import chisquare

from torchrank.data import SparseRows
from torchrank.solvers.passive_aggressive import (
    SAMPLINGS,
    SMALLEST,
    differences,
    draw_lists,
    draw_pairs,
    list_counts,
    passive_minibatches,
    passive_steps,
)

LABELS = [0, 2, 1, 1, 0, 0, 3, 3, 1, 5, 2, 2, 7, 0]  # the lists of 1 and of 2 entries have no pair, one has no entry
LENGTHS = [5, 1, 0, 2, 3, 3]


def plain(rows, w, C, l2=0.0):
    """The iterates w_1, w_2, ..., each as the spec writes it."""
    iterates, w = [], np.array(w, dtype=float)
    for v in rows:
        norm = v @ v
        tau = np.clip((1 + 2 * l2 - w @ v) / norm, 0, C) if norm > 0 else 0.0
        w = (w + tau * v) / (1 + 2 * l2)
        iterates.append(w)
    return np.array(iterates)


def random_rows(seed, count=300, width=8, zeros=0.0):
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(count, width)) + 0.3
    return np.where(draw.random(rows.shape) < zeros, 0.0, rows), draw.normal(size=width)


def offsets_of(lengths):
    return torch.tensor([0, *np.cumsum(lengths)])


# ---- steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [0.01, 0.2, 10.0])
def test_pa1_is_the_textbook_rule(C):
    rows, start = random_rows(0)
    w, clipped = start.copy(), 0
    for v in rows:
        loss = max(0.0, 1 - w @ v)
        if loss > 0:
            clipped += loss / (v @ v) > C
            w = w + min(C, loss / (v @ v)) * v
    assert 0 < clipped < len(rows) or C == 10.0
    np.testing.assert_allclose(passive_steps(torch.tensor(rows), torch.tensor(start), C=C).weights, w, rtol=1e-12)
    np.testing.assert_allclose(plain(rows, start, C)[-1], w, rtol=1e-12)


@pytest.mark.parametrize("l2", [0.0, 1e-3, 0.3, 20.0])
@pytest.mark.parametrize("zeros", [0.0, 0.7])
def test_weights_sums_and_losses_of_all_iterates(l2, zeros):
    """The multiplier and the sum of the iterates change nothing; it is reset many times where l2 is large."""
    rows, start = random_rows(1, zeros=zeros)
    iterates = plain(rows, start, 0.5, l2)
    assert l2 < 0.1 or (1 + 2 * l2) ** -len(rows) < SMALLEST**3
    dense = torch.tensor(rows)
    for given in (dense, SparseRows.from_dense(dense)):
        passed = passive_steps(given, torch.tensor(start), C=0.5, l2=l2)
        np.testing.assert_allclose(passed.weights, iterates[-1], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(passed.total / len(rows), iterates.mean(0), rtol=1e-10, atol=1e-12)
        before = np.vstack([start, iterates[:-1]])
        assert passed.loss == pytest.approx(np.maximum(0, 1 - (before * rows).sum(1)).sum(), rel=1e-12)


def test_many_shrinking_steps_keep_their_digits():
    rows, start = random_rows(2, count=20_000, width=3)
    passed = passive_steps(torch.tensor(rows), torch.tensor(start), C=0.1, l2=2e-3)
    iterates = plain(rows, start, 0.1, 2e-3)
    np.testing.assert_allclose(passed.weights, iterates[-1], rtol=1e-10)
    np.testing.assert_allclose(passed.total / len(rows), iterates.mean(0), rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("l2", [0.0, 0.05, 1.0])
def test_a_step_is_the_exact_minimiser(seed, l2):
    """1/2 |w' - w|^2 + l2 |w'|^2 + C slack, slack >= 0, slack >= 1 - w'.v, by a solver for constrained problems."""
    rows, start = random_rows(seed, count=1, width=4)
    v, C = rows[0], [0.02, 0.1, 5.0][seed % 3]
    found = passive_steps(torch.tensor(rows), torch.tensor(start), C=C, l2=l2).weights.numpy()

    def objective(w):
        return 0.5 * (w - start) @ (w - start) + l2 * w @ w + C * max(0.0, 1 - w @ v)

    solved = minimize(
        lambda z: 0.5 * (z[:4] - start) @ (z[:4] - start) + l2 * z[:4] @ z[:4] + C * z[4],
        np.append(start, 1.0),
        method="SLSQP",
        bounds=[(None, None)] * 4 + [(0, None)],
        constraints={"type": "ineq", "fun": lambda z: z[4] - 1 + z[:4] @ v},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(found, solved.x[:4], atol=1e-5)
    assert objective(found) <= objective(solved.x[:4]) + 1e-12
    draw = np.random.default_rng(seed)
    assert all(objective(found) <= objective(found + draw.normal(size=4) * 10.0**-k) for k in range(8))


def test_what_a_step_promises():
    v, w = torch.tensor([[1.0, 2.0, -1.0]]).double(), torch.tensor([0.5, -1.0, 0.0]).double()
    after = passive_steps(v, w, C=10.0).weights
    assert float(v[0] @ after) == pytest.approx(1.0)  # not clipped: no loss is left
    satisfied = torch.tensor([1.0, 0.0, 0.0]).double()
    assert torch.equal(passive_steps(v, satisfied, C=10.0).weights, satisfied)  # margin 1: passive
    assert passive_steps(v, torch.zeros(3), C=1e-3).weights.tolist() == [1e-3, 2e-3, -1e-3]  # clipped: C v


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_two_equal_documents_move_nothing(l2):
    x, w = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([3.0, -1.0]).double()
    for rows in (x, SparseRows.from_dense(x)):
        v = differences(rows, torch.tensor([0]), torch.tensor([1]))
        expected = w / (1 + 2 * l2)  # only the penalty acts
        torch.testing.assert_close(passive_steps(v, w, C=1.0, l2=l2).weights, expected)
        torch.testing.assert_close(passive_minibatches(v, w, [0, 1], [1], C=1.0, l2=l2).weights, expected)


def test_no_rows_no_step():
    start = torch.ones(3)
    for rows in (torch.zeros(0, 3), SparseRows.from_dense(torch.zeros(0, 3))):
        for passed in (passive_steps(rows, start), passive_minibatches(rows, start, [0], [])):
            assert passed.weights.tolist() == [1, 1, 1] and passed.total.tolist() == [0, 0, 0] and passed.loss == 0


def test_the_given_weights_stay():
    start = torch.zeros(2).double()
    passive_steps(torch.eye(2), start)
    passive_minibatches(torch.eye(2), start, [0, 2], [2])
    assert start.tolist() == [0, 0]


@pytest.mark.parametrize("int32", [False, True])
def test_sparse_differences_with_columns_of_both_rows_and_columns_that_stand_twice(int32):
    draw = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, 4, 4, 9, 12])
    columns = torch.tensor([1, 5, 1, 0, 5, 2, 5, 1, 3, 0, 0, 0])
    x = SparseRows(torch.randn(12, generator=draw), columns.int() if int32 else columns, offsets, 7)
    first, second = torch.randint(4, (2, 60), generator=draw)
    sparse, dense = differences(x, first, second), differences(x.dense(), first, second)
    torch.testing.assert_close(sparse.dense(), dense)
    assert all(len(set(row.tolist())) == len(row) for row in sparse.columns.split(sparse.row_offsets.diff().tolist()))
    for l2 in (0.0, 0.01):
        one, other = (passive_steps(rows, torch.zeros(7), C=0.3, l2=l2) for rows in (sparse, dense))
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
        one, other = (
            passive_minibatches(rows, torch.zeros(7), [0, 60], [60], C=0.3, l2=l2) for rows in (sparse, dense)
        )
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.02])
def test_a_minibatch_moves_to_the_mean_of_its_points(sparse, l2):
    rows, start = random_rows(3, count=50, zeros=0.5)
    w, iterates, loss = start, [], 0.0
    for begin in range(0, 50, 16):  # the last one has 2
        part = rows[begin : begin + 16]
        loss += np.maximum(0, 1 - part @ w).sum()
        w = np.mean([plain(v[None], w, 0.2, l2)[-1] for v in part], axis=0)
        iterates.append(w)
    given = SparseRows.from_dense(torch.tensor(rows)) if sparse else torch.tensor(rows)
    passed = passive_minibatches(given, torch.tensor(start), [0, 16, 32, 48, 50], [16, 16, 16, 2], C=0.2, l2=l2)
    np.testing.assert_allclose(passed.weights, w, rtol=1e-12)
    np.testing.assert_allclose(passed.total, np.sum(iterates, axis=0), rtol=1e-12)
    assert passed.loss == pytest.approx(loss)


@pytest.mark.parametrize("sparse", [False, True])
def test_minibatches_of_one_are_the_sequence(sparse):
    rows, start = random_rows(4, count=40)
    given = SparseRows.from_dense(torch.tensor(rows)) if sparse else torch.tensor(rows)
    one = passive_minibatches(given, torch.tensor(start), list(range(41)), [1] * 40, C=0.1, l2=0.01)
    torch.testing.assert_close(one, passive_steps(given, torch.tensor(start), C=0.1, l2=0.01))


@pytest.mark.parametrize("sparse", [False, True])
def test_shares_of_a_minibatch_sum_to_the_whole(sparse):
    """Two shares, one of them empty in some steps: `reduce` of the one adds what the other has."""
    rows, start = random_rows(5, count=12)
    kind = SparseRows.from_dense if sparse else (lambda x: x)
    whole = passive_minibatches(kind(torch.tensor(rows)), torch.tensor(start), [0, 4, 8, 12], [4, 4, 4], C=0.1)
    mine, theirs = [0, 1, 2, 3, 5, 6], [4, 7, 8, 9, 10, 11]
    parts = [kind(torch.tensor(rows[own])) for own in (mine, theirs)]
    bounds, w, changes = [[0, 4, 6, 6], [0, 0, 2, 6]], torch.tensor(start), []
    for step in range(3):  # the moves of the second share, made along the whole sequence
        a, b = bounds[1][step : step + 2]
        alone = passive_minibatches(parts[1][a:b], w, [0, b - a], [4], C=0.1).weights
        changes.append((alone - w) * 4)
        w = passive_minibatches(kind(torch.tensor(rows[4 * step : 4 * step + 4])), w, [0, 4], [4], C=0.1).weights
    other = iter(changes)
    found = passive_minibatches(
        parts[0], torch.tensor(start), bounds[0], [4] * 3, C=0.1, reduce=lambda change: change + next(other)
    )
    torch.testing.assert_close(found.weights, whole.weights)


# ---- drawing ----------------------------------------------------------------------------------------------------


def probabilities(sampling):
    """Of every pair (i, j), as the spec says it, in loops."""
    bounds, found = np.cumsum([0, *LENGTHS]), {}
    below = {
        i: [j for j in range(a, b) if LABELS[j] < LABELS[i]]
        for a, b in pairwise(bounds) for i in range(a, b)
    }  # fmt: skip
    owner = np.repeat(range(len(LENGTHS)), LENGTHS)
    dominating = [i for i in below if below[i]]
    lists = {owner[i] for i in dominating}
    for i in dominating:
        for j in below[i]:
            if sampling == "positive":
                found[i, j] = 1 / len(dominating) / len(below[i])
            elif sampling == "query":
                found[i, j] = 1 / len(lists) / sum(owner[k] == owner[i] for k in dominating) / len(below[i])
            else:
                found[i, j] = 1 / sum(map(len, below.values()))
    return found


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_triplets_have_their_probabilities(sampling):
    labels, offsets = torch.tensor(LABELS), offsets_of(LENGTHS)
    generator, draws = torch.Generator().manual_seed(1), 60_000
    lists = draw_lists(list_counts(labels, offsets, sampling), draws, generator)
    uniform = torch.rand(draws, 2, dtype=torch.float64, generator=generator)
    first, second = draw_pairs(labels, offsets, lists, uniform, sampling)
    expected = probabilities(sampling)
    assert sum(expected.values()) == pytest.approx(1)
    drawn, counts = np.unique(np.stack([first, second], 1), axis=0, return_counts=True)
    assert {tuple(pair) for pair in drawn.tolist()} == set(expected)
    assert chisquare(counts, [draws * expected[tuple(pair)] for pair in drawn.tolist()]).pvalue > 1e-3


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_ends_of_the_interval_stay_inside(sampling):
    labels, offsets = torch.tensor(LABELS), offsets_of(LENGTHS)
    lists = list_counts(labels, offsets, sampling).nonzero().flatten()
    for u in (0.0, 1 - 2.0**-53):
        uniform = torch.full((len(lists), 2), u, dtype=torch.float64)
        first, second = draw_pairs(labels, offsets, lists, uniform, sampling)
        assert (labels[first] > labels[second]).all()
        for entries in (first, second):
            assert torch.equal(torch.searchsorted(offsets, entries, right=True) - 1, lists)


def test_counts_of_lists():
    labels, offsets = torch.tensor(LABELS), offsets_of(LENGTHS)
    assert list_counts(labels, offsets, "positive").tolist() == [3, 0, 0, 0, 2, 2]
    assert list_counts(labels, offsets, "query").tolist() == [1, 0, 0, 0, 1, 1]
    pairs = list_counts(labels.double() / 3, offsets, "pair").tolist()  # real labels are in order too
    assert pairs == list_counts(labels, offsets, "pair").tolist() and sum(pairs) == len(probabilities("pair"))
    with pytest.raises(ValueError, match="choose one of positive, query, pair"):
        list_counts(labels, offsets, "all")


def test_the_seed_decides():
    counts = torch.tensor([3, 0, 5, 1])
    first, again, other = (draw_lists(counts, 50, torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other) and (first != 1).all()
