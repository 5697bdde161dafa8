"""An adapter learned by gradient: a round is a pass over the training queries, with any loss of the library."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from torchrank.data.batch import Batch
from torchrank.data.sampler import shard
from torchrank.data.training import TrainingLists
from torchrank.rankers.adapter.lists import Pool
from torchrank.rankers.adapter.mining import Mine, drawn
from torchrank.rankers.core.rounds import Round

if TYPE_CHECKING:
    from torchrank.rankers.adapter.ranker import Adapter

MOMENTS = ("mean", "square")  # of Adam, in buffers, so that a fit can be resumed


class Descent(nn.Module):
    """Steps of Adam on the mean loss of the queries of a step, plus half the squared norm of the change times `pull`.

    Everything is summed in float64 over all processes. The options are those of `Adapter`.
    """

    others: Tensor

    def __init__(self, maps: nn.ModuleDict, loss: Callable[..., Tensor], loss_options: dict[str, Any], **options: Any):
        super().__init__()
        self.loss, self.loss_options = loss, loss_options
        self.temperature, self.pull, self.lr = (options[name] for name in ("temperature", "pull", "lr"))
        self.negatives, self.num_negatives = options["negatives"], options["num_negatives"]
        self.refresh, self.index = options["refresh"], options["index"]
        self.batch_queries, self.seed = options["batch_queries"], options["seed"]
        for name, each in maps.named_parameters():
            for kind in MOMENTS:
                self.register_buffer(_moment(kind, name), torch.zeros_like(each))
        self.register_buffer("others", torch.zeros(0, 0, dtype=torch.int32))  # negatives that last for several rounds

    def open(self, adapter: Adapter, lists: TrainingLists) -> None:
        """Before the first round, fresh or resumed."""
        kept = adapter.kept
        kept.vectors = _vectors(lists)
        kept.pool = None if self.negatives == "all" else Pool.of(lists)
        kept.mine = Mine(lists, adapter.similarity, self.num_negatives, self.index)
        kept.once = None
        if self.negatives == "mined" and self.refresh is None:  # by the vectors as they are, also when it is resumed
            kept.once = self._mined(adapter, lists, nn.ModuleDict())

    def round(self, adapter: Adapter, lists: TrainingLists, number: int) -> Round:
        """The `number`-th pass over the queries, from 1."""
        maps, total = deepcopy(adapter.maps).requires_grad_(), lists.zeros(1)
        others, names = self._others(adapter, lists, number), [name for name, _ in maps.named_parameters()]
        moments = [[self.get_buffer(_moment(kind, name)).clone() for name in names] for kind in MOMENTS]
        order = np.random.default_rng((self.seed, number)).permutation(len(lists))
        count = -(-len(order) // self.batch_queries)
        for place, step in enumerate(np.array_split(order, count)):
            value, slopes = self.slopes(adapter, lists, step, maps, others)
            times = [torch.tensor(float((number - 1) * count + place)) for _ in names]  # steps before, on the host
            adam(  # of torch.optim, as a function
                list(maps.parameters()), slopes, moments[0], moments[1], [], times, foreach=False, amsgrad=False,
                beta1=0.9, beta2=0.999, lr=self.lr, weight_decay=0.0, eps=1e-8, maximize=False,
            )  # fmt: skip
            total += value * len(step)
        adapter.maps.load_state_dict(maps.state_dict())
        for kind, found in zip(MOMENTS, moments, strict=True):
            for name, each in zip(names, found, strict=True):
                self.get_buffer(_moment(kind, name)).copy_(each)
        if self.refresh is not None and others is not None:
            self.others = torch.from_numpy(others).int().to(total.device)
        recall = adapter.kept.mine.recall
        findings = {} if recall is None else {"recall of the index": f"{recall:.4f}"}
        return Round(done=False, log={"train/loss": total[0] / len(lists)}, findings=findings)

    def _others(self, adapter: Adapter, lists: TrainingLists, number: int) -> np.ndarray | None:
        """The documents (Q, k) that relevant ones compete with in this round; None: those of the step, or all."""
        if self.negatives in ("all", "batch"):
            return None
        if adapter.kept.once is not None:
            once: np.ndarray = adapter.kept.once
            return once
        if self.refresh is not None and (number - 1) % self.refresh:
            return self.others.cpu().numpy().astype(np.int64)
        if self.negatives == "mined":
            return self._mined(adapter, lists, adapter.maps)
        return drawn(lists, self.num_negatives, (self.seed, 0 if self.refresh is None else number))

    def _mined(self, adapter: Adapter, lists: TrainingLists, maps: nn.ModuleDict) -> np.ndarray:
        corpus, queries = adapter.kept.vectors
        found: np.ndarray = adapter.kept.mine.nearest(*adapter.searched(maps, queries, corpus))
        return found

    def slopes(
        self, adapter: Adapter, lists: TrainingLists, step: np.ndarray, maps: nn.ModuleDict, others: np.ndarray | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The mean loss of the queries of a step, and its slopes with those of the pull, over all processes."""
        first, last = shard(lists.lists.lengths, lists.rank, lists.world)
        own = np.sort(step[(step >= first) & (step < last)])
        parameters = list(maps.parameters())
        sums = lists.zeros(1 + sum(each.numel() for each in parameters))
        if len(own):
            batch = self._batch(adapter, lists, own, step, others)
            with torch.enable_grad():
                scores = adapter.scores_by(maps, batch) / self.temperature
                loss = self.loss(scores, batch.labels, batch.lists, **self.loss_options).sum()
                slopes = torch.autograd.grad(loss, parameters)
            sums.copy_(torch.cat([loss.detach().view(1), *(each.flatten() for each in slopes)]))
        sums = lists.reduce(sums) / len(step)
        parts = sums[1:].split([each.numel() for each in parameters])
        shaped = [part.view_as(each).to(each.dtype) for part, each in zip(parts, parameters, strict=True)]
        return sums[0], [slope + self.pull * pulled for slope, pulled in zip(shaped, pull_slopes(maps), strict=True)]

    def _batch(
        self, adapter: Adapter, lists: TrainingLists, own: np.ndarray, step: np.ndarray, others: np.ndarray | None
    ) -> Batch:
        """The lists of the queries of this process in a step."""
        pool: Pool | None = adapter.kept.pool
        if pool is None:
            batch = lists.lists[own]
            queries: Any = batch.queries
            return batch._replace(x=batch.x.to(dtype=torch.float64), queries=queries.double())
        if others is None:
            table = np.broadcast_to(pool.relevant(step), (len(own), len(pool.relevant(step))))
        else:
            table = others[own]
        return pool.batch(own, table, *adapter.kept.vectors)


def _vectors(lists: TrainingLists) -> tuple[Tensor, Tensor]:
    """The corpus, and the vectors of all training queries."""
    rows: Any = lists.lists[:0].x
    queries: Any = lists.lists.queries
    return rows, queries.to(rows)


def _moment(kind: str, name: str) -> str:
    return f"{kind}_{name.replace('.', '_')}"


def pull_slopes(maps: nn.ModuleDict) -> list[Tensor]:
    """The slopes of half the squared norm of the changes S of the maps."""
    with torch.enable_grad():
        norm = torch.stack([each.change().square().sum() / 2 for each in maps.values()]).sum()  # type: ignore
        return list(torch.autograd.grad(norm, list(maps.parameters())))
