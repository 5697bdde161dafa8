"""SVM-map: a linear structural SVM for average precision (Yue, Finley, Radlinski & Joachims, SIGIR 2007)."""

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import store
from torchrank.data.training import TrainingLists
from torchrank.errors import ConvergenceWarning, DataError
from torchrank.rankers.core.ranker import Ranker, TransformOption, warn
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.metric.cutting_plane import CutRounds, Oracle
from torchrank.solvers.metric_scores import add_linear_psi, linear_scores


class SVMMap(Ranker):
    """Linear scores s = w . x that minimise |w|^2 / 2 + C mean over lists of max_y [1 - measure(y) - w . delta psi(y)],
    where y runs over all rankings of a list and delta psi is twice the sum of x_i - x_j over the pairs that y
    misorders, divided by the number of all pairs of the list.

    With query vectors (data=points, retrieval) x is replaced by |q - x|, feature by feature: a diagonal metric without
    constraints. Sparse rows must come without query vectors.

    Args:
        num_features: number of columns of the rows.
        measure: auc, map, mrr, precision or ndcg.
        k: cut-off of precision and ndcg; None: 3.
        C: weight of the hinge; larger fits the training lists more. A list makes a path: each round is a whole fit of
            at most `rounds` cuts that starts with all cuts of the fits before it, and validation chooses one of them.
        threshold: lowest relevant grade, or sweep: the mean over all thresholds that split a list.
        eps: the fit ends when the minimum is known to within C eps.
        stabilise: how far the next probe goes from the best point towards the minimum under the cuts; 1 is the
            published algorithm.
        rounds: maximum number of cuts; on a path, for each C.
        transform: feature transform, see `make_transform`; query_minmax scales the features of each list to [0, 1] as
            Yue et al. do.

    Example:
        >>> from torchrank.data.sets import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0], [4.0], [3.0]]), torch.tensor([0, 3, 5])
        >>> ranker = SVMMap(1).fit(RankingSet(x, torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]), offsets))
        >>> ranker.certificate.proved, ranker.rank(x, offsets)
        (True, tensor([1, 2, 0, 3, 4]))
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
        eps: float = 1e-3,
        stabilise: float = 0.3,
        rounds: int = 500,
        transform: TransformOption = "auto",
    ):
        super().__init__(num_features, transform, max(1, len(C)) if isinstance(C, list) else rounds)
        self.is_path = isinstance(C, list)
        self.certified = not self.is_path
        oracle, width = Oracle.make(measure, k, threshold), self.transform.num_outputs
        options = {"regulariser": "linear", "eps": eps, "stabilise": stabilise}
        self.cuts = CutRounds((width,), oracle, C, rounds, options)
        self.weight = nn.Parameter(torch.zeros(width, dtype=torch.float64), requires_grad=False)

    def score(self, batch: Batch) -> Tensor:
        return linear_scores(batch, self.weight.to(batch.x.dtype))

    def start(self, lists: TrainingLists) -> None:
        if lists.lists.is_sparse and lists.lists.has_queries:
            raise DataError(f"{type(self).__name__} computes |q - x| of dense rows only: set data.sparse=false")
        shape = (self.transform.num_outputs,)
        store(self, weight=lists.zeros(*shape))
        self.cuts.start(lists, shape)

    def round(self, lists: TrainingLists, number: int) -> Round:
        plane, found = self.cuts.advance(lists, number, linear_scores, add_linear_psi)
        self.weight.copy_(plane.best)
        self.cuts.write(plane)
        return found

    def close(self, limit: str) -> None:
        super().close(limit)
        if not self.weight.any():
            none = "No training list has both relevant and other entries."
            advice = none if self.cuts.lists == 0 else f"Raise C (now {self.cuts.C[-1]:g}), or look at the labels."
            warn(f"w = 0 is the best model found: all scores are equal. {advice}", ConvergenceWarning)


class RankSVM(SVMMap):
    """RankSVM as a structural SVM (Joachims, ICML 2005): `SVMMap` with measure=auc, the mean over lists of the share of
    misordered pairs, each with a margin. A pair counts 1 / (number of pairs of its list), so that long lists do not
    dominate.

    Args:
        num_features: number of columns of the rows.
        C: weight of the hinge, or a list of them for a path, as in `SVMMap`.
        threshold: lowest relevant grade, or sweep: the mean over all thresholds that split a list.
        eps: the fit ends when the minimum is known to within C eps.
        stabilise: how far the next probe goes towards the minimum under the cuts, as in `SVMMap`.
        rounds: maximum number of cuts; on a path, for each C.
        transform: feature transform, as in `SVMMap`.

    Example:
        >>> from torchrank.data.sets import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0], [4.0], [3.0]]), torch.tensor([0, 3, 5])
        >>> ranker = RankSVM(1).fit(RankingSet(x, torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]), offsets))
        >>> ranker.rank(x, offsets)
        tensor([1, 2, 0, 3, 4])
    """

    def __init__(
        self,
        num_features: int,
        C: float | list[float] = 10.0,
        threshold: float | str = 1,
        eps: float = 1e-3,
        stabilise: float = 0.3,
        rounds: int = 500,
        transform: TransformOption = "auto",
    ):
        super().__init__(num_features, "auc", None, C, threshold, eps, stabilise, rounds, transform)
