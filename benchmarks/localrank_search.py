"""The search for the most similar training query of LocalRank: LSH, exact search, and memory with 30,000 queries.

    python benchmarks/localrank_search.py [--parts lsh memory] [--training 10000 100000] [--queries 30000] [--quick]

lsh: directions of synthetic training queries around those of 200 kinds of queries, some close, some far (5 directions
of 136 features in float32); 16 hash tables for each direction, with more bits for more queries. One query at a time,
against the bare products; in a batch, against `nearest_clouds`, including its copy of all directions. Recall: how often
the list found is the nearest one; by votes: how often the list with most votes is, which is Figure 3 of the paper
without the exact comparison of the 50 best. Loss: of similarity, against the nearest. Agreement: how often the list
found is in the cluster of the nearest one, with 10 complete-link clusters of the kinds. Sizes that need more memory
than is free are left out.

memory: clouds of about 120 x 136 float32 numbers: directions, clusters (of a sample above 8000), nearest training
query; the largest resident size of this process, which starts with this part, including the rows.

Times are the best of all rounds. A small run to try it: --training 2000 20000 --queries 2000 --repeats 1.
"""

import argparse
import os
import time
import warnings

import torch
from localrank import COMPONENTS, FEATURES, best_of, make_clouds
from quick import parse

from torchrank.files import peak_memory_mb
from torchrank.functional import cloud_pca, nearest_clouds
from torchrank.solvers.clouds.hashing import build_tables, count_candidates, hashed_nearest, make_planes
from torchrank.solvers.clouds.shapes import Shapes, cluster

KINDS, CLUSTERS, SPREAD = 200, 10, (0.02, 0.2)
TABLES = 16
LIMIT = 4  # GB


# ---- LSH ------------------------------------------------------------------------------------------------------------


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


def most_voted(tables, v):
    """The list with most votes of each query, of equal ones the first; -1 where there is none."""
    query, place, votes = count_candidates(tables, v, full(v))
    order = ((query << 32) - votes).argsort(stable=True)
    first = query[order].diff(prepend=query.new_full((1,), -1)) > 0
    found = torch.full((len(v),), -1)
    found[query[order][first]] = place[order][first]
    return found, len(query) / len(v)


def clusters_of(u, ranks, numbers, min_size=1):
    """Complete-link clusters by directions (Q, P, D) alone."""
    return cluster(Shapes(u, u.new_zeros(u.shape[:2]), ranks), numbers, "ordered", min_size=min_size, seed=0)


def quality(found, exact, tables, v, kind):
    similarity, index, searches = found
    best, nearest = exact
    voted, met = most_voted(tables, v)
    centres = kinds()
    cluster_of = clusters_of(centres, full(centres), [CLUSTERS]).labels[0][kind]
    recall, by_votes = (index == nearest).float().mean(), (voted == nearest[:, 0]).float().mean()
    agreement = (cluster_of[index] == cluster_of[nearest]).float().mean()
    print(f"    recall {recall:.2f} (by votes {by_votes:.2f}), similarity {best.mean():.3f}, loss "
          f"{(best - similarity).mean():.4f}, agreement {agreement:.3f}, {met:.0f} lists met, "
          f"{searches} of {len(v)} exact searches")  # fmt: skip


def lsh_at(count, options):
    u, kind = make_directions(count, 1)
    v, _ = make_directions(options.batch, 2)
    bits, ranks, some = bits_of(count), full(u), range(min(20, options.batch))
    start = time.perf_counter()
    tables = build_tables(u, ranks, make_planes(COMPONENTS, TABLES, bits, FEATURES, 0))
    seconds, size = time.perf_counter() - start, sum(part.nbytes for part in tables)
    print(f"  {count:,} training queries, {bits} bits, {TABLES} tables: made in {seconds:.1f} s, {size / 2**20:.0f} MB")
    bare, alone, batch, exact = best_of(
        options.repeats,
        lambda: [bare_search(u, v[i]) for i in some],
        lambda: [hashed_nearest(u, ranks, tables, v[i : i + 1], full(v[i : i + 1])) for i in some],
        lambda: hashed_nearest(u, ranks, tables, v, full(v)),
        lambda: exact_search(u, v),
    )
    for name, other, ours, queries in (("one query", bare, alone, len(some)), ("in a batch", exact, batch, len(v))):
        times = f"exact {1e3 * other / queries:.2f} ms, LSH {1e3 * ours / queries:.2f} ms"
        print(f"    {name + ': ' + times:56}{other / ours:10.1f}x")
    quality(hashed_nearest(u, ranks, tables, v, full(v)), exact_search(u, v), tables, v, kind)


def lsh(options):
    print(
        f"LSH against exact search, {options.batch} queries in a batch, {COMPONENTS} directions of {FEATURES} features"
    )
    for count in options.training:
        need = count * COMPONENTS * (4 * FEATURES + 8 * TABLES) * 1.3 + 2**30
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if need > free:
            print(f"  {count:,} training queries: left out, needs {need / 2**30:.1f} GB, {free / 2**30:.1f} are free")
        else:
            lsh_at(count, options)
    print()


# ---- Memory ---------------------------------------------------------------------------------------------------------


def memory(options):
    x, offsets = make_clouds(options.queries + options.batch)
    last = offsets[options.queries]
    print(f"memory, {options.queries:,} training queries, {last:,} documents x {FEATURES} float32 "
          f"({x.nbytes / 1e9:.2f} GB)")  # fmt: skip
    start = time.perf_counter()
    u, _, _, ranks = cloud_pca(x[:last], offsets[: options.queries + 1], COMPONENTS)
    v, _, _, ranks_v = cloud_pca(x[last:], offsets[options.queries :] - last, COMPONENTS)
    directions = time.perf_counter()
    found = clusters_of(u, ranks, [2, 3, 5, 8], min_size=10)
    clusters = time.perf_counter()
    nearest_clouds(v, ranks_v, u, ranks)
    searched = time.perf_counter()
    sizes = found.labels[-1].bincount().sort(descending=True).values.tolist()
    print(f"  directions {directions - start:.1f} s, clusters {clusters - directions:.1f} s "
          f"({'of a sample' if found.sampled else 'exact'}, sizes at 8: {sizes}), "
          f"{options.batch} nearest {searched - clusters:.2f} s")  # fmt: skip
    peak = peak_memory_mb() * 2**20 / 1e9
    name = "largest resident size, GB"
    print(f"  {name:58}{peak:10.2f}   (wanted: <= {LIMIT}) {'ok' if peak <= LIMIT else 'MISSED'}\n")


PARTS = {"memory": memory, "lsh": lsh}  # memory first: the largest resident size never falls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--training", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=30_000, help="training queries of the part memory")
    parser.add_argument("--batch", type=int, default=200, help="queries to search for")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parse(parser, training=[500], queries=300, batch=20, repeats=1)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    print(f"{options.threads} thread(s)\n")
    for part in [name for name in PARTS if name in options.parts]:
        PARTS[part](options)


if __name__ == "__main__":
    main()
