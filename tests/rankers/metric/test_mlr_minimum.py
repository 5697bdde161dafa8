"""MLR, RMLR, SVMMap and RankSVM against an interior-point method on the same training problems; their certificates."""

import warnings

import numpy as np
import pytest
import torch

from torchrank import MLR, RMLR, ConvergenceWarning, RankingSet, RankSVM, SVMMap
from torchrank.data.relevance import Judged, SameClass
from torchrank.functional import most_violated
from torchrank.solvers.metric_scores import (
    add_diagonal_psi,
    add_linear_psi,
    add_metric_psi,
    linear_scores,
    metric_scores,
)

pytest.importorskip("cvxpy")

from tests.reference.mlr_programs import Program, lists_of

pytestmark = pytest.mark.peers
MEASURES = ["auc", "map", "mrr", "precision", "ndcg"]
WIDTH = 3


def points(seed: int, count: int = 12) -> torch.Tensor:
    """Three classes along the first feature, the second says little, the third nothing. On a grid: sums are exact."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, WIDTH)) * [0.7, 1.0, 1.3]
    x[:, 0] += 2.0 * (np.arange(count) % 3)
    return torch.tensor(np.round(16 * x) / 16, dtype=torch.float32)


def classes(seed: int = 0, order=None, shift: float = 0.0) -> RankingSet:
    """Twelve points that rank each other; with `order`, the rows of the corpus in another order."""
    x, codes = points(seed) + shift, torch.arange(12) % 3
    order = torch.arange(12) if order is None else torch.tensor(order)
    return RankingSet(x[order], SameClass(codes, codes[order], tuple("abc"), own=torch.argsort(order)), queries=x)


def judged(seed: int = 1) -> RankingSet:
    """Query vectors outside of the corpus, relevance by lists of their own, one query without a relevant point."""
    rng = np.random.default_rng(seed)
    x, queries = points(seed), points(seed + 50, 7)
    nearest = [np.argsort(((x - q) ** 2 * torch.tensor([4, 1, 0.2])).sum(1).numpy())[:5] for q in queries]
    rows = [np.sort(rng.permutation(near)[: 0 if q == 3 else 3]) for q, near in enumerate(nearest)]
    relevance = Judged.make(np.concatenate(rows), np.ones(18), np.array([len(part) for part in rows]), len(x))
    return RankingSet(x, relevance, queries=queries)


def graded(seed: int = 2, vectors: bool = True) -> RankingSet:
    """Lists of 2..9 candidates of grades 0..3, some of one grade; with query vectors and a corpus, or rows alone."""
    rng = np.random.default_rng(seed)
    lengths = np.array([7, 2, 9, 6, 8, 5, 9, 1, 0, 6])
    offsets, total = torch.tensor(np.concatenate([[0], np.cumsum(lengths)])), lengths.sum()
    x = points(seed, 12 if vectors else int(total))
    index = torch.tensor(np.concatenate([rng.permutation(12)[:n] for n in lengths])) if vectors else None
    queries = points(seed + 50, len(lengths)) if vectors else None
    rows = x[index] if vectors else x
    gaps = (rows - torch.repeat_interleave(queries, offsets.diff(), dim=0)).square() if vectors else -rows
    signal = -(gaps @ torch.tensor([1.0, 0.3, 0.0])).numpy() + rng.normal(size=total)
    labels = np.digitize(signal, np.quantile(signal, [0.4, 0.7, 0.9])).astype(np.float32)
    return RankingSet(x, torch.tensor(labels), offsets, index=index, queries=queries)


def fit(cls, train, documents: int = 1000, **options):
    return cls(WIDTH, **{"transform": None, "rounds": 400} | options).fit(train, batch_documents=documents)


def learned(ranker) -> np.ndarray:
    return (ranker.weight if isinstance(ranker, SVMMap) else ranker.metric).detach().double().numpy()


def check(cls, train, program: Program, documents: int = 1000, accuracy: float = 1e-3, **options):
    """The minimum of the interior-point method to `accuracy`, a metric in the cone, and bounds that tell the truth."""
    best, where = program.minimum()
    eps = float(accuracy * best / program.C)
    ranker = fit(cls, train, documents, eps=eps, C=program.C, **options)
    w = learned(ranker)
    assert program.value(w) == pytest.approx(best, rel=1.01 * accuracy)
    upper, lower = (ranker.certificate.bounds[name] for name in ("upper", "lower"))
    assert ranker.certificate.limit == pytest.approx(program.C * eps)
    assert upper == pytest.approx(program.value(w), rel=1e-9)
    assert lower <= best * (1 + 1e-7) and best <= upper * (1 + 1e-7)
    assert ranker.converged and 0 <= ranker.certificate.found <= ranker.certificate.limit
    if w.ndim == 2:
        np.testing.assert_array_equal(w, w.T)
        assert np.linalg.eigvalsh(w).min() > -1e-12 * max(1, np.trace(w))
    elif not isinstance(ranker, SVMMap):
        assert w.min() >= 0
    if (
        program.regulariser in ("fro", "linear") or program.anchor is not None
    ):  # strictly convex: F - F* >= |W - W*|^2 / 2
        assert ((w - where) ** 2).sum() / 2 <= 1.01 * accuracy * best
    return ranker


# ---- the minimum ------------------------------------------------------------------------------------------------


def cut_off(measure: str) -> int | None:
    return 3 if measure in ("precision", "ndcg") else None


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(("regulariser", "C"), [("trace", 8.0), ("fro", 8.0), ("l21", 20.0), ("diagonal", 8.0)])
def test_mlr_reaches_the_minimum_of_the_programme(regulariser, C, measure):
    """Where W is not 0, with every regulariser and measure; k is 3."""
    cls, options = (RMLR, {"lam": 0.5}) if regulariser == "l21" else (MLR, {"regulariser": regulariser})
    program = Program(lists_of(classes()), C, regulariser, measure, cut_off(measure), lam=0.5)
    ranker = check(cls, classes(), program, accuracy=1e-5, measure=measure, **options)
    assert ranker.certificate.bounds["upper"] < 0.95 * program.value(np.zeros(program.shape))  # not the trivial problem


@pytest.mark.parametrize(("regulariser", "C"), [("trace", 1.0), ("trace", 300.0), ("l21", 300.0), ("fro", 0.05)])
def test_with_little_and_with_much_regularisation_too(regulariser, C):
    program = Program(lists_of(classes(3)), C, regulariser, "map", lam=0.1)
    check(MLR, classes(3), program, regulariser=regulariser, lam=0.1)


@pytest.mark.parametrize("measure", ["auc", "mrr", "precision"])
def test_queries_outside_of_the_corpus_have_the_same_minimum(measure):
    """The query without a relevant point does not count in the mean."""
    assert len(lists_of(judged())) == 6
    check(MLR, judged(), Program(lists_of(judged()), 20.0, "trace", measure, 2), measure=measure, k=2)


@pytest.mark.parametrize(
    ("measure", "k", "threshold"), [("map", None, 2), ("map", None, "sweep"), ("ndcg", 4, "sweep"), ("ndcg", 5, 1)]
)
def test_graded_candidates_have_the_same_minimum(measure, k, threshold):
    program = Program(lists_of(graded(), threshold), 15.0, "trace", measure, k)
    check(MLR, graded(), program, measure=measure, k=k, threshold=threshold)


@pytest.mark.parametrize("anchor", [0.3, [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.0]]], ids=["number", "matrix"])
def test_an_anchor_has_the_same_minimum(anchor):
    centre = anchor * np.eye(WIDTH) if isinstance(anchor, float) else np.array(anchor)
    program = Program(lists_of(classes()), 1.0, "fro", "precision", 3, anchor=centre)
    check(MLR, classes(), program, measure="precision", regulariser="fro", anchor=anchor)


JOINED = [[1.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.5]]  # every feature with another


@pytest.mark.parametrize(
    ("measure", "C", "lam", "anchor"),
    [("map", 1.0, 0.05, 1.0), ("auc", 8.0, 0.2, 1.0), ("ndcg", 3.0, 0.1, 0.3), ("map", 2.0, 0.1, JOINED)],
    ids=["map", "auc", "ndcg", "matrix"],
)
def test_rmlr_with_an_anchor_has_the_same_minimum(measure, C, lam, anchor):
    """To a millionth."""
    centre = anchor * np.eye(WIDTH) if isinstance(anchor, float) else np.array(anchor)
    program = Program(lists_of(classes()), C, "l21", measure, cut_off(measure), lam, centre)
    ranker = check(RMLR, classes(), program, accuracy=1e-6, measure=measure, lam=lam, anchor=anchor)
    assert ranker.certificate.bounds["upper"] < 0.999 * program.value(centre)  # W is not the anchor


@pytest.mark.parametrize("seed", range(4))
def test_the_certificate_with_an_anchor_holds_whatever_the_problem(seed):
    """Random anchors, weights and data; fits that are cut short too."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(WIDTH, rng.integers(1, WIDTH + 1)))
    centre = np.eye(WIDTH) if seed == 0 else root @ root.T
    C, lam, measure = float(np.exp(rng.uniform(-3, 4))), float(np.exp(rng.uniform(-4, 0))), MEASURES[seed]
    program = Program(lists_of(graded(seed)), C, "l21", measure, cut_off(measure), lam, centre)
    best, _ = program.minimum()
    given = {"C": C, "lam": lam, "measure": measure, "anchor": centre.tolist()}
    for eps, rounds in ((0.3, 400), (1e-2, 400), (1e-4, 400), (1e-9, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            ranker = fit(RMLR, graded(seed), eps=eps, rounds=rounds, **given)
        upper, lower = (ranker.certificate.bounds[name] for name in ("upper", "lower"))
        assert lower <= best * (1 + 1e-7) + 1e-9 and best <= upper * (1 + 1e-7) + 1e-9
        assert upper == pytest.approx(program.value(learned(ranker)), rel=1e-9)
        assert np.linalg.eigvalsh(learned(ranker)).min() > -1e-12 * max(1, np.trace(learned(ranker)))
        assert ranker.certificate.proved or rounds == 3


@pytest.mark.parametrize(("measure", "C"), [*((measure, 10.0) for measure in MEASURES), ("map", 0.3)])
def test_svmmap_reaches_the_minimum_of_the_programme(measure, C):
    train = graded(vectors=False)
    program = Program(lists_of(train), C, "linear", measure, cut_off(measure))
    check(SVMMap, train, program, accuracy=1e-5, measure=measure)


def test_ranksvm_reaches_the_minimum_of_the_programme():
    """By the sum over pairs too: |w|^2 / 2 + C mean over lists of the mean of max(0, 1 - 2 margin)."""
    train = graded(5, vectors=False)
    program = Program(lists_of(train, "sweep"), 5.0, "linear", "auc")
    ranker = check(RankSVM, train, program, threshold="sweep")
    w, hinges = learned(ranker), []
    for _, rows, thresholds in program.lists:
        scores = rows @ w
        hinges.append(np.mean([np.maximum(0, 1 - 2 * (scores[r][:, None] - scores[~r])).mean() for r in thresholds]))
    assert ranker.certificate.bounds["upper"] == pytest.approx(w @ w / 2 + 5 * np.mean(hinges), rel=1e-9)


def test_a_linear_model_with_query_vectors_has_the_same_minimum():
    """Of |q - x|, feature by feature."""
    check(SVMMap, judged(), Program(lists_of(judged()), 3.0, "linear", "map"))


# ---- laws -------------------------------------------------------------------------------------------------------


def flat_copy(train) -> RankingSet:
    batch = train[:].flat()
    return RankingSet(batch.x, batch.labels, batch.offsets, queries=batch.queries)


@pytest.mark.parametrize(
    "change",
    ["the paper's algorithm", "order of the corpus", "shift of the points", "three queries at a time", "flat copy"],
)
def test_the_minimum_does_not_depend_on(change):
    train = {
        "order of the corpus": classes(4, np.random.default_rng(5).permutation(12)),
        "shift of the points": classes(4, shift=8.0),
        "flat copy": flat_copy(classes(4)),
    }.get(change, classes(4))
    options = {"stabilise": 1.0} if change == "the paper's algorithm" else {}
    documents = 33 if change == "three queries at a time" else 1000
    check(MLR, train, Program(lists_of(classes(4)), 10.0, "fro", "map"), documents, regulariser="fro", **options)


@pytest.mark.parametrize("eps", [1e-1, 1e-2])
def test_the_certificate_of_a_loose_fit_holds(eps):
    """The bounds hold whatever eps is."""
    program = Program(lists_of(classes(6)), 10.0, "trace", "map")
    ranker, (best, _) = fit(MLR, classes(6), C=10.0, eps=eps), program.minimum()
    upper, lower = (ranker.certificate.bounds[name] for name in ("upper", "lower"))
    assert lower <= best * (1 + 1e-7) and best <= upper * (1 + 1e-7) and upper - lower <= 10 * eps
    assert upper == pytest.approx(program.value(learned(ranker)), rel=1e-9)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("regulariser", ["trace", "l21", "diagonal"])
def test_zero_is_the_minimum_for_a_small_C(measure, regulariser):
    """The fit says so, and the programme agrees: F is C times the largest Delta."""
    with pytest.warns(ConvergenceWarning, match="W = 0"):
        ranker = fit(MLR, classes(), measure=measure, C=0.01, regulariser=regulariser)
    assert not ranker.metric.any() and ranker.converged
    program = Program(lists_of(classes()), 0.01, regulariser, measure, 3, lam=1.0)
    assert program.minimum()[0] == pytest.approx(program.value(np.zeros(program.shape)), rel=1e-7)


# ---- slopes of F ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("model", ["metric", "diagonal", "linear"])
def test_delta_psi_is_the_slope_of_the_hinges(measure, model):
    """-C times the mean of delta psi at a generic W is the slope of the hinges of F in every direction."""
    train = classes(7) if model != "linear" else graded(8, vectors=False)
    program = Program(lists_of(train), 3.0, "trace" if model == "metric" else model, measure, 3)
    rng, batch = np.random.default_rng(9), train[:]
    w, direction = (rng.normal(size=program.shape) for _ in range(2))
    w, direction = (w @ w.T / 4, direction + direction.T) if model == "metric" else (abs(w) / 4, direction)
    score = linear_scores if model == "linear" else metric_scores
    add = {"metric": add_metric_psi, "diagonal": add_diagonal_psi, "linear": add_linear_psi}[model]
    c, loss = most_violated(score(batch, torch.tensor(w)), batch.labels, batch.offsets, measure=measure, k=3)
    into = torch.zeros(program.shape, dtype=torch.float64)
    add(batch, c, into)
    psi, count = into.numpy() / len(program.lists), len(program.lists)
    hinges = program.value(w) - program.omega(w)
    assert 3 * (loss.sum().item() / count - (psi * w).sum()) == pytest.approx(hinges, rel=1e-10)
    up, down = (
        program.value(w + sign * 1e-6 * direction) - program.omega(w + sign * 1e-6 * direction) for sign in (1, -1)
    )
    assert (up - down) / 2e-6 == pytest.approx(-3 * (psi * direction).sum(), abs=1e-7)
