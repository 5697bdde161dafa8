"""Fits of the rankers, each beside the library or the plain loop that a user would take instead.

Lists are drawn in the shape of MSLR-WEB30K (136 features, about 120 documents), or MQ2008's first fold where the folder
of data sets has it. Behind a ratio stands the quality of both sides on other lists: a time says little without it.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchrank
from benchmarks import padded
from benchmarks.run import Case, Setting, Sides, run_program
from torchrank import Ranker, RankingSet
from torchrank.data import Judged, synthetic_splits
from torchrank.functional import cloud_pca, ndcg, pad, search

Call = Callable[[], Any]
FEATURES, LBFGS = 136, {"max_iter": 500, "history_size": 10, "line_search_fn": "strong_wolfe"}
TREES = {"objective": "lambdarank", "learning_rate": 0.1, "num_threads": 1, "verbosity": -1, "seed": 0}
GBDT = {"lr": 0.1, "threads": 1}


def cases(setting: Setting) -> Iterator[Case]:
    lists, some = (20, 4) if setting.quick else (600, 60)
    plain = {"torch's L-BFGS on padded lists": by_torch}
    found = {
        "ListNet": partial(fit, lists, "ListNet", plain, transform="standard"),
        "DominationRank, 60 lists": partial(fit, some, "DominationRank", plain, transform="standard"),
        "RankSVM, 60 lists": partial(fit, some, "RankSVM", {"LinearSVC on pairs": by_linear_svc}, transform="standard"),
        "SVMMap": partial(fit, lists, "SVMMap", {}, rounds=8),
        "PAMIR, 2 rounds": partial(fit, lists, "PAMIR", {}, rounds=2),
        "GMML": partial(fit, lists, "GMML", {}),
        "LGMML": partial(fit, lists, "LGMML", {}),
        "LGMML, 32 metrics of random lists": partial(fit, lists, "LGMML", {}, groups="random", rounds=4),
        "MLR on points": partial(points, 40 if setting.quick else 400),
        "RankBoost, 20 rounds, 60 lists": partial(
            fit, some, "RankBoost", {"numpy over all pairs": rank_boost}, rounds=20
        ),
        "AdaRank, 20 rounds": partial(fit, lists, "AdaRank", {}, rounds=20),
        "GBDTRanker, 50 trees": partial(fit, lists, "GBDTRanker", {"LightGBM": by_lightgbm}, rounds=50, **GBDT),
        "LocalRank": partial(mq2008, setting, "LocalRank"),
        "TransductivePCA and its scores": partial(mq2008, setting, "TransductivePCA"),
        "QueryKNN": partial(mq2008, setting, "QueryKNN"),
        "principal directions of each list": partial(clouds, lists),
        "LambdaRank, 3 epochs": partial(network, lists, "lambdarank"),
        "a network with listnet, 3 epochs": partial(network, lists, "listnet"),
        "Adapter, 2 rounds": partial(adapter, *((200, 20) if setting.quick else (20_000, 500))),
        "search": partial(corpus, *((500, 10) if setting.quick else (200_000, 200))),
        "ListNet: scores of one list of 100": partial(exported, lists, "ListNet"),
        "network: scores of one list of 100": partial(exported, lists, "NeuralRanker"),
        "trees: scores of one list of 100": partial(exported, lists, "GBDTRanker"),
        "LambdaRank in 2 processes": partial(processes, lists, "LambdaRank"),
        "RankBoost in 2 processes": partial(processes, lists, "RankBoost"),
        "LGMML in 2 processes": partial(processes, lists, "LGMML"),
    }
    left_out = ("RankBoost in", "LGMML in", "network:") if setting.quick else ()  # they take seconds of any size
    return (Case(name, prepare, 6) for name, prepare in found.items() if not name.startswith(left_out))


@lru_cache(maxsize=2)
def make_sets(lists: int) -> dict[str, RankingSet]:
    """`lists` training lists, and a third of it for validation and for testing."""
    return synthetic_splits(lists * 5 // 3, num_features=FEATURES, mean_length=120.0 if lists > 20 else 12.0)


def ndcg_at_10(test: RankingSet, found: Any) -> tuple[str, float]:
    """Of a ranker, or of a function that scores rows."""
    scores = found(test.x, test.offsets) if isinstance(found, Ranker) else torch.as_tensor(found(test.x))
    with torch.no_grad():
        return "NDCG@10", float(ndcg(scores, test.labels, test.offsets, k=10).nanmean())


# ---- linear rankers, boosting and trees ------------------------------------------------------------------------------


def fit(lists: int, name: str, peers: dict[str, Callable[..., Call]], **options: Any) -> Sides:
    """A fit of all training lists beside peers, which are told the name and the rounds of the ranker."""
    sets = make_sets(lists)

    def ours() -> Ranker:
        return getattr(torchrank, name)(FEATURES, **options).fit(sets["train"])

    given = sets["train"], name, options.get("rounds")
    made = {title: partial(make, *given) for title, make in peers.items()}
    return Sides(ours, made, quality=partial(ndcg_at_10, sets["test"]))


def standard(train: RankingSet) -> tuple[np.ndarray, Callable[[torch.Tensor], np.ndarray]]:
    """Standardised rows, and the function that makes them."""
    x = train.x.numpy()
    mean, scale = x.mean(0), x.std(0) + 1e-9
    return (x - mean) / scale, lambda rows: (rows.numpy() - mean) / scale


def by_torch(train: RankingSet, name: str, rounds: int | None) -> Call:
    """torch's own L-BFGS to the same objective; the loss is that of benchmarks/padded.py."""
    loss = padded.LOSSES["listnet" if name == "ListNet" else "domination"]
    l2 = 0.5e-4 if name == "ListNet" else 1 / len(train)  # the defaults of the rankers, for the mean over lists

    def call() -> Callable[[torch.Tensor], torch.Tensor]:
        rows, transform = standard(train)
        x, mask = pad(torch.from_numpy(rows), train.offsets)
        labels = pad(train.labels.float(), train.offsets)[0]
        weight = torch.zeros(FEATURES, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], tolerance_grad=1e-6, **LBFGS)
        size = 16 if loss is padded.domination else len(x)  # lists whose padded pairs fit into memory

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            total = torch.zeros(())
            for first in range(0, len(x), size):
                part = slice(first, first + size)
                value = loss(x[part] @ weight, labels[part], mask[part]).sum() / len(x)
                value.backward()
                total += value.detach()
            penalty = l2 * weight.square().sum()
            penalty.backward()
            return total + penalty.detach()

        optimizer.step(closure)
        return lambda rows: torch.from_numpy(transform(rows)) @ weight.detach()

    return call


def pairs_of(train: RankingSet) -> tuple[np.ndarray, np.ndarray]:
    """Better and worse document of every pair of one list."""
    better, worse, labels = [], [], train.labels.numpy()
    for first, last in pairwise(train.offsets.tolist()):
        i, j = np.nonzero(labels[first:last, None] > labels[None, first:last])
        better.append(first + i)
        worse.append(first + j)
    return np.concatenate(better), np.concatenate(worse)


def by_linear_svc(train: RankingSet, name: str, rounds: int | None, most: int = 100_000) -> Call:
    """scikit-learn's LinearSVC on differences of pairs; 100,000 of them are drawn, if there are more."""
    from sklearn.svm import LinearSVC

    def call() -> Callable[[torch.Tensor], np.ndarray]:
        rows, transform = standard(train)
        better, worse = pairs_of(train)
        random = np.random.default_rng(0)
        drawn = random.permutation(len(better))[:most]
        signs = random.choice([-1.0, 1.0], len(drawn))
        differences = (rows[better[drawn]] - rows[worse[drawn]]) * signs[:, None].astype(np.float32)
        model = LinearSVC(loss="hinge", C=10 / len(drawn), fit_intercept=False).fit(differences, signs)
        return lambda rows: transform(rows) @ model.coef_[0]

    return call


def rank_boost(train: RankingSet, name: str, rounds: int | None) -> Call:
    """RankBoost over an explicit list of pairs; values are sorted once, and summed feature by feature."""

    def call() -> Callable[[torch.Tensor], np.ndarray]:
        x, (high, low) = train.x.numpy(), pairs_of(train)
        orders = [np.argsort(-column, kind="stable") for column in x.T]
        weights, rules = np.full(len(low), 1 / len(low)), []
        for _ in range(rounds or 20):
            potentials = np.bincount(high, weights, len(x)) - np.bincount(low, weights, len(x))
            best = (0.0, 0, 0.0, 0.0)
            for f, order in enumerate(orders):
                values, sums = x[order, f], potentials[order].cumsum()
                sums[:-1][values[1:] == values[:-1]] = 0.0  # no threshold is between equal values
                place = int(np.argmax(np.abs(sums[:-1])))
                if abs(sums[place]) > best[0]:
                    best = (abs(sums[place]), f, (values[place] + values[place + 1]) / 2, sums[place])
            _, f, threshold, r = best
            alpha, above = np.arctanh(r), (x[:, f] > threshold).astype(np.float64)
            weights *= np.exp(alpha * (above[low] - above[high]))
            weights /= weights.sum()
            rules.append((f, threshold, alpha))
        return lambda rows: sum(alpha * (rows.numpy()[:, f] > threshold) for f, threshold, alpha in rules)

    return call


def by_lightgbm(train: RankingSet, name: str, rounds: int | None) -> Call:
    """The library itself; its data set is made in the fit, as ours is."""
    import lightgbm

    def call() -> Callable[[torch.Tensor], np.ndarray]:
        data = lightgbm.Dataset(train.x.numpy(), train.labels.numpy(), group=train.lengths)
        booster = lightgbm.train(TREES, data, rounds)
        return lambda rows: booster.predict(rows.numpy())

    return call


# ---- metrics and local models ----------------------------------------------------------------------------------------


def points(count: int) -> Sides:
    """Ten classes of handwritten digits: the accuracy of 3 nearest neighbours on other digits."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import KNeighborsClassifier

    x, y = load_digits(return_X_y=True)
    x = x / 16
    train, test = slice(0, count), slice(800, None)

    def lmnn() -> Call:
        from metric_learn import LMNN

        return lambda: LMNN(n_neighbors=3, random_state=0).fit(x[train], y[train])

    def accuracy(found: Any) -> tuple[str, float]:
        model = KNeighborsClassifier(3).fit(found.transform(x[train]), y[train])
        return "accuracy", float(model.score(found.transform(x[test]), y[test]))

    def ours() -> torchrank.MetricEstimator:
        return torchrank.MetricEstimator(C=10.0).fit(x[train], y[train])

    return Sides(ours, {"LMNN of metric-learn": lmnn}, quality=accuracy)


def mq2008(setting: Setting, name: str) -> Sides:
    fold = setting.data and next(setting.data.glob("**/Fold1"), None)
    if fold and not setting.quick:
        parts = {"train": "train.txt", "val": "vali.txt", "test": "test.txt"}
        sets = {split: torchrank.read_letor(fold / file) for split, file in parts.items()}
    else:
        sets = synthetic_splits(60, num_features=46, mean_length=12.0)

    def ours() -> torch.Tensor:
        ranker = getattr(torchrank, name)(sets["train"].num_features).fit(sets["train"], sets["val"])
        return ranker(sets["test"].x, sets["test"].offsets)

    return Sides(ours, quality=lambda scores: ndcg_at_10(sets["test"], lambda x: scores))


def clouds(lists: int) -> Sides:
    train = make_sets(lists)["train"]

    def loop() -> Call:
        from sklearn.decomposition import PCA

        rows, bounds = train.x.numpy(), [(a, b) for a, b in pairwise(train.offsets.tolist()) if b - a > 5]
        return lambda: [PCA(5).fit(rows[first:last]) for first, last in bounds]

    return Sides(lambda: cloud_pca(train.x, train.offsets, 5), {"scikit-learn's PCA in a loop": loop})


# ---- networks, adapters, search, export ------------------------------------------------------------------------------


def network(lists: int, loss: str, epochs: int = 3, batch: int = 32) -> Sides:
    """256 and 128 hidden units, Adam: steps of about 4,000 documents beside steps of 32 padded lists."""
    sets = make_sets(lists)
    documents = batch * len(sets["train"].x) // len(sets["train"])

    def ours() -> Ranker:
        ranker = torchrank.NeuralRanker(FEATURES, loss=loss, transform="standard")
        return ranker.fit(sets["train"], epochs=epochs, batch_documents=documents)

    def plain() -> Call:
        def call() -> Callable[[torch.Tensor], torch.Tensor]:
            torch.manual_seed(0)
            rows, transform = standard(sets["train"])
            x, mask = pad(torch.from_numpy(rows), sets["train"].offsets)
            labels = pad(sets["train"].labels.float(), sets["train"].offsets)[0]
            sizes = [FEATURES, 256, 128]
            layers = [part for a, b in pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
            model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 1))
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            for _ in range(epochs):
                for some in torch.randperm(len(x)).split(batch):
                    longest = int(mask[some].sum(1).max())  # of the batch
                    scores = model(x[some, :longest])[:, :, 0]
                    optimizer.zero_grad()
                    padded.LOSSES[loss](scores, labels[some, :longest], mask[some, :longest]).mean().backward()
                    optimizer.step()
            return torch.no_grad()(lambda rows: model(torch.from_numpy(transform(rows)))[:, 0])

        return call

    return Sides(ours, {"a plain loop over padded lists": plain}, quality=partial(ndcg_at_10, sets["test"]))


def vectors(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 384, generator=torch.Generator().manual_seed(seed))


def adapter(documents: int, queries: int) -> Sides:
    """Queries near to one of their 5 judged documents; negatives are mined from all documents."""
    random, corpus = np.random.default_rng(0), vectors(documents, 2)
    relevant = np.stack([np.sort(random.choice(documents, 5, replace=False)) for _ in range(queries)])
    relevance = Judged.make(relevant.ravel(), np.ones(relevant.size), np.full(queries, 5), documents)
    near = corpus[torch.from_numpy(relevant[:, 0])] + vectors(queries, 3)
    lists = RankingSet(corpus, relevance, queries=near)
    return Sides(lambda: torchrank.Adapter(384, rounds=2).fit(lists))


def corpus(documents: int, queries: int) -> Sides:
    """The 100 best of all vectors for each query."""
    rows, asked = vectors(documents, 0), vectors(queries, 1)

    def faiss_flat() -> Call:
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.IndexFlatIP(384)
        index.add(rows.numpy())
        return lambda: index.search(asked.numpy(), 100)

    def mean_score(found: Any) -> tuple[str, float]:
        return "mean score", float(np.mean(np.asarray(found[0], dtype=np.float64)))

    return Sides(lambda: search(asked, rows, 100), {"faiss IndexFlatIP": faiss_flat}, quality=mean_score)


def exported(lists: int, name: str) -> Sides:
    """The ranker itself beside its ONNX file, and trees beside LightGBM, too."""
    sets = make_sets(lists)
    options = {"rounds": 50, **GBDT} if name == "GBDTRanker" else {"transform": "standard"}
    epochs = 1 if name == "NeuralRanker" else None
    ranker = getattr(torchrank, name)(FEATURES, **options).fit(sets["train"], epochs=epochs)
    x, offsets = sets["test"].x[:100].contiguous(), torch.tensor([0, min(100, len(sets["test"].x))])

    def onnx() -> Call:
        import onnxruntime

        given = onnxruntime.SessionOptions()
        given.intra_op_num_threads = given.inter_op_num_threads = 1
        with tempfile.TemporaryDirectory() as folder:
            session = onnxruntime.InferenceSession(ranker.export(Path(folder, "ranker.onnx")), given)
        return lambda: session.run(None, {"x": x.numpy()})

    peers = {"its ONNX file": onnx}
    if name == "GBDTRanker":
        peers["LightGBM"] = lambda: lambda: ranker.booster.predict(x.numpy(), num_threads=1)
    return Sides(torch.no_grad()(lambda: ranker(x, offsets)), peers)


# ---- processes -------------------------------------------------------------------------------------------------------

WORKER = """
import os, sys, time, warnings
import torch, torchrank
from pytorch_lightning import Trainer
from torch import multiprocessing
from torchrank.data import synthetic_splits

def work(rank, world, lists, name, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": sys.argv[4]}
    for count in (10, lists):  # the first fit of a process loads and prepares much
        os.environ |= {"WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        sets = synthetic_splits(count * 5 // 3, num_features=136, mean_length=120.0 if lists > 20 else 12.0)
        given = {"LGMML": {"groups": "random", "rounds": 6}, "RankBoost": {"rounds": 40}}.get(name, {})
        ranker = getattr(torchrank, name)(136, **given)
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        trainer = Trainer(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto",
                          max_epochs=40 if name == "RankBoost" else 4, num_sanity_val_steps=0, **quiet)
        data, start = torchrank.RankingDataModule.from_sets(train=sets["train"], val=sets["val"]), time.process_time()
        trainer.fit(ranker, datamodule=data)
    with open(os.path.join(folder, f"{rank}"), "w") as file:
        file.write(str(time.process_time() - start))

world, lists, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
getattr(torchrank, name)  # is imported once, before the processes are started
if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        started = [context.Process(target=work, args=(rank, world, lists, name, folder)) for rank in range(world)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        print(max(float(open(os.path.join(folder, f"{rank}")).read()) for rank in range(world)))
"""


def processes(lists: int, name: str) -> Sides:
    """CPU seconds of the slower of two processes: what they gain at most, since waiting takes no CPU time."""

    def run(world: int) -> float:
        given = map(str, (world, 2 * lists, name, free_port()))
        return float(run_program(WORKER, *given, folder=Path.cwd()).split()[-1])

    return Sides(partial(run, 2), {"one process": lambda: partial(run, 1)}, unit="CPU s")


def free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
