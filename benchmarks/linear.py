"""Linear solvers: products with float32 rows, transforms, running sums, and whole fits, beside the limits of memory.

`python -m benchmarks linear --against REVISION` gives the fits of another revision beside these.
"""

from collections.abc import Iterator

import torch

from benchmarks.suite import Row, Setting
from torchrank import DominationRank, ListNet, RankingSet, RankSVM, SVMMap
from torchrank.data.batch import make_batch
from torchrank.data.transforms import make_transform, transform_rows
from torchrank.functional.ragged import segment_cumsum
from torchrank.solvers.linear.scores import add_gradient, entry_scores

FEATURES = 136  # of MSLR-WEB30K
TRANSFORMS = ("none", "standard", "l2", "query_minmax", "log1p", "quantile", "pca")
SAME = {"transform": "standard"}  # given, since the default is not the same in all revisions
FITS = {
    "ListNet": lambda: ListNet(FEATURES, **SAME),
    "Domination, lbfgs": lambda: DominationRank(FEATURES, solver="lbfgs", **SAME),
    "Domination, fista": lambda: DominationRank(FEATURES, solver="fista", l1=0.01, rounds=2, **SAME),
    "Domination, cd": lambda: DominationRank(FEATURES, solver="cd", rounds=2, **SAME),
    "SVMmap": lambda: SVMMap(FEATURES, rounds=8, **SAME),
    "RankSVM": lambda: RankSVM(FEATURES, **SAME),
}


def rows(setting: Setting) -> Iterator[Row]:
    lists = ranking(setting.size(1000, 10))
    yield from products(setting)
    yield from transforms(setting, lists)
    yield from running_sums(setting, lists)
    yield from fits(setting, lists)


def ranking(queries: int) -> RankingSet:
    """Lists of 40 to 199 documents with five grades."""
    draw = torch.Generator().manual_seed(0)
    offsets = torch.cat(
        [torch.zeros(1, dtype=torch.long), torch.randint(40, 200, (queries,), generator=draw).cumsum(0)]
    )
    x = torch.randn(int(offsets[-1]), FEATURES, generator=draw)
    noise, weight = torch.randn(len(x), generator=draw), torch.randn(FEATURES, generator=draw) / FEATURES**0.5
    labels = (x @ weight + noise + 0.5).clamp(0, 4).floor()
    return RankingSet(x * torch.rand(FEATURES, generator=draw) * 5 + 3, labels, offsets)


def products(setting: Setting) -> Iterator[Row]:
    """A batch of float32 rows times float64 weights, beside float64 rows and beside a copy of the rows."""
    count = setting.size(20_000, 200)
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))
    batch, into = make_batch(x, torch.zeros(count), torch.tensor([0, count])), torch.zeros(1, FEATURES).double()
    weight, slopes, wide = torch.ones(1, FEATURES).double(), torch.ones(count).double(), x.double()
    functions = {
        "scores": (
            lambda: entry_scores(batch, weight, False),
            lambda: x.double() @ weight[0],
            lambda: wide @ weight[0],
        ),
        "gradient": (
            lambda: add_gradient(batch, slopes, into, False),
            lambda: x.double().T @ slopes,
            lambda: wide.T @ slopes,
        ),
    }
    for what, (ours, whole, resident) in functions.items():
        times = setting.race(ours, whole, resident, x.clone, repeats=15)
        name = f"{what} of {count:,} x {FEATURES} float32"
        yield Row(name, times[0], peer="all rows converted", theirs=times[1], bar=0.6)
        yield Row(f"{name}, no conversion", times[0], peer="rows kept in float64", theirs=times[2], bar=1.3)
        yield Row(
            f"{name}, memory", times[0], peer="a copy of the rows", theirs=times[3], note="the limit is half of it"
        )


def transforms(setting: Setting, lists: RankingSet) -> Iterator[Row]:
    """Nanoseconds for each value, fitted and applied."""
    values = lists.x.numel()
    (copied,) = setting.race(lists.x.clone)
    for name in TRANSFORMS:
        transform = make_transform(name, FEATURES)
        fit, apply = setting.race(
            lambda transform=transform: transform.fit(lists.x, lists.offsets),
            lambda transform=transform: transform_rows(lists.x, lists.offsets, "cpu", transform),
            repeats=3,
        )
        limits = {"fit": (fit, 4.0), "applied": (apply, 3.0)}
        for what, (time, most) in limits.items():
            if name != "none" or what == "fit":
                judged = name == "standard" and not setting.quick
                bar = 1.0 if judged else None
                note = f"a copy of the rows takes {1e9 * copied / values:.2g} ns" if judged else ""
                yield Row(f"transform {name}, {what}", 1e9 * time / values, "ns a value", "goal", most, bar, note)


def running_sums(setting: Setting, lists: RankingSet) -> Iterator[Row]:
    """Beside one running sum over all lists, which is no sum inside lists."""
    offsets = lists.offsets[: setting.size(401, 5)]
    values = torch.randn(int(offsets[-1]), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours, plain = setting.race(lambda: segment_cumsum(values, offsets), lambda: values.cumsum(0), repeats=15)
    yield Row(f"segment_cumsum, {len(values):,} float64", ours, peer="torch.cumsum of all", theirs=plain)


def fits(setting: Setting, lists: RankingSet) -> Iterator[Row]:
    """Whole fits, with their transform: to be compared with another revision."""
    for name, make in FITS.items():
        (time,) = setting.race(lambda make=make: make().fit(lists), repeats=2)
        yield Row(f"{name}: a fit on {len(lists.x):,} documents", time, earlier=0.6)
