"""Laws of a fit of LGMML; interrupts and checkpoints."""

import signal

import pytest
import torch

import torchrank
from tests.rankers.local import SMALL, WEIGHTS, fit, moved
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import GMML, LGMML, RankingSet

# ---- laws of the fit -------------------------------------------------------------------------------------------------

FITS = [
    {"rounds": 4},
    {"anchor": "best", "rounds": 3},
    {"anchor": "search", "kernel": "rbf", "rounds": 3, "exclude_self": True},
    {"weights": "per_query", "fallback": "knn", "rounds": 3},
    {"weights": "amortized", "rounds": 3, "tau": "q95"},
    {"kernel": "localized", "rounds": 3, "drop_query_constant": True},
    {"queries_per_metric": None, "metrics": 1},
]


def assert_equal_fits(one, other, tolerance=1e-12):
    for name, tensor in one.state_dict().items():
        if not name.startswith("transform."):
            torch.testing.assert_close(other.state_dict()[name], tensor, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("change", FITS, ids=str)
def test_batches_are_only_a_way_to_read(tmp_path, change):
    whole = fit(tmp_path, data(100_000), precision="64-true", **change)
    assert_equal_fits(whole, fit(tmp_path, data(1), precision="64-true", **change))
    assert_equal_fits(whole, fit(tmp_path, data(40, resident=False), precision="64-true", **change))


@pytest.mark.parametrize("change", FITS, ids=str)
def test_a_shared_corpus_is_its_flat_copy(tmp_path, change):
    def shared(seed):
        flat = lists(seed)
        order = torch.randperm(len(flat.x), generator=torch.Generator().manual_seed(0))
        return RankingSet(flat.x[order], flat.labels, flat.offsets, index=order.argsort())

    flat = fit(tmp_path, precision="64-true", **change)
    corpus = fit(tmp_path, moved(train=shared(0), val=shared(1)), precision="64-true", **change)
    assert_equal_fits(flat, corpus, 1e-9)
    test, other = lists(2), shared(2)
    torch.testing.assert_close(
        corpus(other.x, other.offsets, index=other.index), flat(test.x, test.offsets), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("change", [change for change in FITS if change.get("anchor", "virtual") == "virtual"], ids=str)
def test_the_order_of_documents_does_not_matter(tmp_path, change):
    train = lists(0)
    keys = torch.rand(len(train.x), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.argsort(torch.repeat_interleave(train.offsets.diff()) + keys)
    mixed = RankingSet(train.x[order], train.labels[order], train.offsets)
    one, other = (fit(tmp_path, moved(train=s), precision="64-true", **change) for s in (train, mixed))
    test = lists(2)
    torch.testing.assert_close(one(test.x, test.offsets), other(test.x, test.offsets), rtol=1e-5, atol=1e-5)


def test_the_order_of_lists_does_not_matter_where_all_are_used(tmp_path):
    train, test = lists(0), lists(2)
    mixed = train.subset(torch.randperm(12, generator=torch.Generator().manual_seed(0)))
    one, other = (fit(tmp_path, moved(train=s), make=GMML) for s in (train, mixed))
    torch.testing.assert_close(one(test.x, test.offsets), other(test.x, test.offsets), rtol=1e-5, atol=1e-5)


def test_kernel_values_are_kept_or_made_again(tmp_path, monkeypatch):
    kept = fit(tmp_path, rounds=4, precision="64-true")
    monkeypatch.setattr("torchrank.rankers.lgmml.ranker.KEPT_BYTES", 0)
    assert_equal_fits(kept, fit(tmp_path, rounds=4, precision="64-true"))


def test_a_second_fit_forgets_the_first(tmp_path):
    test, ranker = lists(2), fit(tmp_path, rounds=3)
    ranker(test.x, test.offsets)
    trainer(tmp_path, 3).fit(ranker, datamodule=moved(train=lists(5)))
    fresh = fit(tmp_path, moved(train=lists(5)), rounds=3)
    assert_equal_fits(fresh, ranker)
    assert torch.equal(ranker(test.x, test.offsets), fresh(test.x, test.offsets))


# ---- interrupts and checkpoints --------------------------------------------------------------------------------------


@pytest.fixture
def interrupts():
    """Lightning ignores SIGINT for ever after one KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("change", [
    {"anchor": "best", "rounds": 3, "lr": 0.1},
    {"weights": "per_query", "fallback": "knn", "mode": "sgd", "rounds": 3},
], ids=str)  # fmt: skip
def test_an_interrupt_at_every_sum_of_a_round_loses_nothing(tmp_path, interrupts, change):
    def make(stop):
        ranker, seen = LGMML(FEATURES, **SMALL | change), []
        total = ranker.total

        def counted(fn, into=None):
            seen.append(1)
            if len(seen) == stop:
                raise KeyboardInterrupt
            return total(fn, into)

        ranker.total = counted
        return ranker, seen

    whole, calls = make(None)
    trainer(tmp_path / "whole", change["rounds"]).fit(whole, datamodule=data())
    assert len(calls) >= 4
    for stop in range(1, len(calls) + 1):
        folder = tmp_path / str(stop)
        cut, _ = make(stop)
        with pytest.raises(SystemExit):
            trainer(folder, change["rounds"]).fit(cut, datamodule=data())
        last, (resumed, _) = folder / "last.ckpt", make(None)
        trainer(folder, change["rounds"]).fit(
            resumed, datamodule=data(), ckpt_path=last if last.exists() else None, weights_only=True
        )
        assert_equal_fits(whole, resumed)


@pytest.mark.parametrize("change", [
    *({"rounds": 3, **mode} for mode in WEIGHTS.values()),
    *({"anchor": anchor} for anchor in ("best", "virtual", "search")),
    {"kernel": "localized", "transform": {"name": "pca", "variance": 0.7}},
], ids=str)  # fmt: skip
def test_a_checkpoint_is_all_that_is_needed(tmp_path, change):
    ranker, test = LGMML(FEATURES, **SMALL | change), lists(2)
    runner = trainer(tmp_path, ranker.rounds)
    runner.fit(ranker, datamodule=data())
    predicted = torch.cat(runner.predict(ranker, datamodule=data()))  # the compiled scorer is no part of the ranker
    runner.save_checkpoint(tmp_path / "saved.ckpt")
    loaded = torchrank.load(tmp_path / "saved.ckpt")
    assert type(loaded) is LGMML and torch.equal(loaded(test.x, test.offsets), ranker(test.x, test.offsets))
    assert torch.equal(loaded.sources, ranker.sources)
    fresh = LGMML(FEATURES, **SMALL | change)
    again = runner.predict(fresh, datamodule=data(), ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    assert torch.equal(torch.cat(again), predicted)
