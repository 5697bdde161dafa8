"""SVM-map: a linear structural SVM for average precision (Yue, Finley, Radlinski & Joachims, SIGIR 2007)."""

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.rankers.core.ranker import RoundRanker
from torchrank.rankers.metric.cutting_plane import CutRounds, Oracle
from torchrank.solvers.cutting_plane.psi import add_linear_psi, linear_scores


class SVMMap(RoundRanker):
    """Linear scores s = w . x that minimise |w|^2 / 2 + C mean over lists of max_y [1 - measure(y) - w . delta psi(y)],
    where y runs over all rankings of a list and delta psi is the mean of x_i - x_j over its misordered pairs, twice.

    With query vectors (data=points, retrieval) x is replaced by |q - x|, feature by feature: a diagonal metric of which
    nothing is demanded. Sparse rows have to be without query vectors. The oracles and the other options are those of
    `MLR`: `measure` auc, map, mrr, precision or ndcg (at `k`, 3 by default), `threshold` of relevance or `sweep`, a
    list of C for a path. Yue et al. scale the features of each list to [0, 1] first: transform=query_minmax.
    """

    certified = True
    takes = frozenset({"sparse", "corpus", "queries"})
    weight: nn.Parameter  # (D,)

    def __init__(
        self,
        num_features: int,
        measure: str = "map",
        k: int | None = None,
        C: float | list[float] = 10.0,
        threshold: float | str = 1,
        discount: str = "letor",
        eps: float = 1e-3,
        stabilise: float = 0.3,
        rounds: int = 500,
        transform: str | dict | list | None = "query_minmax",
    ):
        super().__init__(num_features, transform, max(1, len(C)) if isinstance(C, list) else rounds)
        self.is_path = isinstance(C, list)
        self.certified = not self.is_path
        oracle, width = Oracle.make(measure, k, threshold, discount), self.transform.num_outputs
        self.cuts = CutRounds((width,), oracle, regulariser="linear", C=C, eps=eps, stabilise=stabilise, cuts=rounds)
        self.weight = nn.Parameter(torch.zeros(width, dtype=torch.float64), requires_grad=False)

    def score(self, batch: Batch) -> Tensor:
        return linear_scores(batch, self.weight.to(batch.x.dtype))

    def inputs_sized(self) -> None:
        if len(self.weight) != self.transform.num_outputs:
            self.resize("weight", (self.transform.num_outputs,))

    def prepare(self) -> None:
        train = self.data.sets["train"]
        if train.is_sparse and train.has_queries:
            raise ValueError(f"{type(self).__name__} makes |q - x| of dense rows only: set data.sparse=false")
        shape = (self.transform.num_outputs,)
        self.resize("weight", shape)
        self.cuts.prepare(self, shape)

    def round(self) -> bool:
        plane, done = self.cuts.advance(self, linear_scores, add_linear_psi)
        self.weight.copy_(plane.best)
        self.cuts.write(self, plane)
        return done

    def on_fit_end(self) -> None:
        super().on_fit_end()
        if not self.weight.any():
            none = "No training list has both relevant and other entries."
            advice = none if self.cuts.lists == 0 else f"Raise C, now {self.cuts.C[-1]:g}, or look at the labels."
            rank_zero_warn(f"w = 0 is the best model found: all scores are equal. {advice}")
