"""Many linear models trained at once: one matrix of weights, one matrix of scores, one batched L-BFGS.

Model m has scores X w_m and minimises the mean loss over its lists plus l2/2 |w_m|^2. Its lists are all lists (the
scores of all models are then one product), or its own few members. With a basis the weights of model m are
w_m = U_m' v_m, and l2 weighs |v_m|^2. Gradients are in closed form: nothing here needs autograd.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sampler import ranges
from torchrank.errors import check_choice
from torchrank.functional.arrays import to_offsets
from torchrank.functional.ragged import (
    entries_of,
    has_pairs,
    list_ids,
    pairs,
    partner_blocks,
    per_entry,
    positions_within,
    segment_softmax,
    segment_sum,
    wide,
)
from torchrank.solvers.linear.lbfgs import Objectives, Scaling, many_lbfgs, unscaled
from torchrank.solvers.linear.scores import column_sums, row_products

SCORES = 2**18  # scores, or differences of pairs, computed at once: 2 MB in float64
SCORES_ON_DEVICE = 2**25  # the same on a device, where a block must keep all cores busy
SCORES_OF_LIST = 2**22  # the same for one list, which is never split: long lists are computed for fewer models at once
MODELS = 512  # models solved at once on all lists
MEMBER_VALUES = 2**24  # values in the rows of all members of the models solved at once: 128 MB in float64
TINY = 1e-30  # so that no matrix is 0

Reduce = Callable[[Tensor], Tensor]  # sum over processes
Gradients = Callable[[Tensor], tuple[Tensor, Tensor]]  # scores (N, A) -> losses (Q, A), their gradients (N, A)


# ---- losses of many columns of scores ----------------------------------------------------------------------------


def listnet_of(labels: Tensor, offsets: Tensor) -> Gradients:
    """Cross entropy of softmax(labels) and softmax(scores): `listnet_loss` for lists with different labels."""
    target = segment_softmax(wide(labels), offsets)
    return lambda scores: listnet_gradient(scores, target, offsets)


def listnet_gradient(scores: Tensor, target: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss (Q, A) of A columns of scores (N, A), and its gradient (N, A), from the softmax of the labels, (N,).

    >>> loss, gradient = listnet_gradient(torch.zeros(2, 1), torch.tensor([0.25, 0.75]), torch.tensor([0, 2]))
    >>> loss, gradient.flatten()
    (tensor([[0.6931]]), tensor([ 0.2500, -0.2500]))
    """
    ids, target, shape = list_ids(offsets, len(scores)), target[:, None], (len(offsets) - 1, scores.shape[1])
    peak = scores.new_full(shape, -torch.inf).scatter_reduce_(0, ids[:, None].expand_as(scores), scores, "amax")
    shifted = scores - peak[ids]
    linear = scores.new_zeros(shape).index_add_(0, ids, target * shifted)
    shares = shifted.exp_()
    sums = scores.new_zeros(shape).index_add_(0, ids, shares)
    return sums.log() - linear, shares.div_(sums[ids]).sub_(target)


def ranksvm_of(labels: Tensor, offsets: Tensor) -> Gradients:
    """Mean of max(0, 1 - (s_i - s_j))^2 over the pairs of a list with y_i > y_j."""
    winner, loser = pairs(labels, offsets)
    lists = list_ids(offsets, len(labels))[winner]
    share = 1 / wide(torch.bincount(lists, minlength=len(offsets) - 1))[lists, None]

    def gradients(scores: Tensor) -> tuple[Tensor, Tensor]:
        short = (1 - scores[winner] + scores[loser]).clamp_(min=0)  # (P, A)
        loss = scores.new_zeros(len(offsets) - 1, scores.shape[1]).index_add_(0, lists, short * short * share)
        gradient = torch.zeros_like(scores).index_add_(0, loser, short.mul_(2 * share))
        return loss, gradient.index_add_(0, winner, short, alpha=-1)

    return gradients


MODEL_LOSSES = {"listnet": listnet_of, "ranksvm": ranksvm_of}


# ---- lists -------------------------------------------------------------------------------------------------------


class JoinedLists(NamedTuple):
    """The lists of this process that have two different labels."""

    x: Tensor  # (N, D)
    labels: Tensor  # (N,)
    offsets: Tensor  # (Q+1,)
    query: Tensor  # (Q,) number of each list in the whole set
    num_lists: Tensor  # () number of all lists of all processes, with one label or several


def join_lists(batches: Iterable[Batch], reduce: Reduce = lambda sums: sums) -> JoinedLists:
    """The lists of dense batches that have two different labels. `reduce` sums over processes.

    >>> from torchrank.data.batch import make_batch
    >>> lists = join_lists([make_batch(torch.eye(3), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 2, 3]))])
    >>> lists.labels, lists.offsets, lists.num_lists
    (tensor([0., 1.]), tensor([0, 2]), tensor(2., dtype=torch.float64))
    """
    parts: list[tuple[Any, ...]] = []
    count = 0
    for batch in batches:
        kept = has_pairs(batch.labels, batch.offsets)
        inside = per_entry(kept, batch.offsets, len(batch.labels))
        parts.append((batch.x[inside], batch.labels[inside], batch.offsets.diff()[kept], batch.query[kept]))
        count += batch.num_lists
    x, labels, lengths, query = (torch.cat(columns) for columns in zip(*parts, strict=True))
    total = torch.tensor(float(count), dtype=torch.float64, device=labels.device)
    return JoinedLists(x, labels, to_offsets(lengths), query, reduce(total))


class ManyLinear(NamedTuple):
    """The solutions of M models."""

    weight: Tensor  # (M, D) float64; U' v where there is a basis
    value: Tensor  # (M,) objective
    max_gradient: Tensor  # (M,) largest absolute entry of its gradient: at most `tolerance` if the model is solved
    used: Tensor  # (M,) number of lists with two different labels; without any the weights are 0


def solve_many_linear(
    lists: JoinedLists,
    num_models: int,
    *,
    loss: str = "listnet",
    l2: float = 1e-4,
    members: Tensor | None = None,
    basis: Tensor | None = None,
    tolerance: float = 1e-6,
    evaluations: int = 1000,
    reduce: Reduce = lambda sums: sums,
) -> ManyLinear:
    """Solve M linear models, each until no entry of its gradient is larger than `tolerance`.

    `loss="listnet"` is the objective of the ranker `ListNet`; `"ranksvm"` is, for each list, the mean of
    max(0, 1 - (s_i - s_j))^2 over its pairs with y_i > y_j. Lists with one label count in the mean and add 0 to it.
    `members (M, K)` are the numbers of the lists of each model, -1 for none; the cost is that of the members. Without
    them all models learn from all lists, and differ by their `basis (M, P, D)`. Each process has lists of its own.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
    >>> lists = JoinedLists(x, torch.tensor([1, 0, 0, 1]), torch.tensor([0, 2, 4]), torch.arange(2), torch.tensor(2.0))
    >>> solve_many_linear(lists, 2, l2=1.0, members=torch.tensor([[0], [1]])).weight.round(decimals=2)
    tensor([[ 0.1500, -0.1500],
            [-0.1500,  0.1500]], dtype=torch.float64)
    """
    check_choice(MODEL_LOSSES, loss=loss)
    if not l2 >= 0:
        raise ValueError(f"l2 must be >= 0, got {l2}")
    shared = AllLists(lists, loss, num_models) if members is None else None
    at_once = shared.models_at_once if shared else _models_at_once(lists, members, reduce)
    solved = []
    for models in torch.arange(num_models, device=lists.x.device).split(at_once):
        source: Any = shared or MemberLists(lists, members[models], loss)  # type: ignore[index]
        used = reduce(source.used.double()).expand(len(models))
        count = lists.num_lists.double() if members is None else (members[models] >= 0).sum(1).double()
        spanned = None if basis is None else wide(basis[models])
        objectives = _objectives(source, spanned, l2, count.expand(len(models)).clamp(min=1), reduce)
        start = used.new_zeros(len(models), lists.x.shape[1] if spanned is None else spanned.shape[1])
        scaled = members is not None and lists.x.device.type == "cpu"
        scaling = inverse_scaling(reduce(source.moments()), l2 * count.clamp(min=1)) if scaled else unscaled
        minimum = many_lbfgs(objectives, start, tolerance=tolerance, evaluations=evaluations, scaling=scaling)
        solved.append(ManyLinear(_weights(minimum.point, spanned), minimum.value, minimum.max_gradient, used))
    return ManyLinear(*(torch.cat(parts) for parts in zip(*solved, strict=True)))


def _models_at_once(lists: JoinedLists, members: Any, reduce: Reduce) -> int:
    """How many models with lists of their own are solved at once; the same on every process."""
    sizes = lists.offsets.new_tensor([len(lists.labels), len(lists.query)], dtype=torch.float64)
    entries, count = reduce(sizes).tolist()
    return max(1, int(MEMBER_VALUES / max(members.shape[1] * lists.x.shape[1] * entries / max(count, 1), 1)))


def _weights(points: Tensor, basis: Tensor | None) -> Tensor:
    return points if basis is None else torch.bmm(points[:, None], basis)[:, 0]


def _objectives(source: Any, basis: Tensor | None, l2: float, count: Tensor, reduce: Reduce) -> Objectives:
    """Values and gradients of the models `numbers` at their points (A, P), for `many_lbfgs`."""

    def objectives(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        spanned = None if basis is None else basis[numbers]
        loss, gradient = source.sums(_weights(points, spanned), numbers)
        sums = reduce(torch.cat([loss[:, None], gradient], 1)) / count[numbers, None]
        gradient = sums[:, 1:] if spanned is None else torch.bmm(spanned, sums[:, 1:, None])[:, :, 0]
        return sums[:, 0] + l2 / 2 * points.square().sum(1), gradient + l2 * points

    return objectives


def inverse_scaling(moments: Tensor, l2: Tensor) -> Scaling:
    """Multiplies by inv(moments + l2): the inverse Hessians of ListNet at weights 0, with which `many_lbfgs` needs a
    quarter of the evaluations on lists of similar queries, whose features vary least where they are alike."""
    least = moments.diagonal(dim1=1, dim2=2).mean(1) * 1e-6  # without a penalty there may be features that never vary
    moments.diagonal(dim1=1, dim2=2).add_((l2 + least + TINY)[:, None])
    inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(moments).L)
    return lambda vectors, numbers: torch.bmm(inverse[numbers], vectors[:, :, None])[:, :, 0]


class AllLists:
    """All models learn from all lists: two matrix products with the rows, one block of lists after another."""

    def __init__(self, lists: JoinedLists, loss: str, num_models: int):
        work = lengths = lists.offsets.diff()  # numbers that each list needs for one model
        if loss == "ranksvm":
            num_pairs = segment_sum(partner_blocks(lists.labels, lists.offsets)[1], lists.offsets)
            work = torch.maximum(lengths, num_pairs)
        self.models_at_once = min(MODELS, max(1, SCORES_OF_LIST // max([1, *work.tolist()])))
        self.used = torch.full((1,), len(lengths), device=lists.x.device)
        most = SCORES if lists.x.device.type == "cpu" else SCORES_ON_DEVICE
        step = max(1, most // max(1, min(num_models, self.models_at_once)))
        self.blocks: list[tuple[Tensor, Gradients]] = []  # rows, loss
        bounds: list[int] = lists.offsets.tolist()
        for first, last in ranges(work.cpu().numpy(), step, 0, len(lengths)):
            offsets, rows = lists.offsets[first : last + 1], slice(bounds[first], bounds[last])
            self.blocks.append((lists.x[rows], MODEL_LOSSES[loss](lists.labels[rows], offsets - offsets[0])))

    def sums(self, weight: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the lists of loss (A,) and gradient (A, D) at weights (A, D)."""
        total, gradient = weight.new_zeros(len(weight)), torch.zeros_like(weight)
        for x, loss_of in self.blocks:
            losses, score_gradient = loss_of(row_products(x, weight.T))
            total += losses.sum(0)
            gradient += column_sums(x, score_gradient).T
        return total, gradient


class MemberLists:
    """Each model learns from its own lists: their rows are gathered and padded to the model with the most rows."""

    def __init__(self, lists: JoinedLists, members: Tensor, loss: str):
        self.lists, self.members, self.loss_name = lists, members, loss
        self._gather(torch.arange(len(members), device=members.device))
        self.used = torch.bincount(self.model, minlength=len(members))

    def _gather(self, numbers: Tensor) -> None:
        """Gather the rows (A, L, D) of the models `numbers`, and the place of each of their entries in (A L,)."""
        self.numbers, members, query = numbers, self.members[numbers], self.lists.query
        place = members.new_full((int(torch.cat([members.flatten(), query, query.new_zeros(1)]).max()) + 1,), -1)
        place[query] = torch.arange(len(query), device=query.device)
        here = torch.where(members >= 0, place[members.clamp(min=0)], -1)
        self.model = (here >= 0).nonzero()[:, 0]  # (B,) ascending
        entries, self.offsets = entries_of(self.lists.offsets, here[here >= 0])
        self.loss_of = MODEL_LOSSES[self.loss_name](self.lists.labels[entries], self.offsets)
        model, x = per_entry(self.model, self.offsets, len(entries)), self.lists.x[entries].double()
        sizes = torch.bincount(model, minlength=len(members))
        longest = int(sizes.max()) if len(sizes) else 0
        self.place = model * longest + positions_within(to_offsets(sizes), len(model))
        rows = x.new_zeros(len(members) * longest, x.shape[1]).index_copy_(0, self.place, x)
        self.rows = rows.view(len(members), longest, x.shape[1])

    def moments(self) -> Tensor:
        """Sums over the lists of the covariance of their rows, (A, D, D)."""
        rows, lengths = self.rows.flatten(0, 1)[self.place], self.offsets.diff().double().clamp(min=1)
        means, shares = segment_sum(rows, self.offsets) / lengths[:, None], (1 / lengths.sqrt())[:, None]
        means, shares = (per_entry(part, self.offsets, len(rows)) for part in (means, shares))
        centred = torch.zeros_like(self.rows).flatten(0, 1).index_copy_(0, self.place, (rows - means) * shares)
        centred = centred.view_as(self.rows)
        return torch.bmm(centred.mT, centred)

    def sums(self, weight: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the lists of loss (A,) and gradient (A, D) at weights (A, D)."""
        if 2 * len(numbers) <= len(self.numbers):
            self._gather(numbers)
        if len(numbers) < len(self.numbers):  # few models are done: compute them too
            asked = torch.searchsorted(self.numbers, numbers)
            everywhere = weight.new_zeros(len(self.numbers), weight.shape[1]).index_copy_(0, asked, weight)
            loss, gradient = self.sums(everywhere, self.numbers)
            return loss[asked], gradient[asked]
        losses, gradient = self.loss_of(torch.bmm(self.rows, weight[:, :, None]).flatten()[self.place, None])
        total = weight.new_zeros(len(weight)).index_add_(0, self.model, losses[:, 0])
        spread = weight.new_zeros(self.rows.shape[:2]).flatten().index_copy_(0, self.place, gradient[:, 0])
        return total, torch.bmm(spread.view(len(weight), 1, self.rows.shape[1]), self.rows)[:, 0]
