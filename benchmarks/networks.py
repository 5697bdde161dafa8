"""Networks, and fits that solve or train many parts: attention over ragged lists against padded ones, members against
`vmap`, a step of LGMMLNet against the plain form of its distances, and the models of QueryKNN, whose cost should depend
on the neighbourhood, not on the number of queries."""

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch.func import functional_call, stack_module_state, vmap

from benchmarks.suite import Row, Setting, in_process
from torchrank import LGMMLNet, QueryKNN
from torchrank.data import synthetic_splits
from torchrank.functional import listnet_loss, pad, to_offsets
from torchrank.rankers.neural.attention import AttentionScorer, attend
from torchrank.rankers.neural.local import LocalMetricScorer
from torchrank.rankers.neural.members import Members, tiled
from torchrank.rankers.neural.mlp import MLPScorer
from torchrank.solvers.linear.many_models import join_lists, solve_many_linear
from torchrank.solvers.linear.scores import nearest_queries, query_vectors

FEATURES = 136


def rows(setting: Setting) -> Iterator[Row]:
    yield attention_step(setting, setting.size(160, 6))
    yield attention_memory(setting, setting.size(20_000, 200), setting.size(1251, 40))
    yield members_step(setting, setting.size(2000, 50))
    yield net_step(setting, setting.size(200, 10), setting.size(32, 2))
    yield from query_models(setting, (200, 800, 3200) if not setting.quick else (10, 20), setting.size(20, 4))


def attention_step(setting: Setting, queries: int) -> Row:
    """Scores and gradient of lists of 1 to 240 documents and one of 1,251, beside the same padded to the longest."""
    torch.manual_seed(0)
    lengths = [setting.size(1251, 40), *torch.randint(1, 241, (queries,)).tolist()]
    x, offsets, network = torch.randn(sum(lengths), FEATURES), to_offsets(lengths), AttentionScorer(FEATURES)

    def padded() -> torch.Tensor:
        values = network.first(x)
        for block in network.blocks:
            views, mask = pad(block.views(block.norms[0](values)), offsets)
            seen = attend(views.unflatten(2, (3, block.heads, -1)), mask)[mask].flatten(1)
            values = values + block.mix(seen)
            values = values + block.second(torch.relu(block.first(block.norms[1](values))))
        return network.last(network.norm(values))

    ours, theirs = setting.race(
        lambda: network(x, offsets).sum().backward(), lambda: padded().sum().backward(), repeats=3
    )
    name = f"a step of attention, {len(x)} rows in {len(lengths)} ragged lists"
    return Row(name, ours, peer="padded to the longest", theirs=theirs, bar=0.5)


MEMORY = """
import sys, torch
from pathlib import Path
from torchrank.functional import to_offsets
from torchrank.rankers.neural.attention import AttentionScorer

def held(name):
    return next(int(line.split()[1]) / 1024 for line in Path("/proc/self/status").open() if line.startswith(name))

lengths = [int(each) for each in sys.argv[1].split()]
network, x, before = AttentionScorer(136), torch.randn(sum(lengths), 136), held("VmRSS")
network(x, to_offsets(lengths), max(lengths)).sum().backward()
print(held("VmHWM") - before)
"""


def attention_memory(setting: Setting, documents: int, longest: int) -> Row:
    """Peak memory of a step with the longest list of MSLR-WEB30K, beside as many documents in lists of 40."""
    short, part = [40] * (documents // 40), [40] * ((documents - longest) // 40)
    ours, theirs = (float(in_process(MEMORY, " ".join(map(str, lengths)))) for lengths in ([longest, *part], short))
    name = f"a step of attention, a list of {longest} among {documents} rows"
    return Row(name, ours, "MB", "lists of 40", theirs, bar=1.1)


def members_step(setting: Setting, documents: int, members: int = 5) -> Row:
    """Loss and gradient of five networks one after the other, beside `vmap` over their stacked parameters."""
    torch.manual_seed(0)
    networks = [MLPScorer(FEATURES) for _ in range(members)]
    x, offsets = torch.randn(documents, FEATURES), torch.arange(0, documents + 1, 10)
    labels, together = torch.randint(0, 3, (documents,)).repeat(members), Members(networks)
    stacked, skeleton = stack_module_state(networks), deepcopy(networks[0]).to("meta")

    def loss(found: torch.Tensor) -> None:
        listnet_loss(found.flatten(), labels, tiled(offsets, documents, members)).sum().backward()

    ours, theirs = setting.race(
        lambda: loss(together(x)), lambda: loss(vmap(lambda *state: functional_call(skeleton, state, (x,)))(*stacked))
    )
    return Row(f"a step of {members} members, {documents} rows", ours, peer="vmap", theirs=theirs, bar=1.1)


def net_step(setting: Setting, queries: int, metrics: int) -> Row:
    """Loss and gradient of all training lists, beside the same with images of all rows."""
    train = synthetic_splits(num_queries=queries, num_features=FEATURES)["train"]
    ranker = LGMMLNet(FEATURES, groups="random", metrics=metrics, transform="standard")
    ranker.transform.fit(train.x, train.offsets)
    batch = train.to("cpu", ranker.transform)[:]

    def step() -> None:
        ranker.loss(batch).sum().backward()

    def plain() -> None:
        own, LocalMetricScorer.terms = LocalMetricScorer.terms, plain_terms
        try:
            step()
        finally:
            LocalMetricScorer.terms = own

    ours, theirs = setting.race(step, plain, repeats=4)
    name = f"a step of lgmml_net, {metrics} metrics of full rank, {len(batch.labels)} rows"
    return Row(name, ours, peer="images of all rows", theirs=theirs, bar=0.55)


def plain_terms(scorer: LocalMetricScorer, x: torch.Tensor) -> torch.Tensor:
    """`LocalMetricScorer.terms` with the kernel "distance"."""
    images = (x @ scorer.factors.permute(1, 0, 2).flatten(1)).unflatten(1, scorer.shifts.shape) - scorer.shifts
    return -torch.linalg.vector_norm(images, dim=2) / scorer.log_tau.exp() * scorer.weights


def query_models(setting: Setting, sizes: tuple[int, ...], models: int) -> Iterator[Row]:
    """The time of a model among more and more queries, beside that among the fewest."""
    first = None
    for queries in sizes:
        seconds = a_model(setting, queries, models)
        first = first or seconds
        yield Row(f"a model of queryknn among {queries} queries", seconds, peer=f"among {sizes[0]}", theirs=first)


def a_model(setting: Setting, queries: int, models: int) -> float:
    train = synthetic_splits(num_queries=queries * 5 // 3, num_features=FEATURES)["train"]
    ranker = QueryKNN(FEATURES)
    ranker.transform.fit(train.x, train.offsets)
    batch = train.to("cpu", ranker.transform)[:]
    found, lists = query_vectors(batch.dense, batch.offsets), join_lists([batch])
    members = nearest_queries(found[:models], found, min(ranker.neighbours + 1, len(found)), first=0)
    (seconds,) = setting.race(lambda: solve_many_linear(lists, len(members), l2=ranker.l2, members=members), repeats=1)
    return seconds / len(members)
