"""Models of single queries on a fold of MQ2008: D&K for all test queries, query-KNN for all training queries.

    python benchmarks/transductive.py --root FOLDER [--fold 1] [--bases listnet ranksvm] [--quick]

FOLDER holds MQ2008. Times are those of scoring all test lists (D&K trains there) and of the fit (query-KNN): wall time,
and CPU time of this process, which counts on a busy machine. For comparison the same D&K models one after the other, by
torch's L-BFGS with autograd on the projected documents, on the first `--alone` test lists; both end at a gradient below
1e-6, and the largest difference of the weights is printed. --quick takes synthetic lists and needs no FOLDER.
"""

import argparse
import os
import time
import warnings

import torch
from quick import parse

from torchrank import QueryKNN, RankingDataModule, TransductivePCA
from torchrank.functional import cloud_pca, listnet_loss
from torchrank.solvers.linear.many import Lists, solve_many_linear


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.environ.get("TORCHRANK_DATA"))
    parser.add_argument("--fold", type=int, default=1)
    parser.add_argument("--bases", nargs="+", default=["listnet", "ranksvm"], help="of D&K; rankboost takes longer")
    parser.add_argument("--boosting-rounds", type=int, default=20)
    parser.add_argument("--alone", type=int, default=5, help="lists solved one after the other")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parse(parser, boosting_rounds=2, alone=2, root=None)


def timed(function, *given):
    wall, used = time.perf_counter(), time.process_time()
    found = function(*given)
    return found, time.perf_counter() - wall, time.process_time() - used


def line(text, wall, used, count):
    print(f"  {text:52}{wall:8.1f} s, {used:6.1f} s of the processor, {1000 * used / count:6.1f} ms for each")


def transductive(data, options):
    test = data.sets["test"]
    print(f"D&K, 5 directions, {len(test)} test lists")
    for base in options.bases:
        ranker = TransductivePCA(data.num_features, base=base, boosting_rounds=options.boosting_rounds)
        ranker.fit(data.sets["train"])
        _, wall, used = timed(lambda ranker=ranker: ranker(test.x, test.offsets))
        line(f"{base}, {len(ranker.labels):,} documents in {len(ranker.offsets) - 1} lists", wall, used, len(test))
        if base == "listnet":
            beside(ranker, test, options.alone)


def beside(ranker, test, count):
    """The first lists with a direction, together and one after the other."""
    x = ranker.transform(test.x, test.offsets)
    directions, _, _, rank = cloud_pca(x, test.offsets, 5)
    basis = directions[rank > 0][:count].double()
    numbers = torch.arange(len(ranker.offsets) - 1)
    lists = Lists(ranker.rows, ranker.labels, ranker.offsets, numbers, ranker.num_lists)
    together, *_ = timed(lambda: solve_many_linear(lists, len(basis), basis=basis).weight)
    alone, wall, used = timed(lambda: torch.stack([one_by_one(lists, part) for part in basis]))
    line(f"listnet, {len(basis)} of them one after the other", wall, used, len(basis))
    print(f"  largest difference of weights {(together - alone).abs().max():.1e}, weights {alone.abs().max():.1e}")


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


def query_knn(data):
    train = data.sets["train"]
    print(f"query-KNN, {len(train)} models of 51 training lists each, until every gradient is below 1e-6")
    ranker = QueryKNN(data.num_features)
    _, wall, used = timed(ranker.fit, train)
    line(f"listnet, l2={ranker.l2:g}, fit", wall, used, len(train))


def main():
    options = arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    if options.quick and options.root is None:
        data = RankingDataModule("synthetic", num_queries=100, num_features=46, mean_length=12.0)
    else:
        data = RankingDataModule("mq2008", root=options.root, fold=options.fold)
    data.setup()
    transductive(data, options)
    query_knn(data)


if __name__ == "__main__":
    main()
