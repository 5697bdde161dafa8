"""Laws of adapters: the order of the corpus, ranks beside whole rankings, half precision, and equal seeds."""

import numpy as np
import pytest
import torch

from torchrank import Adapter
from torchrank.data.sources.embeddings import load_embeddings
from torchrank.functional import evaluate
from torchrank.rankers.core.evaluation import SplitMeasures

WIDTH, DOCUMENTS, QUERIES = 8, 90, 60
MEASURES = ["ndcg@10", "map", "mrr", "p@5", "recall@20"]
NEGATIVES = ["mined", "random", "batch", "all"]


def drawn():
    """Vectors with every tenth document twice, so that there are ties, and three judgements of each query."""
    rng = np.random.default_rng(4)
    corpus = rng.standard_normal((DOCUMENTS, WIDTH))
    corpus[::10] = corpus[1::10]
    wanted = rng.integers(DOCUMENTS, size=QUERIES)
    queries = corpus[wanted] * rng.uniform(0.2, 1.5, WIDTH) + 0.5 * rng.standard_normal((QUERIES, WIDTH))
    others = [[int(wanted[q]), *rng.choice(np.delete(np.arange(DOCUMENTS), wanted[q]), 2)] for q in range(QUERIES)]
    return corpus, queries, others


def folder(base, order=None, dtype=np.float32):
    """The drawn vectors in a folder, the documents in this order."""
    corpus, queries, judged = drawn()
    order = np.arange(DOCUMENTS) if order is None else order
    base.mkdir()
    np.save(base / "corpus.npy", corpus[order].astype(dtype))
    np.save(base / "queries.npy", queries.astype(dtype))
    (base / "corpus.ids").write_text("".join(f"{row:03d}\n" for row in order))
    (base / "queries.ids").write_text("".join(f"{row}\n" for row in range(QUERIES)))
    lines = [f"{q}\t{row:03d}\t{2 - (place > 0)}\n" for q, rows in enumerate(judged) for place, row in enumerate(rows)]
    (base / "qrels.tsv").write_text("".join(lines))
    return load_embeddings(base, qrels="qrels.tsv")


def fitted(sets, **options):
    given = {"rounds": 6, "lr": 0.05, "num_negatives": 15, "batch_queries": 10} | options
    val = sets["val"] if "solver" in given else None  # without it the last round is kept, not the first
    return Adapter(WIDTH, **given).fit(sets["train"], val)


def measured(ranker, lists, ranks=False):
    """The values of every query by its id."""
    found = SplitMeasures(MEASURES, lists=lists)
    lists = lists.to("cpu", ranker.transform)
    batch = lists.judged()[:] if ranks else lists[:]
    found.update(ranker.corpus_ranks(batch) if ranks else ranker.score(batch), batch)
    values = found.conclude()[0]["default"]["per_query"]
    return {name: dict(zip(lists.query_ids, values[name].tolist(), strict=True)) for name in MEASURES}


@pytest.mark.parametrize("options", [{}, {"num_negatives": DOCUMENTS}, {"negatives": "batch"},
                                     {"negatives": "all", "side": "both", "rank": 3},
                                     {"solver": "gmml"}, {"similarity": "euclidean"}])  # fmt: skip
def test_the_order_of_the_corpus_does_not_matter(tmp_path, options):
    """But for which of two equal documents is mined last: here all of them are."""
    one = folder(tmp_path / "one")
    other = folder(tmp_path / "other", np.random.default_rng(1).permutation(DOCUMENTS))
    rankers = [fitted(sets, **options) for sets in (one, other)]
    for side in rankers[0].maps:
        torch.testing.assert_close(*(each.maps[side].matrix() for each in rankers), rtol=1e-6, atol=1e-8)
    for ranks in (False, True):
        values = [measured(ranker, sets["test"], ranks) for ranker, sets in zip(rankers, (one, other), strict=True)]
        for name in MEASURES:
            assert values[0][name] == pytest.approx(values[1][name], abs=1e-12)


@pytest.mark.parametrize("similarity", ["cosine", "inner", "euclidean"])
@pytest.mark.parametrize("rounds", [1, 6])
def test_ranks_give_the_measures_of_whole_rankings(tmp_path, similarity, rounds):
    """Those of numpy's order of all scores, in which equal ones rank by document id."""
    sets = folder(tmp_path / "data", np.random.default_rng(2).permutation(DOCUMENTS))
    ranker, test = fitted(sets, similarity=similarity, rounds=rounds), sets["test"]
    scores = ranker.score(test[:]).view(len(test), -1).numpy()
    place = np.argsort(np.argsort(np.array(test.document_ids)))
    order = np.stack([np.lexsort((place, -row)) for row in scores])
    falling = torch.arange(DOCUMENTS, 0, -1).double().repeat(len(test))
    labels = test[:].labels.view(len(test), -1).gather(1, torch.from_numpy(order)).flatten()
    wanted = evaluate(falling, labels, test.offsets, measures=MEASURES)
    for ranks in (False, True):
        found = measured(ranker, test, ranks)
        for name in MEASURES:
            np.testing.assert_allclose(list(found[name].values()), wanted[name], atol=1e-12)


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_two_fits_with_one_seed_are_equal(tmp_path, negatives):
    sets = folder(tmp_path / "data")
    one, other, third = (fitted(sets, negatives=negatives, seed=seed) for seed in (5, 5, 6))
    shifts = [each.maps["query"].shift for each in (one, other, third)]
    assert torch.equal(shifts[0], shifts[1]) and not torch.equal(shifts[0], shifts[2])


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_half_precision_differs_by_its_rounding_alone(tmp_path, negatives):
    """A fit to float16 is, to the bit, the fit to the same numbers in float32; scores differ by their rounding."""
    half = folder(tmp_path / "half", dtype=np.float16)
    widened = folder(tmp_path / "widened")
    for name, lists in widened.items():
        lists.x, lists.queries = half[name].x.float(), half[name].queries.float()
    exact = folder(tmp_path / "exact")
    rankers = [fitted(sets, negatives=negatives) for sets in (half, widened)]
    assert torch.equal(*(each.maps["query"].shift for each in rankers))
    scores = [rankers[0].score(sets["test"][:]) for sets in (half, widened, exact)]
    assert torch.equal(scores[0], scores[1])
    assert 0 < float((scores[0] - scores[2]).abs().max()) < 4 * 2**-11  # of cosines: both sides are rounded
