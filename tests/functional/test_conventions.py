"""`evaluate`: each named convention against the tool it is named after, list by list, and what it refuses.

LightGBM and XGBoost are asked for their metric on given scores: a booster without trees predicts its initial score.
XGBoost and trec_eval hold scores in float32; the random scores here are float32 numbers, so all tools see the same
order. All of them sum in float64: 1e-9 throughout.
"""

import math
import os

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.laws.elsewhere import Elsewhere
from tests.reference import measures as reference
from tests.reference.measures import tensors
from torchrank import functional as F
from torchrank.functional import CONVENTIONS, conventions, describe, evaluate

NAMES = ["default", "letor", "lightgbm", "xgboost", "trec", "sklearn"]
CUTS = [1, 2, 3, 5, 10, 15]
SCORES = torch.tensor([3.0, 1.0, 1.0, 2.0, 0.5, 0.5, 0.5, 4.0, 1.0], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1, 0, 1, 0, 3, 0, 0])
OFFSETS = torch.tensor([0, 4, 4, 7, 9])
BATCH = (SCORES, LABELS, OFFSETS)


def lists(seed, *, shortest=1, binary=False):
    """A random batch, flat and as a list of (scores, labels), without the short lists that a tool does not take."""
    scores, labels, offsets = reference.random_batch(seed, lists=50)
    blocks = [block for block in reference.blocks(offsets) if block.stop - block.start >= shortest]
    each = [(scores[block], np.minimum(labels[block], 1) if binary else labels[block]) for block in blocks]
    flat = np.concatenate([s for s, _ in each]), np.concatenate([y for _, y in each])
    return (*flat, np.cumsum([0] + [len(s) for s, _ in each])), each


def assert_equal(actual: dict, expected: list[dict], atol=1e-9):
    assert expected and set(actual) == set(expected[0])
    for name, values in actual.items():
        np.testing.assert_allclose(values.numpy(), [row[name] for row in expected], rtol=0, atol=atol, err_msg=name)


# --- default ---


def default_values(scores, labels, threshold=1, max_label=4):
    """All measures of one list by the transcription, named as `evaluate` names them."""
    values = {
        "ndcg": reference.ndcg(scores, labels),
        "mean_ndcg": reference.mean_ndcg(scores, labels),
        "map": reference.average_precision(scores, labels, threshold=threshold),
        "mrr": reference.reciprocal_rank(scores, labels, threshold=threshold),
        "err": reference.err(scores, labels, max_label=max_label),
        "auc": reference.auc(scores, labels, threshold=threshold),
        "domination_error": reference.domination_error(scores, labels),
        "all_pairs_error": reference.all_pairs_error(scores, labels),
    }
    for k in CUTS:
        values[f"ndcg@{k}"] = reference.ndcg(scores, labels, k=k)
        values[f"map@{k}"] = reference.average_precision(scores, labels, k=k, threshold=threshold)
        values[f"p@{k}"] = reference.precision(scores, labels, k=k, threshold=threshold)
        values[f"recall@{k}"] = reference.recall(scores, labels, k=k, threshold=threshold)
        values[f"mrr@{k}"] = reference.reciprocal_rank(scores, labels, k=k, threshold=threshold)
        values[f"err@{k}"] = reference.err(scores, labels, k=k, max_label=max_label)
    return values


@pytest.mark.parametrize("threshold", [None, 1, 2])
def test_default(threshold):
    scores, labels, offsets = reference.random_batch(40)
    blocks = reference.blocks(offsets)
    expected = [default_values(scores[b].tolist(), labels[b].tolist(), threshold or 1) for b in blocks]
    actual = evaluate(*tensors(scores, labels, offsets), measures=tuple(expected[0]), threshold=threshold, max_label=4)
    assert_equal(actual, expected, atol=1e-12)


def test_default_measures_and_their_order():
    batch = tensors(*reference.random_batch(41))
    assert list(evaluate(*batch)) == ["ndcg@1", "ndcg@5", "ndcg@10", "map", "mrr"]
    assert list(evaluate(*batch, measures=("mrr", "ndcg@7"))) == ["mrr", "ndcg@7"]


def test_tiebreak_orders_equal_scores_by_the_smaller_number():
    scores, labels, offsets = reference.random_batch(49)
    tiebreak = np.random.default_rng(49).permutation(len(scores))
    moved = np.concatenate([block.start + np.argsort(tiebreak[block]) for block in reference.blocks(offsets)])
    expected = [default_values(scores[moved[b]].tolist(), labels[moved[b]].tolist()) for b in reference.blocks(offsets)]
    measures = tuple(expected[0])
    batch = tensors(scores, labels, offsets)
    actual = evaluate(*batch, measures=measures, max_label=4, tiebreak=torch.tensor(tiebreak))
    assert_equal(actual, expected, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "trec"])
def test_what_is_known_of_lists_changes_nothing(name):
    batch = tensors(*reference.random_batch(42))
    plain = evaluate(*batch, measures=("ndcg@1", "ndcg@5", "ndcg"), convention=name)
    lists = F.Lists(batch[2], len(batch[1]), longest=12, grades=5)
    counted = evaluate(*batch[:2], lists, measures=("ndcg@1", "ndcg@5", "ndcg"), convention=name)
    for key, value in plain.items():
        torch.testing.assert_close(counted[key], value, rtol=0, atol=0, equal_nan=True)


class Sorts(TorchDispatchMode):
    """Counts sorts of all entries."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function.name() in ("aten::sort", "aten::sort.stable") and len(arguments[0]) == len(SCORES)
        return function(*arguments, **options or {})


def test_one_sort_for_all_cutoffs():
    scores, labels = SCORES.float(), LABELS + 0.5  # which are not sorted for an ideal order
    with Elsewhere(), Sorts() as sorts:  # on the CPU numpy sorts
        evaluate(scores, labels, OFFSETS, measures=["map", "map@1", "mrr", "p@5", "hit@3", "err"], max_label=4)
    assert sorts.count == 1


@pytest.mark.parametrize("longest", [1, 9, 70_000])
@pytest.mark.parametrize("convention", ["default", "trec"])
def test_large_batches_give_the_values_of_their_lists(longest, convention):
    """More entries than are ranked at once, in lists of all lengths, one of them longer than the rest together."""
    draw = np.random.default_rng(longest)
    lengths = torch.tensor([*draw.integers(0, longest + 1, 450_000 // longest), 250_000])
    bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    count = int(bounds[-1])
    scores, labels = torch.tensor(draw.normal(size=count)).float(), torch.tensor(draw.integers(0, 4, count))
    given = {"measures": ["ndcg@2", "map", "mrr"], "convention": convention}
    tiebreak = torch.tensor(draw.permutation(count))
    values = evaluate(scores, labels, bounds, tiebreak=tiebreak, **given)
    for q in (0, 1, 2, len(lengths) // 3, len(lengths) // 2, len(lengths) - 2, len(lengths) - 1):
        part = slice(int(bounds[q]), int(bounds[q + 1]))
        alone = evaluate(scores[part], labels[part], group=lengths[q : q + 1], tiebreak=tiebreak[part], **given)
        for name, value in alone.items():
            torch.testing.assert_close(values[name][q], value[0], rtol=0, atol=1e-12, equal_nan=True)


def test_values_are_float64_for_any_scores():
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert {value.dtype for value in evaluate(SCORES.to(dtype), LABELS, OFFSETS).values()} == {torch.float64}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_measure_of_a_convention_runs_on_meta_tensors(name):
    cut = {family: "@3" for family in ("p", "recall", "knn_error")}
    measures = [family + cut.get(family, "") for family in CONVENTIONS[name].measures] + ["ndcg@1", "ndcg@5"]
    meta = [part.to("meta") for part in BATCH]
    given = {"tiebreak": meta[1], "classes": meta[1], "query_classes": meta[2][1:]}
    values = evaluate(*meta, measures=measures, convention=name, max_label=3, **given)
    assert all(value.shape == (4,) and value.device.type == "meta" for value in values.values())


def test_evaluate_equals_the_single_functions():
    names = ["ndcg", "ndcg@2", "ndcg@100", "mean_ndcg", "map", "map@2", "p@2", "recall@2", "mrr", "mrr@1"]
    found = evaluate(
        *BATCH, measures=[*names, "err@3", "err", "auc", "domination_error", "all_pairs_error"], max_label=3
    )
    expected = [
        F.ndcg(*BATCH),
        F.ndcg(*BATCH, k=2),
        F.ndcg(*BATCH, k=100),
        F.mean_ndcg(*BATCH),
        F.average_precision(*BATCH),
        F.average_precision(*BATCH, k=2),
        F.precision(*BATCH, k=2),
        F.recall(*BATCH, k=2),
        F.reciprocal_rank(*BATCH),
        F.reciprocal_rank(*BATCH, k=1),
        F.err(*BATCH, max_label=3, k=3),
        F.err(*BATCH, max_label=3),
        F.auc(*BATCH),
        F.domination_error(*BATCH),
        F.all_pairs_error(*BATCH),
    ]
    for value, (name, other) in zip(expected, found.items(), strict=True):
        torch.testing.assert_close(other, value, rtol=0, atol=0, equal_nan=True, msg=name)


# --- letor ---


def letor_script(scores, labels, relevant_from):
    """What Eval-Score-4.0.pl counts for one query: gain 2^l - 1, discounts 1, 1, 1/log2(3), ... to the end of the list.

    A cut-off beyond the list is never computed, so it adds 0 to the average over queries. P@k divides by k. Without a
    relevant document everything is 0.
    """
    ranked = [labels[i] for i in sorted(range(len(scores)), key=lambda i: -scores[i])]  # stable, like Perl's merge sort

    def running_dcg(grades):
        sums = []
        for position, grade in enumerate(grades):  # the script counts from 0: log2 of position + 1 from the third on
            gain = 2**grade - 1
            discounted = gain if position < 2 else gain * math.log(2) / math.log(position + 1)
            sums.append(discounted + (sums[-1] if sums else 0))
        return sums

    ideal = running_dcg(sorted(labels, reverse=True))
    ndcg = [d / i if i != 0 else 0 for d, i in zip(running_dcg(ranked), ideal, strict=True)]
    found, precisions, hits = 0, [], []
    for position in range(max(max(CUTS), len(ranked))):
        hit = position < len(ranked) and ranked[position] >= relevant_from
        found += hit
        precisions.append(found / (position + 1))
        hits.append(hit)
    values = {f"ndcg@{k}": ndcg[k - 1] if k <= len(ndcg) else 0 for k in CUTS}
    values |= {f"p@{k}": precisions[k - 1] for k in CUTS}
    values["map"] = sum(p for p, hit in zip(precisions, hits, strict=True) if hit) / found if found else 0
    values["mean_ndcg"] = sum(ndcg) / len(ndcg)
    return values


@pytest.mark.parametrize("threshold", [None, 2])
def test_letor(threshold):
    """Relevant is a label of at least 1, in the script of the MSLR sets of at least 2."""
    batch, each = lists(43)
    expected = [letor_script(s, y, threshold or 1) for s, y in each]
    actual = evaluate(*tensors(*batch), measures=tuple(expected[0]), convention="letor", threshold=threshold)
    assert_equal(actual, expected)


def test_letor_counts_short_lists_as_zero():
    values = evaluate(*BATCH, measures=["ndcg@3", "ndcg@4"], convention="letor")
    assert values["ndcg@4"][2].item() == 0 < values["ndcg@3"][2].item()


def test_threshold_replaces_that_of_the_convention():
    two = evaluate(*BATCH, measures=["map", "p@2", "ndcg@2"], convention="letor", threshold=2)
    expected = reference.per_list(reference.average_precision, *BATCH, threshold=2, empty=0)
    assert two["map"].tolist() == pytest.approx(expected.tolist())
    assert two["p@2"].tolist() == [0.0, 0.0, 0.0, 0.0]
    one = evaluate(*BATCH, measures=["ndcg@2"], convention="letor")
    assert two["ndcg@2"].tolist() == one["ndcg@2"].tolist()  # graded, so it does not depend on the threshold


# --- lightgbm ---


def lightgbm_values(scores, labels, lengths, measure, cuts):
    """What LightGBM prints for lists of these lengths."""
    lightgbm = pytest.importorskip("lightgbm")
    options = {"verbose": -1, "num_threads": 1, "feature_pre_filter": False, "min_data_in_bin": 1}
    rows = np.zeros((len(scores), 1))
    data = lightgbm.Dataset(rows, label=labels, group=lengths, init_score=scores, params=options)
    booster = lightgbm.Booster({**options, "objective": "lambdarank", "metric": measure, "eval_at": cuts}, data)
    return {name: value for _, name, value, _ in booster.eval_train()}


@pytest.mark.peers
@pytest.mark.parametrize("measure", ["ndcg", "map"])
def test_lightgbm(measure):
    batch, each = lists(44)
    expected = [lightgbm_values(s, y, [len(s)], measure, [*CUTS, 1000]) for s, y in each]
    for row in expected:
        row[measure] = row.pop(f"{measure}@1000")  # no list is that long
    assert_equal(evaluate(*tensors(*batch), measures=tuple(expected[0]), convention="lightgbm"), expected)


@pytest.mark.peers
def test_lightgbm_mean_over_queries():
    """The number LightGBM prints for a whole data set is the mean of ours, empty queries included as 1."""
    (scores, labels, offsets), _ = lists(45)
    printed = lightgbm_values(scores, labels, np.diff(offsets), ["ndcg", "map"], [1, 5, 10])
    ours = evaluate(*tensors(scores, labels, offsets), measures=tuple(printed), convention="lightgbm")
    for name, value in printed.items():
        assert ours[name].mean().item() == pytest.approx(value, abs=1e-9), name


def test_lightgbm_relevance_is_above_one_half():
    labels = torch.tensor([0.5, 0.5000001, 0.0])
    scores, offsets = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 3])
    assert evaluate(scores, labels, offsets, measures=["map"], convention="lightgbm")["map"].item() == 0.5


@pytest.mark.peers
@pytest.mark.skipif("TORCHRANK_DATA" not in os.environ, reason="TORCHRANK_DATA (the folder of real data) is not set")
def test_lightgbm_on_its_own_example():
    """Real labels and long tied blocks: scores are one rounded feature of LightGBM's lambdarank example."""
    from sklearn.datasets import load_svmlight_file

    root = os.environ["TORCHRANK_DATA"]
    paths = [os.path.join(folder, "rank.test") for folder, _, files in os.walk(root) if "rank.test" in files]
    if not paths:
        pytest.skip(f"no rank.test (LightGBM's lambdarank example) below {root}")
    rows, labels = load_svmlight_file(paths[0])
    lengths = np.loadtxt(paths[0] + ".query", dtype=np.int64)
    scores = np.round(np.asarray(rows[:, 0].todense()).ravel(), 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    expected = [
        lightgbm_values(scores[b], labels[b], [b.stop - b.start], "ndcg", [1, 5, 10]) for b in reference.blocks(offsets)
    ]
    actual = evaluate(*tensors(scores, labels, offsets), measures=tuple(expected[0]), convention="lightgbm")
    assert_equal(actual, expected)


# --- xgboost ---


def xgboost_values(scores, labels, measures):
    xgboost = pytest.importorskip("xgboost")
    data = xgboost.DMatrix(np.zeros((len(scores), 1)), label=labels, base_margin=scores)
    data.set_group([len(scores)])
    booster = xgboost.Booster({"objective": "rank:ndcg", "eval_metric": measures, "nthread": 1}, [data])
    fields = booster.eval(data).split("\t")[1:]  # "[0]", then "eval-ndcg@5:0.5"
    return {name: float(value) for name, value in (field.removeprefix("eval-").rsplit(":", 1) for field in fields)}


@pytest.mark.peers
@pytest.mark.parametrize("suffix", ["", "-"])
@pytest.mark.parametrize("measure", ["ndcg", "map"])
def test_xgboost(measure, suffix):
    """XGBoost's own suffix "-": a list without relevant entries counts 0, not 1. Its map takes binary labels only."""
    batch, each = lists(46, binary=measure == "map")
    names = [f"{measure}{suffix}", *(f"{measure}@{k}{suffix}" for k in CUTS)]
    expected = [xgboost_values(s, y, names) for s, y in each]
    assert_equal(evaluate(*tensors(*batch), measures=tuple(names), convention="xgboost"), expected)


def test_xgboost_sees_scores_in_float32():
    lists = torch.tensor([1.0, 1.0 + 1e-9], dtype=torch.float64), torch.tensor([0, 1]), torch.tensor([0, 2])
    assert evaluate(*lists, measures=["ndcg"], convention="lightgbm")["ndcg"] == 1
    assert evaluate(*lists, measures=["ndcg"], convention="xgboost")["ndcg"].item() == pytest.approx(0.6309297535714575)
    assert "rounding to float32" in describe("xgboost")


# --- trec ---

TREC_CUTS = {"ndcg": "ndcg_cut", "map": "map_cut", "p": "P", "recall": "recall"}
TREC = {"ndcg": "ndcg", "map": "map", "mrr": "recip_rank"}
TREC |= {f"{ours}@{k}": f"{theirs}_{k}" for ours, theirs in TREC_CUTS.items() for k in CUTS}


def trec_values(each, documents):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    judged, found = {}, {}
    for q, ((scores, labels), names) in enumerate(zip(each, documents, strict=True)):
        judged[f"q{q}"] = {name: int(y) for name, y in zip(names, labels, strict=True)}
        found[f"q{q}"] = {name: float(s) for name, s in zip(names, scores, strict=True)}
    cuts = ",".join(map(str, CUTS))
    wanted = {"ndcg", "map", "recip_rank", *(f"{name}.{cuts}" for name in TREC_CUTS.values())}
    results = pytrec_eval.RelevanceEvaluator(judged, wanted).evaluate(found)
    return [{ours: results[f"q{q}"][theirs] for ours, theirs in TREC.items()} for q in range(len(each))]


def descending(documents):
    """For every entry its place when the ids of its list are sorted descending."""
    return torch.tensor([sorted(names, reverse=True).index(name) for names in documents for name in names])


@pytest.mark.peers
def test_trec():
    rng = np.random.default_rng(47)
    batch, each = lists(47)
    documents = [[f"doc{i}" for i in rng.permutation(100)[: len(s)]] for s, _ in each]
    actual = evaluate(*tensors(*batch), measures=tuple(TREC), convention="trec", tiebreak=descending(documents))
    assert_equal(actual, trec_values(each, documents))


@pytest.mark.peers
def test_trec_rounds_scores_to_float32():
    """1 + 1e-9 is 1 in float32, so the ids decide: z before b before a."""
    each = [(np.array([1.0, 1 + 1e-9, 1.0]), np.array([0.0, 2.0, 1.0]))]
    documents = [["z", "a", "b"]]
    actual = evaluate(
        *tensors(*each[0], np.array([0, 3])), measures=tuple(TREC), convention="trec", tiebreak=descending(documents)
    )
    assert_equal(actual, trec_values(each, documents))
    assert actual["mrr"].item() == 0.5


def test_trec_without_document_ids_says_so():
    with pytest.raises(ValueError, match=r"(?i)\bids?\b|tiebreak"):
        evaluate(*tensors(np.ones(2), np.ones(2), np.array([0, 2])), measures=("map",), convention="trec")


def test_tiebreak_orders_equal_scores():
    scores, labels, offsets = torch.zeros(3), torch.tensor([0, 0, 1]), torch.tensor([0, 3])
    for tiebreak, value in (([2, 1, 0], 1), ([0, 2, 1], 1 / 2), ([0, 1, 2], 1 / 3)):
        found = evaluate(scores, labels, offsets, measures=["mrr"], convention="trec", tiebreak=torch.tensor(tiebreak))
        assert found["mrr"].item() == pytest.approx(value)


# --- sklearn ---


@pytest.mark.peers
def test_sklearn():
    """scikit-learn refuses a list of one entry, so there is none here."""
    metrics = pytest.importorskip("sklearn.metrics")
    batch, each = lists(48, shortest=2)
    expected = []
    for s, y in each:
        row = {f"ndcg@{k}": metrics.ndcg_score([y], [s], k=k) for k in CUTS}
        expected.append({**row, "ndcg": metrics.ndcg_score([y], [s])})
    assert_equal(evaluate(*tensors(*batch), measures=tuple(expected[0]), convention="sklearn"), expected)


# --- refusals and texts ---


@pytest.mark.parametrize("measure", ["map", "mrr", "p@5", "recall@5", "err@5", "auc", "mean_ndcg"])
def test_sklearn_defines_ndcg_only(measure):
    with pytest.raises(ValueError, match=f"convention='sklearn' does not define '{measure}', only ndcg"):
        evaluate(*BATCH, measures=(measure,), convention="sklearn", max_label=1)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "default"])
def test_domination_error_is_in_no_tool(name):
    with pytest.raises(ValueError, match=f"convention='{name}' does not define 'domination_error'"):
        evaluate(*BATCH, measures=("domination_error",), convention=name, tiebreak=torch.arange(9))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("xgboost", "sklearn")])
def test_the_minus_is_a_name_of_xgboost_alone(name):
    with pytest.raises(ValueError, match=f"use convention=\"xgboost\", got '{name}'"):
        evaluate(*BATCH, measures=("ndcg@5-",), convention=name, tiebreak=torch.arange(9))


def test_a_convention_defines_what_it_can_measure():
    """`defines` says no to exactly those known measures that `evaluate` refuses."""
    measures = [
        "ndcg",
        "ndcg@5",
        "ndcg@5-",
        "map-",
        "map@5",
        "mean_ndcg",
        "p@5",
        "recall@5",
        "mrr",
        "mrr@5",
        "err",
        "auc",
    ]
    for name in NAMES:
        for measure in measures:
            try:
                evaluate(*BATCH, measures=[measure], convention=name, max_label=3, tiebreak=torch.arange(9))
            except ValueError:
                assert not conventions.defines(name, measure), (name, measure)
            else:
                assert conventions.defines(name, measure), (name, measure)
    with pytest.raises(ValueError, match="unknown measure 'ndgc'"):
        conventions.defines("default", "ndgc")


@pytest.mark.parametrize(("measure", "hint"), [("NDGC@5", "ndcg@5"), ("precison@3", "precision@3"), ("auc@5", None)])
def test_the_measure_that_was_meant(measure, hint):
    with pytest.raises(ValueError, match="unknown measure") as told:
        conventions.canonical(measure)
    assert str(told.value).endswith(f". Did you mean {hint}?") if hint else "Did you mean" not in str(told.value)


@pytest.mark.parametrize("measure", ["ndgc@5", "ndcg@", "ndcg@0", "ndcg@five", "ndcg@-1", "p", "auc@5", "knn_error"])
def test_an_unknown_measure_lists_the_known(measure):
    with pytest.raises(ValueError, match=f"unknown measure '{measure}': choose among ndcg@k, ndcg, mean_ndcg, .* p@k"):
        evaluate(*BATCH, measures=(measure,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measures": ["mrr@5"], "convention": "trec"}, "does not define 'mrr@5'"),
        ({"convention": "ranklib"}, "unknown convention='ranklib': choose one of default, letor, lightgbm"),
        ({"measures": ["err@10"]}, "err needs max_label, the top label of the data set"),
        ({"measures": ["map"], "convention": "trec"}, r"orders equal scores by document id.* give tiebreak \(N,\)"),
        ({"measures": "map"}, r"measures must be a list of names, \[\"map\"\], got 'map'"),
        ({"scores": SCORES * torch.nan}, "9 of 9 scores are NaN"),
    ],
)
def test_what_evaluate_refuses(options, message):
    batch = {"scores": SCORES, "labels": LABELS, "offsets": OFFSETS}
    with pytest.raises(ValueError, match=message):
        evaluate(**(batch | options))


def test_every_convention_describes_itself_in_one_line():
    assert sorted(CONVENTIONS) == sorted(NAMES)
    texts = [describe(name) for name in NAMES]
    assert len(set(texts)) >= 5  # a line may say the same of lightgbm and xgboost
    assert all(text.strip() and "\n" not in text for text in texts)


def test_describe():
    text = describe("letor", threshold=2)
    assert "1, 1, 1/log2(rank)" in text and "y>=2" in text and "count 0" in text and "shorter" in text
    assert "y>0.5" in describe("lightgbm") and "left out" in describe() and "document id" in describe("trec")
    assert "relevant y" not in describe("sklearn")
