"""The objective of DominationRank: sums over lists against the one typed again, fewer features, bounds on curvature."""

import numpy as np
import pytest
import torch

from tests.rankers.domination.fits import TOPICS, WORDS, corpus
from tests.rankers.small import FEATURES, lists
from tests.reference.domination import Objective as Plain
from torchrank import RankingSet
from torchrank.data import SparseRows
from torchrank.data.training import TrainingLists
from torchrank.rankers.core.selection import take_features
from torchrank.rankers.domination.margins import Feedback
from torchrank.rankers.domination.objective import Objective, PooledObjective
from torchrank.solvers.domination.coordinate_descent import coordinate_sweep
from torchrank.solvers.domination.penalised import Penalty

FORMS = [(True, True), (True, False), (False, True), (False, False)]  # shared, sparse
FEEDBACK = Feedback(False, None)
FEW = torch.tensor([1, 2, 5, 9, 14])


def weights(models, width, seed=0):
    return torch.randn(models, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def columns_of(ranking_set, features):
    """The same lists, made of these columns from the start."""
    x = ranking_set.x
    rows = SparseRows.from_dense(x.dense()[:, features]) if isinstance(x, SparseRows) else x[:, features]
    return RankingSet(rows, ranking_set.labels, ranking_set.offsets, index=ranking_set.index)


def everything(objective, weight, width):
    """Values, slopes, bounds, and a sweep of coordinate descent."""
    found = [objective.values(weight), *objective.slopes(weight)]
    if isinstance(objective, PooledObjective):
        return [*found, objective.curvature(width)]
    bounds = [objective.curvature(width), objective.curvature(width, 2)]
    penalty, firsts = Penalty(0.1, 0.05), range(0, width, 2)
    return [*found, *bounds, coordinate_sweep(objective.columns, weight, penalty, bounds[1], firsts, block=2)]


# ---- sums over lists --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "sparse"), FORMS)
@pytest.mark.parametrize("margin", [None, 0.5])
def test_values_and_slopes_are_those_typed_again(shared, sparse, margin):
    given = TrainingLists(corpus("train", shared=shared, sparse=sparse), budget=100)
    flat, delta = corpus("train", shared=False, sparse=False), margin and (lambda a, b: margin * (a - b))
    weight = weights(TOPICS, WORDS)
    for topics, blocks in ((None, [flat.offsets]), (TOPICS, [flat.offsets[t : t + 2] for t in range(TOPICS)])):
        objective = Objective(given, Feedback(False, margin), topics)
        at = weight[: topics or 1]
        loss, gradient = objective.slopes(at)
        assert torch.equal(objective.values(at), loss)
        for t, offsets in enumerate(blocks):
            value, slopes = Plain(flat.x, flat.labels, offsets, delta=delta).loss(at[t].numpy())
            assert loss[t].item() == pytest.approx(value, rel=1e-12)
            np.testing.assert_allclose(gradient[t], slopes, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("shared", "sparse"), FORMS)
def test_pooled_values_and_slopes_are_those_of_one_list(shared, sparse):
    given = TrainingLists(corpus("train", shared=shared, sparse=sparse), budget=100)
    flat, weight = corpus("train", shared=False, sparse=False), weights(1, WORDS)
    objective = PooledObjective(given, FEEDBACK, None)
    loss, gradient = objective.slopes(weight)
    value, slopes = Plain(flat.x, flat.labels, [0, len(flat.labels)]).loss(weight[0].numpy())
    assert loss.item() == objective.values(weight).item() == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(gradient[0], slopes, rtol=1e-10, atol=1e-12)
    above, x = int((flat.labels > 0).sum()), flat.x.double()
    expected = above * (x.max(0).values - x.min(0).values) ** 2 / 4
    torch.testing.assert_close(objective.curvature(WORDS)[0], expected)


@pytest.mark.parametrize("topics", [None, TOPICS])
@pytest.mark.parametrize("margin", [None, 0.5])
def test_losses_and_gradients_add_over_lists(topics, margin):
    """fn(A and B) = fn(A) + fn(B): what one process sums is the sum of what two do."""
    weight, whole = weights(topics or 1, WORDS), TrainingLists(corpus("train"))
    shares = [TrainingLists(corpus("train"), rank=rank, world=2, reduce=torch.clone) for rank in range(2)]
    assert all(0 < sum(batch.num_lists for batch in share) < TOPICS for share in shares)
    sums = [Objective(given, Feedback(False, margin), topics).slopes(weight) for given in (whole, *shares)]
    for found, *parts in zip(*sums, strict=True):
        torch.testing.assert_close(sum(parts), found, rtol=1e-12, atol=1e-12)


# ---- fewer features ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "sparse"), FORMS)
@pytest.mark.parametrize("kind", ["one model", "topics", "pooled"])
def test_an_objective_of_fewer_features_is_that_of_these_columns_and_leaves_the_other_as_it_is(shared, sparse, kind):
    """As induction asks for them: in turns, with nothing hidden that one could leave to the other."""
    make, topics = (PooledObjective if kind == "pooled" else Objective), TOPICS if kind == "topics" else None
    ranking_set = corpus("train", shared=shared, sparse=sparse)
    given = TrainingLists(ranking_set, budget=100)
    whole, weight = make(given, FEEDBACK, topics), weights(topics or 1, WORDS)
    before = everything(whole, weight, WORDS)
    few = make(take_features(given, FEW), FEEDBACK, topics)
    plain = make(TrainingLists(columns_of(ranking_set, FEW), budget=100), FEEDBACK, topics)
    for seed in range(3):
        small = weights(topics or 1, len(FEW), seed)
        for one, other in zip(*(everything(each, small, len(FEW)) for each in (few, plain)), strict=True):
            assert torch.equal(one, other)
        assert all(torch.equal(*pair) for pair in zip(everything(whole, weight, WORDS), before, strict=True))
        spread = torch.zeros(len(small), WORDS, dtype=torch.float64).index_copy(1, FEW, small)
        (loss, gradient), (expected, slopes) = few.slopes(small), whole.slopes(spread)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, slopes[:, FEW], rtol=1e-12, atol=1e-12)
    fresh = everything(make(given, FEEDBACK, topics), weight, WORDS)
    assert all(torch.equal(*pair) for pair in zip(fresh, before, strict=True))


# ---- curvature --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("topics", [None, TOPICS])
def test_lists_that_share_a_corpus_have_the_range_of_all_its_rows(sparse, topics):
    """Here every list has all rows: the bound is the same as of rows of their own."""
    shared, own = (
        Objective(TrainingLists(corpus("train", shared=shared, sparse=sparse), budget=100), FEEDBACK, topics)
        for shared in (True, False)
    )
    for block in (1, 3):
        torch.testing.assert_close(shared.curvature(WORDS, block), own.curvature(WORDS, block), rtol=1e-12, atol=0)
    dominating = corpus("train").labels.view(TOPICS, -1).sum(1)
    x = corpus("train", sparse=False).x.double()
    ranges = (x.max(0).values - x.min(0).values) ** 2 / 4
    expected = dominating[:, None].double() * ranges
    torch.testing.assert_close(shared.curvature(WORDS), expected if topics else expected.sum(0, keepdim=True))


def test_lists_of_part_of_a_corpus_have_no_smaller_bound_than_on_their_own():
    index = torch.tensor([0, 1, 2, 3, 3, 4, 5, 0])
    x, labels = lists(0).x, torch.tensor([0.0, 1, 2, 0, 1, 0, 0, 1])
    offsets = torch.tensor([0, 4, 8])
    shared = Objective(TrainingLists(RankingSet(x, labels, offsets, index=index)), FEEDBACK, 2)
    own = Objective(TrainingLists(RankingSet(x[index], labels, offsets)), FEEDBACK, 2)
    assert (shared.curvature(FEATURES) >= own.curvature(FEATURES)).all()


def test_curvature_is_summed_once():
    objective = Objective(TrainingLists(lists(0), budget=40), FEEDBACK, None)
    assert objective.curvature(FEATURES) is objective.curvature(FEATURES)
    assert not torch.equal(objective.curvature(FEATURES, 2), objective.curvature(FEATURES))


@pytest.mark.parametrize("group", [Objective, PooledObjective])
@pytest.mark.parametrize("margin", [None, 0.8])
def test_it_bounds_the_curvature_of_the_loss(group, margin):
    """By differences of the gradient along each weight."""
    objective = group(TrainingLists(lists(0), budget=40), Feedback(False, margin), None)
    limit = objective.curvature(FEATURES)[0]
    for seed in range(5):
        for r in range(FEATURES):
            at, step = weights(1, FEATURES, seed), torch.zeros(1, FEATURES, dtype=torch.float64)
            step[0, r] = 1e-5
            up, down = (objective.slopes(at + sign * step)[1][0, r] for sign in (1, -1))
            assert (up - down) / 2e-5 <= limit[r] * (1 + 1e-6)
