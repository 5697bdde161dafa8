"""L-GMML on data with query vectors, and LGMMLNet."""

import numpy as np
import pytest
import torch

from torchrank import LGMML, LGMMLNet, RankingSet

from . import local_reference as plain
from .local_fits import FEATURES, close, first_round, graded, rows_of, run, scores_of, state, tolerance, write
from .reference import blocks

pytestmark = pytest.mark.filterwarnings("ignore:Total length of")  # there are no validation lists


# --- query vectors ---


def with_queries(seed: int, corpus: int = 41, num_lists: int = 9) -> RankingSet:
    """Query vectors near the rows of one corpus; relevance by another metric than Euclid's, not mutual."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(corpus, 5))
    queries = x[rng.choice(corpus, num_lists, replace=False)] + 0.1 * rng.normal(size=(num_lists, 5))
    index, labels, lengths = [], [], []
    for query in queries:
        places = np.sort(rng.choice(corpus, 20, replace=False))
        gaps = (((x[places] - query) * [2, 1, 0.1, 1, 0.1]) ** 2).sum(1)
        index.append(places)
        labels.append((gaps <= np.sort(gaps)[4]).astype(float))
        lengths.append(len(places))
    return RankingSet(
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(np.concatenate(labels), dtype=torch.float32),
        torch.tensor(np.concatenate([[0], np.cumsum(lengths)])),
        index=torch.tensor(np.concatenate(index)),
        queries=torch.tensor(queries, dtype=torch.float32),
    )


@pytest.mark.parametrize("options", [
    {"tau": 1.0},
    {"tau": 3.0, "beta": 1.0},
    {"tau": "median"},
    {"tau": "q95"},
    {"tau": 1.0, "metrics": 8, "queries_per_metric": 1},
    {"tau": 1.0, "anchor": "virtual", "kappa": 0.0},
    {"tau": 0.001},  # exp(-delta / tau) of every metric would be 0
    {"tau": 1.0, "kernel": "paper"},
    {"tau": "median", "kernel": "rbf"},
    {"tau": "median", "kernel": "distance"},
    {"tau": 1.0, "beta": float("inf")},  # the nearest anchor alone
], ids=str)  # fmt: skip
def test_query_dependent(options):
    """`localized` weighs the metrics at the query; other kernels take distances from the query, not the anchors."""
    train, test = with_queries(38), with_queries(39)
    base = {"anchor": "best", "anchor_candidates": 1000, "kernel": "localized", "metrics": 5, "queries_per_metric": 2}
    options = base | options
    ranker = first_round(train, **options)
    own = train.x.double().numpy()
    corpus, rows, queries = (plain.standardise(own, part.double().numpy()) for part in (train.x, test.x, test.queries))
    expected = plain.fit(
        corpus[train.index.numpy()], train.labels.numpy(), train.offsets.numpy(), ranker.sources.numpy(),
        anchor=options["anchor"], kappa=options.get("kappa", 10.0), tau=1.0,
    )  # fmt: skip
    pooled = plain.distances(expected, corpus, "mahalanobis").reshape(-1, 1)  # one scale for all metrics
    tau = float(plain.scales(pooled, options["tau"])[0])
    limit, actual = tolerance(ranker), state(ranker, train)
    close(actual.metrics, expected.metrics, limit, "metrics")
    close(actual.anchors, expected.anchors, limit, "anchors")
    close(actual.tau, np.full(len(actual.tau), tau), limit, "tau")
    found = scores_of(ranker, test, index=test.index, queries=test.queries)
    for query, block in zip(queries, blocks(test.offsets), strict=True):
        documents, ones = rows[test.index.numpy()[block]], np.ones(len(expected.tau))
        if options["kernel"] == "localized":
            right = plain.query_scores(expected, query, documents, ones, options.get("beta", 2.0), tau)
        else:
            centred = expected._replace(anchors=np.tile(query, (len(ones), 1)), tau=tau * ones)
            right = plain.scores(centred, documents, [0, len(documents)], ones, options["kernel"])
        close(found[block], right, 1e-4 if options["tau"] == 0.001 else 10 * limit, "scores")


@pytest.mark.parametrize("kernel", ["localized", "distance"])
def test_second_round_goes_down_the_gradient(kernel):
    """phi_r(p) = -w_r(q) ||p - q||_r^2 is linear in the shared weights too."""
    train = with_queries(61)
    options = {"metrics": 4, "queries_per_metric": 2, "kernel": kernel, "anchor": "best"}
    first, second = first_round(train, **options), run(LGMML(5, rounds=3, lr=0.01, **options), train, 2)
    local, own, phi = state(first, train), train.x.double().numpy(), []
    queries = plain.standardise(own, train.queries.double().numpy())
    for query, block in zip(queries, blocks(train.offsets), strict=True):
        near = np.array([plain.distance(m, query - a) for m, a in zip(local.metrics, local.anchors, strict=True)])
        shares = np.exp(-(near - near.min()) / local.tau)
        centred = local._replace(anchors=np.tile(query, (4, 1)))
        away = plain.distances(centred, plain.standardise(own, own)[train.index.numpy()[block]], "mahalanobis")
        phi.append(-shares * away**2 if kernel == "localized" else -away / local.tau)
    scale = np.concatenate(phi).std(0).mean()
    slopes = [plain.warp_slope(part / scale, train.labels[block].tolist()) for part, block in
              zip(phi, blocks(train.offsets), strict=True)]  # fmt: skip
    downhill, moved = -np.sum(slopes, axis=0), (second.weights - first.weights).detach().double().numpy()
    close(moved / np.linalg.norm(moved), downhill / np.linalg.norm(downhill), 1e-3)


def test_a_flat_copy_of_the_corpus_is_the_same():
    train, test = with_queries(40), with_queries(41)
    flat = [RankingSet(s.x[s.index], s.labels, s.offsets, queries=s.queries) for s in (train, test)]
    shared = first_round(train, anchor="best", kernel="localized", tau=1.0, transform=None)
    own = first_round(flat[0], anchor="best", kernel="localized", tau=1.0, transform=None)
    assert torch.equal(shared.sources, own.sources)
    close(
        scores_of(own, flat[1], queries=test.queries),
        scores_of(shared, test, index=test.index, queries=test.queries),
        1e-5,
    )


# --- LGMMLNet ---

FROZEN = ["metrics", "anchors", "tau", "linear"]


@pytest.mark.parametrize("options", [{}, {"kernel": "rbf", "tau": "q95"}, {"kernel": "laplace", "beta": 1.0},
                                     {"closed_form": {"anchor": "best", "t": 0.25}}], ids=str)  # fmt: skip
def test_frozen_net_is_lgmml(options):
    """All frozen: the first round of L-GMML. With its weights free: those weights on the metrics of L-GMML."""
    train, test = graded(42, top=3), graded(43)
    start = {"queries_per_metric": 3} | options.get("closed_form", {})
    scoring = {name: value for name, value in options.items() if name != "closed_form"}
    ranker = first_round(train, **start | scoring)
    for frozen in ([*FROZEN, "weights"], FROZEN):
        net = LGMMLNet(FEATURES, metrics=4, closed_form=start, freeze=frozen, lr=0.01, **scoring)
        net = run(net, train, 2)
        weights = net.scorer.weights.detach().double().numpy()
        assert (weights == 1).all() == ("weights" in frozen)
        form = {"kernel": options.get("kernel", "distance"), "beta": options.get("beta", 2.0)}
        expected = plain.scores(state(ranker, train), rows_of(train, test), test.offsets.numpy(), weights, **form)
        close(scores_of(net, test), expected, 2e-5)
        if "weights" in frozen:
            close(scores_of(net, test), scores_of(ranker, test), 5e-6)


def test_a_linear_term_is_added():
    train, test = graded(59), graded(60)
    net = run(LGMMLNet(FEATURES, metrics=4, closed_form={"queries_per_metric": 3}, freeze=FROZEN), train)
    before, slope = scores_of(net, test), torch.randn(FEATURES, generator=torch.Generator().manual_seed(0))
    write(net.scorer.linear, slope)
    rows = plain.standardise(train.x.double().numpy(), test.x.double().numpy())
    close(scores_of(net, test) - before, rows @ slope.double().numpy(), 1e-5)
