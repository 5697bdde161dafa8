"""Many linear models trained at once: one matrix of weights, one matrix of scores, one batched L-BFGS.

Model m has scores X w_m and minimises the mean loss over its lists plus l2/2 |w_m|^2. Its lists are all lists (the
scores of all models are then one product), or its own few members. With a basis the weights of model m are
w_m = U_m' v_m, and l2 weighs |v_m|^2. Gradients are in closed form: nothing here needs autograd.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.errors import check_choice
from torchrank.functional.arrays import to_offsets
from torchrank.functional.ragged import entries_of, has_pairs, per_entry, positions_within, read, segment_sum, wide
from torchrank.solvers.linear.lbfgs import Objectives, Scaling, many_lbfgs, unscaled
from torchrank.solvers.linear.losses import LOSSES
from torchrank.solvers.linear.scores import column_sums, row_products

BLOCK = 2**18  # scores, or differences of pairs, computed at once: 2 MB in float64
ON_DEVICE = 2**25  # the same on a device, where a block must keep all cores busy
LONGEST = 2**22  # the same for one list, which is never split: long lists are computed for fewer models at once
MODELS = 512  # models solved at once on all lists
MEMBERS = 2**24  # values in the rows of all members of the models solved at once: 128 MB in float64

TINY = 1e-30  # so that no matrix is 0

Reduce = Callable[[Tensor], Tensor]  # sum over processes


class Lists(NamedTuple):
    """The lists of this process that have two different labels."""

    x: Tensor  # (N, D)
    labels: Tensor  # (N,)
    offsets: Tensor  # (Q+1,)
    query: Tensor  # (Q,) number of each list in the whole set
    num_lists: Tensor  # () number of all lists of all processes, with one label or several

    def take(self, chosen: Tensor) -> "Lists":
        """The lists `chosen` (B,) in this order; a list may be chosen several times."""
        rows, offsets = entries_of(self.offsets, chosen)
        return Lists(self.x[rows], self.labels[rows], offsets, self.query[chosen], self.num_lists)


class ManyLinear(NamedTuple):
    """What was found for each of M models."""

    weight: Tensor  # (M, D) float64; U' v where there is a basis
    value: Tensor  # (M,) objective
    slope: Tensor  # (M,) largest absolute entry of its gradient: at most `tolerance` if the model is solved
    used: Tensor  # (M,) number of lists with two different labels; without any the weights are 0


def join_lists(batches: Iterable[Batch], reduce: Reduce | None = None) -> Lists:
    """The lists of dense batches that have two different labels. `reduce` sums over processes.

    >>> from torchrank.data.batch import make_batch
    >>> lists = join_lists([make_batch(torch.eye(3), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 2, 3]))])
    >>> lists.labels, lists.offsets, lists.num_lists
    (tensor([0., 1.]), tensor([0, 2]), tensor(2., dtype=torch.float64))
    """
    rows: list[Any] = []
    labels, lengths, query, count = [], [], [], 0
    for batch in batches:
        kept = has_pairs(batch.labels, batch.offsets)
        inside = per_entry(kept, batch.offsets, len(batch.labels))
        rows.append(batch.x[inside])
        labels.append(batch.labels[inside])
        lengths.append(batch.offsets.diff()[kept])
        query.append(batch.query[kept])
        count += batch.num_lists
    total = torch.tensor(float(count), dtype=torch.float64, device=labels[0].device)
    offsets = to_offsets(torch.cat(lengths))
    return Lists(torch.cat(rows), torch.cat(labels), offsets, torch.cat(query), reduce(total) if reduce else total)


def solve_many_linear(
    lists: Lists,
    num_models: int,
    *,
    loss: str = "listnet",
    l2: float = 1e-4,
    members: Tensor | None = None,
    basis: Tensor | None = None,
    tolerance: float = 1e-6,
    evaluations: int = 1000,
    reduce: Reduce | None = None,
) -> ManyLinear:
    """Solve M linear models, each until no entry of its gradient is larger than `tolerance`.

    `loss="listnet"` is the objective of the ranker `ListNet`; `"ranksvm"` is, for each list, the mean of
    max(0, 1 - (s_i - s_j))^2 over its pairs with y_i > y_j. Lists with one label count in the mean and add 0 to it.
    `members (M, K)` are the numbers of the lists of each model, -1 for none; the cost is that of the members. Without
    them all models learn from all lists, and differ by their `basis (M, P, D)`. Each process has lists of its own.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
    >>> lists = Lists(x, torch.tensor([1, 0, 0, 1]), torch.tensor([0, 2, 4]), torch.arange(2), torch.tensor(2.0))
    >>> solve_many_linear(lists, 2, l2=1.0, members=torch.tensor([[0], [1]])).weight.round(decimals=2)
    tensor([[ 0.1500, -0.1500],
            [-0.1500,  0.1500]], dtype=torch.float64)
    """
    check_choice(LOSSES, loss=loss)
    if not l2 >= 0:
        raise ValueError(f"l2 must be >= 0, got {l2}")
    add: Reduce = reduce or (lambda sums: sums)
    found = []
    for models in torch.arange(num_models, device=lists.x.device).split(_at_once(lists, members, add)):
        own = None if members is None else members[models]
        source: Any = SharedLists(lists, loss) if own is None else OwnLists(lists, own, loss)
        used = add(source.used.double()).expand(len(models))
        count = lists.num_lists.double() if own is None else (own >= 0).sum(1).double()
        spanned = None if basis is None else wide(basis[models])
        objectives = _objectives(source, spanned, l2, count.expand(len(models)).clamp(min=1), add)
        width = lists.x.shape[1] if spanned is None else spanned.shape[1]
        start = used.new_zeros(len(models), width)
        scaled = own is not None and lists.x.device.type == "cpu"
        scaling = _scaling(add(source.moments()), l2 * count.clamp(min=1)) if scaled else unscaled
        solved = many_lbfgs(objectives, start, tolerance=tolerance, evaluations=evaluations, scaling=scaling)
        found.append(ManyLinear(_spanned(solved.point, spanned), solved.value, solved.slope, used))
    return ManyLinear(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _at_once(lists: Lists, members: Tensor | None, reduce: Reduce) -> int:
    """How many models are solved at once; the same on every process."""
    if members is None:
        return MODELS
    sizes = lists.offsets.new_tensor([len(lists.labels), len(lists.query)], dtype=torch.float64)
    entries, count = reduce(sizes).tolist()
    numbers = members.shape[1] * lists.x.shape[1] * entries / max(count, 1)
    return max(1, int(MEMBERS / max(numbers, 1)))


def _spanned(points: Tensor, basis: Tensor | None) -> Tensor:
    return points if basis is None else torch.bmm(points[:, None], basis)[:, 0]


def _objectives(source: Any, basis: Tensor | None, l2: float, count: Tensor, reduce: Reduce) -> Objectives:
    """Values and gradients of the models `numbers` at their points (A, P), for `many_lbfgs`."""

    def objectives(points: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        spanned = None if basis is None else basis[numbers]
        loss, gradient = source.sums(_spanned(points, spanned), numbers)
        sums = reduce(torch.cat([loss[:, None], gradient], 1)) / count[numbers, None]
        gradient = sums[:, 1:] if spanned is None else torch.bmm(spanned, sums[:, 1:, None])[:, :, 0]
        return sums[:, 0] + l2 / 2 * points.square().sum(1), gradient + l2 * points

    return objectives


def _scaling(moments: Tensor, l2: Tensor) -> Scaling:
    """Multiplies by inv(moments + l2): the inverse Hessians of ListNet at weights 0, with which `many_lbfgs` needs a
    quarter of the evaluations on lists of similar queries, whose features vary least where they are alike."""
    least = moments.diagonal(dim1=1, dim2=2).mean(1) * 1e-6  # without a penalty there may be features that never vary
    moments.diagonal(dim1=1, dim2=2).add_((l2 + least + TINY)[:, None])
    factors = torch.linalg.cholesky_ex(moments).L
    inverse = torch.cholesky_inverse(factors)

    def scaling(vectors: Tensor, numbers: Tensor) -> Tensor:
        return torch.bmm(inverse[numbers], vectors[:, :, None])[:, :, 0]

    return scaling


class SharedLists:
    """All models learn from all lists: two matrix products with the rows, one block of lists after another."""

    def __init__(self, lists: Lists, loss: str):
        self.x, self.loss = lists.x, LOSSES[loss].of(lists.labels, lists.offsets)
        self.bounds, self.ends, work = read(lists.offsets), read(self.loss.ends), read(self.loss.work)
        self.work = np.cumsum(work, dtype=np.int64)
        self.used = torch.full((1,), len(lists.query), device=lists.x.device)
        self.most = max(1, LONGEST // max([1, *work]))

    def sums(self, weight: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the lists of loss (A,) and gradient (A, D) at weights (A, D)."""
        if len(weight) > self.most:
            parts = [self.sums(part, numbers) for part in weight.split(self.most)]
            return torch.cat([loss for loss, _ in parts]), torch.cat([gradient for _, gradient in parts])
        total, gradient = weight.new_zeros(len(weight)), torch.zeros_like(weight)
        for first, last in self._blocks(len(weight)):
            x = self.x[self.bounds[first] : self.bounds[last]]
            block = self.loss.block(first, last, slice(self.ends[first], self.ends[last]))
            loss, slopes = block(row_products(x, weight.T))
            total += loss.sum(0)
            gradient += column_sums(x, slopes).T
        return total, gradient

    def _blocks(self, columns: int) -> Iterable[tuple[int, int]]:
        most = BLOCK if self.x.device.type == "cpu" else ON_DEVICE
        step = max(1, most // max(1, columns))  # work of a block; a long list is its own block
        ends = range(step, int(self.work[-1]) if len(self.work) else 0, step)
        inner = np.searchsorted(self.work, np.array(ends, dtype=np.int64), side="right")
        return pairwise(sorted({0, len(self.work), *inner.tolist()}))


class OwnLists:
    """Each model learns from its own lists: their rows are gathered and padded to the model with the most rows."""

    def __init__(self, lists: Lists, members: Tensor, loss: str):
        self.lists, self.members, self.loss_name = lists, members, loss
        self.numbers = torch.arange(len(members), device=members.device)
        self._gather()
        self.used = torch.bincount(self.model, minlength=len(members))

    def _gather(self) -> None:
        """Gather the rows (A, L, D) of the models `self.numbers`, and the place of each of their entries in (A L,)."""
        members, query = self.members[self.numbers], self.lists.query
        place = members.new_full((int(torch.cat([members.flatten(), query, query.new_zeros(1)]).max()) + 1,), -1)
        place[query] = torch.arange(len(query), device=query.device)
        here = torch.where(members >= 0, place[members.clamp(min=0)], -1)
        self.model = (here >= 0).nonzero()[:, 0]  # (B,) ascending
        lists = self.lists.take(here[here >= 0])
        self.loss = LOSSES[self.loss_name].of(lists.labels, lists.offsets)
        model = per_entry(self.model, lists.offsets, len(lists.labels))  # model of each entry
        sizes = torch.bincount(model, minlength=len(members))
        longest = int(sizes.max()) if len(sizes) else 0
        self.place = model * longest + positions_within(to_offsets(sizes), len(model))
        rows = torch.zeros(len(members) * longest, lists.x.shape[1], dtype=torch.float64, device=lists.x.device)
        self.rows = rows.index_copy_(0, self.place, lists.x.double()).view(len(members), longest, lists.x.shape[1])

    def moments(self) -> Tensor:
        """Sums over the lists of the covariance of their rows, (A, D, D)."""
        offsets, (count, longest, width) = self.loss.offsets, self.rows.shape
        shares = 1 / offsets.diff().double().clamp(min=1)
        weights = self.rows.new_zeros(count * longest)
        weights[self.place] = per_entry(shares, offsets, len(self.place))
        weighted = self.rows * weights.view(count, longest, 1)
        means = segment_sum(weighted.flatten(0, 1)[self.place], offsets)
        own = self.model.new_zeros(count).index_add_(0, self.model, torch.ones_like(self.model))
        spread = means.new_zeros(count, self.members.shape[1], width)
        spread[self.model, positions_within(to_offsets(own), len(means))] = means
        return torch.bmm(weighted.mT, self.rows).baddbmm_(spread.mT, spread, alpha=-1)

    def sums(self, weight: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the lists of loss (A,) and gradient (A, D) at weights (A, D)."""
        if 2 * len(numbers) <= len(self.numbers):
            self.numbers = numbers
            self._gather()
        if len(numbers) < len(self.numbers):  # few models are done: compute them too
            asked = torch.searchsorted(self.numbers, numbers)
            everywhere = weight.new_zeros(len(self.numbers), weight.shape[1]).index_copy_(0, asked, weight)
            loss, gradient = self.sums(everywhere, self.numbers)
            return loss[asked], gradient[asked]
        scores = torch.bmm(self.rows, weight[:, :, None]).flatten()[self.place]
        loss, slopes = self.loss(scores[:, None])
        total = weight.new_zeros(len(weight)).index_add_(0, self.model, loss[:, 0])
        spread = weight.new_zeros(self.rows.shape[:2]).flatten().index_copy_(0, self.place, slopes[:, 0])
        return total, torch.bmm(spread.view(len(weight), 1, self.rows.shape[1]), self.rows)[:, 0]
