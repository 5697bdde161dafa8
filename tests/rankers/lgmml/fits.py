"""Lists and fits for the tests of GMML, L-GMML and LGMMLNet; the comparison with `tests/reference/local_metrics.py`."""

import numpy as np
import torch
from torch import Tensor

from tests.rankers.small import FEATURES, lists
from tests.reference import local_metrics as plain
from tests.reference.measures import blocks
from torchrank import LGMML, LGMMLNet, RankingSet
from torchrank.data.relevance import Judged

SMALL = {"groups": "random", "metrics": 4, "queries_per_metric": 3, "rounds": 1}
GIVEN = {"t": 0.5, "ridge": 0.1, "kappa": 10.0, "transform": "standard"}  # what GMML would choose otherwise
WEIGHTS = {
    "shared": {"weights": "shared"},
    "mean": {"weights": "per_query", "fallback": "mean"},
    "ones": {"weights": "per_query", "fallback": "ones"},
    "knn": {"weights": "per_query", "fallback": "knn"},
    "amortized": {"weights": "amortized"},
}
KERNELS = [*plain.KERNELS, "localized"]


# ---- lists -----------------------------------------------------------------------------------------------------------

WIDTH, DEAD, QUERY_LEVEL = 7, 4, 6  # of `graded`: feature 4 is constant in training, feature 6 constant in every list


def graded(seed: int, num_lists: int = 13, *, top: int | None = None, dead: bool = True) -> RankingSet:
    """Lists of grades 0..4 with an odd number of documents in all; two lists have one grade, one has one document.

    Every other list has at least two documents of grade `top` (or of its own highest grade) and two of grade 0.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(7, 14, num_lists)
    lengths[1] = 1
    lengths[0] += 1 - lengths.sum() % 2
    rows, labels = [], []
    for q, length in enumerate(lengths):
        highest = rng.integers(1, 5) if top is None else top
        grades = np.concatenate([[highest, highest, 0, 0], rng.integers(0, highest + 1, 20)])[:length]
        grades = np.full(length, [0, 0, 2][q]) if q in (1, 2) else rng.permutation(grades)
        x = rng.normal(size=(length, WIDTH)) * [1, 3, 0.2, 1, 1, 1, 1] + rng.normal(size=WIDTH)
        x[:, 0] += 0.7 * grades
        x[:, 1] -= grades
        x[:, 5] += 0.5 * x[:, 0] * rng.normal()
        x[:, DEAD] = 2.5 if dead else x[:, DEAD]
        x[:, QUERY_LEVEL] = rng.normal()
        rows.append(x)
        labels.append(grades)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    x = torch.tensor(np.concatenate(rows), dtype=torch.float32)
    return RankingSet(x, torch.tensor(np.concatenate(labels), dtype=torch.float32), torch.tensor(offsets))


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


def judged(seed: int, num_rows: int = 20, num_queries: int = 10) -> RankingSet:
    """Points that are queries of their own; who is relevant to whom is drawn, neither mutual nor transitive."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(num_rows, FEATURES)).astype(np.float32)
    rows, grades, counts = [], [], []
    for query in range(num_queries):
        near = np.argsort(np.abs(x[:, 0] - x[query, 0]) + draw.normal(size=num_rows) * 0.3)
        own = [row for row in near if row != query][: draw.integers(2, 6)]
        rows += own
        grades += draw.integers(1, 3, len(own)).tolist()
        counts.append(len(own))
    relevance = Judged.make(np.array(rows), np.array(grades), np.array(counts), num_rows, own=torch.arange(num_queries))
    return RankingSet(torch.from_numpy(x), relevance, queries=torch.from_numpy(x[:num_queries]))


def with_feature(ranking_set: RankingSet, column: int, values: Tensor | float) -> RankingSet:
    """A copy of lists with rows of their own whose feature `column` has other values."""
    x = ranking_set.x.clone()
    x[:, column] = values
    return RankingSet(x, ranking_set.labels, ranking_set.offsets)


def with_corpus(flat: RankingSet) -> RankingSet:
    """The same lists over a shared corpus in which their rows are shuffled."""
    order = torch.randperm(len(flat.x), generator=torch.Generator().manual_seed(0))
    return RankingSet(flat.x[order], flat.labels, flat.offsets, index=order.argsort())


# ---- fits ------------------------------------------------------------------------------------------------------------


def fitted(train=None, make=LGMML, *, wide=False, epochs=None, documents=40, **options):
    """A ranker after its last round; `wide`: in float64."""
    train = lists(0) if train is None else train
    given = {LGMML: SMALL, LGMMLNet: {"groups": "random"}}.get(make, {})
    ranker = make(train.num_features, **given | options)
    ranker = ranker.double() if wide else ranker
    return ranker.fit(train, epochs=epochs, batch_documents=documents)


@torch.no_grad()
def scores_of(ranker, ranking_set, **given) -> np.ndarray:
    return ranker(ranking_set.x, ranking_set.offsets, **given).double().numpy()


@torch.no_grad()
def write(parameter: Tensor, values: Tensor) -> None:
    parameter.copy_(values)


def assert_equal_fits(one, other, tolerance=1e-12) -> None:
    """All that was learned is the same; what the transform learned may differ in its last digit."""
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, tensor in one.state_dict().items():
        if isinstance(tensor, Tensor) and not name.startswith("transform."):
            torch.testing.assert_close(other.state_dict()[name], tensor, rtol=tolerance, atol=tolerance, msg=name)


# ---- the second opinion ----------------------------------------------------------------------------------------------


def live(train: RankingSet) -> np.ndarray:
    return plain.live_features(train.x.numpy())


def rows_of(train: RankingSet, other: RankingSet | None = None, *, standard: bool = True) -> np.ndarray:
    """Live features of the training rows, or of the rows of other lists, as the transform of a fit leaves them."""
    own, rows = train.x.double().numpy(), (train if other is None else other).x.double().numpy()
    return (plain.standardise(own, rows) if standard else rows)[:, live(train)]


def split(values, offsets) -> list:
    return [values[block] for block in blocks(offsets)]


def state(ranker, train: RankingSet) -> plain.Local:
    """Metrics, anchors and scales of a fit, on the live features."""
    factors, anchors, tau = (part.detach().double() for part in (ranker.factors, ranker.anchors, ranker.tau))
    factors, anchors = factors[:, live(train)], anchors[:, live(train)]
    return plain.Local((factors @ factors.mT).numpy(), anchors.numpy(), tau.numpy())


def tolerance(ranker) -> float:
    return 1e-9 if ranker.factors.dtype == torch.float64 else 5e-6


def close(actual, expected, limit: float, what: str = "") -> None:
    """Relative to the largest number of the whole array."""
    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected)
    assert actual.shape == expected.shape, what
    assert np.abs(actual - expected).max(initial=0) <= limit * np.abs(expected).max(initial=1e-300), what


def compare(ranker, train, test, *, standard=True, rows_of_weights=None, **options) -> None:
    """Metrics, anchors, scales and scores of a fit against the transcription on the same source lists."""
    names = {"high", "t", "ridge", "ridge_mode", "anchor", "kappa", "tau"}
    fitting = {name: value for name, value in options.items() if name in names}
    expected = plain.fit(
        rows_of(train, standard=standard), train.labels.numpy(), train.offsets.numpy(), ranker.sources.numpy(),
        scatter_form=options.get("scatter", "mean"), **fitting,
    )  # fmt: skip
    actual, limit = state(ranker, train), tolerance(ranker)
    close(actual.metrics, expected.metrics, limit, "metrics")
    close(actual.anchors, expected.anchors, limit, "anchors")
    close(actual.tau, expected.tau, limit, "tau")
    weights = np.ones(len(expected.tau)) if rows_of_weights is None else rows_of_weights
    scoring = {"kernel": options.get("kernel", "distance"), "beta": options.get("beta", 2.0)}
    rows = rows_of(train, test, standard=standard)
    right = plain.scores(expected, rows, test.offsets.numpy(), weights, **scoring)
    close(scores_of(ranker, test), right, max(4 * limit, 2e-6), "scores")  # of rows in float32
