"""Models of single queries: D&K for all test queries, query-KNN for all training queries.

On the first fold of MQ2008 where the folder of data sets has it, on synthetic lists otherwise. Scoring all test lists
is D&K's training. Beside it the same models one after the other, by torch's L-BFGS with autograd on the projected
documents, on the first test lists, in proportion; both end at a gradient below 1e-6.
"""

from collections.abc import Iterator

import torch

from benchmarks.suite import Row, Setting
from torchrank import QueryKNN, RankingDataModule, RankingSet, TransductivePCA
from torchrank.functional import cloud_pca, listnet_loss
from torchrank.solvers.linear.many_models import JoinedLists, solve_many_linear


def rows(setting: Setting) -> Iterator[Row]:
    data = lists(setting)
    test = data.sets["test"]
    for base in ("listnet", "ranksvm"):
        ranker = TransductivePCA(data.num_features, base=base).fit(data.sets["train"])
        used = setting.seconds(lambda: ranker(test.x, test.offsets))  # noqa: B023
        if base == "listnet":
            yield alone(setting, ranker, test, used)
        else:
            yield Row(f"D&K of {base}, {len(test)} test lists", used)
    knn, train = QueryKNN(data.num_features), data.sets["train"]
    yield Row(f"query-KNN, {len(train)} models of 51 lists", setting.seconds(lambda: knn.fit(train)))


def lists(setting: Setting) -> RankingDataModule:
    if setting.data and not setting.quick and any(setting.data.glob("**/Fold1")):
        data = RankingDataModule("mq2008", root=setting.data, fold=1)
    else:
        data = RankingDataModule("synthetic", num_queries=100, num_features=46, mean_length=12.0)
    data.setup()
    return data


def alone(setting: Setting, ranker: TransductivePCA, test: RankingSet, used: float, count: int = 5) -> Row:
    """The first lists with a direction, one after the other."""
    x = ranker.transform(test.x, test.offsets)
    directions, _, _, rank = cloud_pca(x, test.offsets, 5)
    basis = directions[rank > 0][:count].double()
    numbers = torch.arange(len(ranker.offsets) - 1)
    known = JoinedLists(ranker.rows, ranker.labels, ranker.offsets, numbers, ranker.num_lists)
    together = solve_many_linear(known, len(basis), basis=basis).weight
    found: list[torch.Tensor] = []
    seconds = setting.seconds(lambda: found.extend(one_by_one(known, part) for part in basis))
    note = f"weights differ by {float((together - torch.stack(found)).abs().max()):.1e}"
    theirs = seconds * len(test) / len(basis)
    return Row(
        f"D&K of listnet, {len(test)} test lists", used, peer="torch's L-BFGS", theirs=theirs, bar=0.2, note=note
    )


def one_by_one(lists, basis, l2=1e-4):
    """Weights (D,) of the model on U x by torch's own optimiser."""
    z, v = lists.x.double() @ basis.T, torch.zeros(len(basis), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [v], max_iter=1000, history_size=20, tolerance_grad=1e-6, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = listnet_loss(z @ v, lists.labels, lists.offsets).sum() / lists.num_lists + l2 / 2 * v.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return basis.T @ v.detach()
