"""The search for the most similar training query of LocalRank: LSH, exact search, and memory with 30,000 queries.

LSH: directions of synthetic training queries around those of 200 kinds of queries, some close, some far (5 directions
of 136 features in float32); 16 hash tables for each direction, with more bits for more queries. One query at a time,
against the bare products; in a batch, against `nearest_clouds`, including its copy of all directions. Recall: how often
the list found is the nearest one. Loss: of similarity, against the nearest. Agreement: how often the list found is in
the cluster of the nearest one, with 10 complete-link clusters of the kinds. Sizes that need more memory than is free
are left out.

Memory: clouds of about 120 x 136 float32 numbers: directions, clusters (of a sample above 8000), nearest training
query; the largest resident size of a process of its own, including the rows.
"""

import os
from collections.abc import Iterator

import torch

from benchmarks.localrank import COMPONENTS, FEATURES, make_clouds
from benchmarks.suite import Row, Setting, in_process
from torchrank.files import peak_memory_mb
from torchrank.functional import cloud_pca, nearest_clouds
from torchrank.solvers.cloud_clustering import Shapes, cluster
from torchrank.solvers.cloud_hashing import build_tables, hashed_nearest, make_planes

KINDS, CLUSTERS, SPREAD = 200, 10, (0.02, 0.2)
TABLES, BATCH = 16, 200
MEMORY = "import sys; from benchmarks.localrank_search import memory; print(memory(int(sys.argv[1])))"


def rows(setting: Setting) -> Iterator[Row]:
    queries = setting.size(30_000, 300)
    peak = float(in_process(MEMORY, str(queries)))
    yield Row(f"{queries:,} training queries, peak memory", peak, "GB", "limit", 4, bar=1)
    for count in (500,) if setting.quick else (10_000, 100_000, 1_000_000):
        need = count * COMPONENTS * (4 * FEATURES + 8 * TABLES) * 1.3 + 2**30
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if need > free:
            yield Row(f"LSH, {count:,} training queries", note=f"needs {need / 2**30:.1f} GB of free memory")
        else:
            yield from lsh(setting, count)


def memory(queries: int) -> float:
    """The largest resident size in GB."""
    x, offsets = make_clouds(queries + BATCH)
    last = offsets[queries]
    u, _, _, ranks = cloud_pca(x[:last], offsets[: queries + 1], COMPONENTS)
    v, _, _, ranks_v = cloud_pca(x[last:], offsets[queries:] - last, COMPONENTS)
    clusters_of(u, ranks, [2, 3, 5, 8], min_size=10)
    nearest_clouds(v, ranks_v, u, ranks)
    return peak_memory_mb() * 2**20 / 1e9


def kinds():
    return torch.linalg.qr(torch.randn(KINDS, FEATURES, COMPONENTS, generator=torch.Generator().manual_seed(0)))[0].mT


def make_directions(count, seed):
    """Directions (Q, P, D) near those of their kind, and the kinds; in blocks: one copy is 2.7 GB at 10^6."""
    generator, centres = torch.Generator().manual_seed(seed), kinds()
    kind = torch.randint(KINDS, (count,), generator=generator)
    u = torch.empty(COMPONENTS, count, FEATURES).transpose(0, 1)  # the fastest for bare products
    spread = SPREAD[0] * (SPREAD[1] / SPREAD[0]) ** torch.rand(count, 1, 1, generator=generator)
    for part, which, far in zip(*(whole.split(10_000) for whole in (u, kind, spread)), strict=True):
        part.normal_(generator=generator).mul_(far).add_(centres[which])
        part.div_(part.norm(dim=2, keepdim=True))
    return u, kind


def bare_search(u, v):
    """Eq. 5 of one query with all lists of full rank, by products alone."""
    found = torch.zeros(len(u))
    for p in range(COMPONENTS):
        found += (u[:, p] @ v[p]).abs_()
    return found.max(0)


def exact_search(u, v, block=100_000):
    """`nearest_clouds` of a part of the lists at a time: it copies the directions that it looks through."""
    parts = [nearest_clouds(v, full(v), one, full(one)) for one in u.split(block)]
    similarity = torch.cat([found for found, _ in parts], 1)
    index = torch.cat([place + number * block for number, (_, place) in enumerate(parts)], 1)
    best = similarity.argmax(1, keepdim=True)
    return similarity.gather(1, best), index.gather(1, best)


def full(u):
    return torch.full((len(u),), COMPONENTS)


def bits_of(count):
    """A bucket of random directions would hold 2 to 4 lists."""
    return max(4, count.bit_length() - 2)


def clusters_of(u, ranks, numbers, min_size=1):
    """Complete-link clusters by directions (Q, P, D) alone."""
    return cluster(Shapes(u, u.new_zeros(u.shape[:2]), ranks), numbers, "ordered", min_size=min_size, seed=0)


def quality(found, exact, kind):
    similarity, index, searches = found
    best, nearest = exact
    centres = kinds()
    cluster_of = clusters_of(centres, full(centres), [CLUSTERS]).labels[0][kind]
    recall, agreement = (index == nearest).float().mean(), (cluster_of[index] == cluster_of[nearest]).float().mean()
    loss = (best - similarity).mean()
    return f"recall {recall:.2f}, loss {loss:.4f} of {best.mean():.3f}, agreement {agreement:.3f}, {searches} searches"


def lsh(setting: Setting, count: int) -> Iterator[Row]:
    u, kind = make_directions(count, 1)
    v, _ = make_directions(setting.size(BATCH, 20), 2)
    ranks, some = full(u), range(min(20, len(v)))
    tables = build_tables(u, ranks, make_planes(COMPONENTS, TABLES, bits_of(count), FEATURES, 0))
    bare, alone, batch, exact = setting.race(
        lambda: [bare_search(u, v[i]) for i in some],
        lambda: [hashed_nearest(u, ranks, tables, v[i : i + 1], full(v[i : i + 1])) for i in some],
        lambda: hashed_nearest(u, ranks, tables, v, full(v)),
        lambda: exact_search(u, v),
        repeats=3,
    )
    name = f"LSH, {count:,} training queries"
    yield Row(f"{name}, one query", alone / len(some), peer="exact search", theirs=bare / len(some))
    note = quality(hashed_nearest(u, ranks, tables, v, full(v)), exact_search(u, v), kind)
    yield Row(f"{name}, {len(v)} at once", batch, peer="exact search", theirs=exact, note=note)
