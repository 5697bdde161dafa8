"""The other networks, typed again plainly; members, noise, clipping, ordinal outputs and weights of a NeuralRanker."""

import copy

import pytest
import torch
from torch import nn

from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import DataError, NeuralRanker, RankingSet, load
from torchrank.data import SparseRows
from torchrank.functional import listnet_loss, ndcg, ordinal_loss
from torchrank.rankers.neural.dcn import DCNScorer
from torchrank.rankers.neural.gam import GAMScorer
from torchrank.rankers.neural.norms import BatchNorm
from torchrank.rankers.neural.resnet import ResNetScorer

X = torch.randn(9, FEATURES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
pytestmark = pytest.mark.filterwarnings("ignore:Found .* in eval mode")


def made(kind, **options):
    torch.manual_seed(1)
    return kind(FEATURES, **options).double().eval()


def dense(x, layer):
    return torch.stack([layer.weight @ row + (0 if layer.bias is None else layer.bias) for row in x])


# ---- networks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [None, 2])
def test_cross_layers(rank):
    network = made(DCNScorer, layers=3, rank=rank, hidden=[4])
    crossed = X.clone()
    for cross in network.crosses:
        parts = [cross] if rank is None else list(cross)
        images = crossed
        for part in parts:
            images = dense(images, part)
        crossed = X * images + crossed
    first, last = network.deep.layers
    expected = dense(dense(crossed, first).clamp(min=0), last)[:, 0]
    torch.testing.assert_close(network(X), expected, rtol=1e-12, atol=1e-12)


def test_an_additive_model_is_a_network_of_each_feature():
    network = made(GAMScorer, hidden=[4, 3])
    terms = torch.zeros_like(X)
    for feature in range(FEATURES):
        values = X[:, feature, None]
        for weight, bias in zip(network.weights, network.biases, strict=True):
            values = (values @ weight[feature] + bias[feature]).clamp(min=0)
        terms[:, feature] = (values @ network.last[feature])[:, 0]
    torch.testing.assert_close(network.terms(X), terms, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(network(X), terms.sum(1), rtol=1e-12, atol=1e-12)


def test_residual_blocks():
    network = made(ResNetScorer, width=5, blocks=2, hidden=4)

    def norm(x, layer):
        return nn.functional.layer_norm(x, (5,), layer.weight, layer.bias)

    values = dense(X, network.first)
    for block in network.blocks:
        values = values + dense(dense(norm(values, block.norm), block.first).clamp(min=0), block.second)
    expected = dense(norm(values, network.norm).clamp(min=0), network.last)[:, 0]
    torch.testing.assert_close(network(X), expected, rtol=1e-12, atol=1e-12)


def test_batch_norm_is_that_of_torch_and_takes_one_row():
    own, theirs = BatchNorm(FEATURES).double(), nn.BatchNorm1d(FEATURES).double()
    for step in range(3):
        x, y = (((step + 1) * X + step).requires_grad_() for _ in range(2))
        torch.testing.assert_close(own(x), theirs(y), rtol=1e-10, atol=1e-12)
        own(x).pow(3).sum().backward()
        theirs(y).pow(3).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(own.mean, theirs.running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own.variance, theirs.running_var, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own.eval()(X), theirs.eval()(X), rtol=1e-10, atol=1e-12)
    assert own.train()(X[:1]).isfinite().all() and own(X[:0]).shape == (0, FEATURES)


@pytest.mark.parametrize("x", [X[:1], X[:1].expand(4, -1), X / 10 + 20], ids=["one row", "equal rows", "far from 0"])
def test_batch_norm_of_low_precision_is_computed_in_full(x):
    low, layer = x.bfloat16(), BatchNorm(FEATURES)
    rows = low.double()
    expected = (rows - rows.mean(0)) / (rows.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(layer(low).double(), expected, rtol=2**-8, atol=1e-3)
    layer.eval()
    expected = (rows - layer.mean) / (layer.variance + 1e-5).sqrt()
    torch.testing.assert_close(layer(low).double(), expected, rtol=2**-8, atol=1e-3)


def test_sparse_rows_where_a_network_can():
    sparse = SparseRows.from_dense(lists(0).x)
    rows = RankingSet(sparse, lists(0).labels, lists(0).offsets)
    for scorer in ("resnet", "attention"):
        ranker = NeuralRanker(FEATURES, scorer, transform=None).eval()
        torch.testing.assert_close(ranker(sparse, rows.offsets), ranker(lists(0).x, rows.offsets), rtol=0, atol=1e-5)
    for options in ({"scorer": "dcn"}, {"scorer": "gam"}, {"noise": 0.1}):
        with pytest.raises(DataError, match="does not take sparse rows"):
            NeuralRanker(FEATURES, transform=None, **options).fit(rows)


@pytest.mark.parametrize(
    ("scorer", "options", "message"),
    [
        ("mlp", {"hidden": 5}, "hidden must be a list of widths, got 5"),
        ("gam", {"hidden": [4, -1]}, r"hidden\[1\] must be >= 1, got -1"),
        ("resnet", {"hidden": [4]}, r"hidden must be an integer >= 1, got \[4\]"),
        ("attention", {"heads": 0}, "heads must be >= 1, got 0"),
        ("attention", {"blocks": -1}, "blocks must be >= 0, got -1"),
        ("dcn", {"layers": 1.5}, "layers must be an integer >= 0, got 1.5"),
        ("mlp", "hidden=5", "scorer_options must be a mapping of names to values, got 'hidden=5'"),
    ],
)
def test_sizes_that_cannot_be_are_refused(scorer, options, message):
    with pytest.raises(ValueError, match=message):
        NeuralRanker(FEATURES, scorer, scorer_options=options)


@pytest.mark.parametrize("scorer", ["attention", "resnet", "dcn", "gam"])
def test_a_fit_learns(scorer):
    val = lists(1)
    ranker = NeuralRanker(FEATURES, scorer, "listnet", lr=0.01).fit(lists(0, 40), val, epochs=15)
    assert ndcg(ranker(val.x, val.offsets), val.labels, val.offsets, k=10).nanmean() > 0.85


# ---- members --------------------------------------------------------------------------------------------------------


def test_members_are_separate_fits_whose_scores_are_averaged():
    """Each is trained as if it were alone, from its own first weights and on the same batches."""
    options = {"scorer_options": {"hidden": [4]}, "optimizer": "SGD", "lr": 0.05}
    torch.manual_seed(5)
    together = NeuralRanker(FEATURES, "mlp", "listnet", members=3, **options)
    firsts = [copy.deepcopy(network) for network in together.scorer.networks]
    batch, found = lists(0)[:], []
    for first in firsts:
        alone = NeuralRanker(FEATURES, "mlp", "listnet", **options)
        alone.scorer = copy.deepcopy(first)
        found.append(alone)
    for ranker in (together, *found):
        step = torch.optim.SGD(ranker.parameters(), lr=0.05)
        for _ in range(3):
            step.zero_grad()
            ranker.loss(batch).mean().backward()
            step.step()
    for network, alone in zip(together.scorer.networks, found, strict=True):
        for one, other in zip(network.parameters(), alone.scorer.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    expected = torch.stack([alone.score(batch) for alone in found]).mean(0)
    torch.testing.assert_close(together.score(batch), expected, rtol=1e-5, atol=1e-6)
    losses = sum(alone.loss(batch) for alone in found)
    torch.testing.assert_close(together.loss(batch), losses, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["lambdarank", "ranknet", "warp", "ordinal"])
def test_members_with_losses_that_count(loss):
    ranker = NeuralRanker(FEATURES, "linear", loss, members=2).fit(lists(0), epochs=2)
    assert ranker(lists(1).x, lists(1).offsets).isfinite().all()


def test_an_instance_has_no_members():
    with pytest.raises(ValueError, match=r"members=2 need different first weights: give the class of .*Linear"):
        NeuralRanker(FEATURES, nn.Linear(FEATURES, 1), members=2)
    with pytest.raises(ValueError, match="members must be >= 1, got 0"):
        NeuralRanker(FEATURES, members=0)


# ---- noise, clipping, precision, schedules --------------------------------------------------------------------------


def test_noise_is_added_while_training_alone():
    ranker, batch = NeuralRanker(FEATURES, "mlp", "listnet", noise=0.5), lists(0)[:]
    assert not torch.equal(ranker.loss(batch), ranker.loss(batch))
    quiet = ranker.eval().loss(batch)
    assert torch.equal(quiet, ranker.loss(batch)) and torch.equal(ranker.score(batch), ranker.train().score(batch))
    seen = []
    ranker.scorer.forward = lambda x: seen.append(x) or x.sum(1)
    ranker.loss(batch._replace(x=torch.zeros(len(batch.labels), FEATURES)))
    assert abs(float(seen[0].std()) - 0.5) < 0.05 and abs(float(seen[0].mean())) < 0.05
    with pytest.raises(ValueError, match="noise must be >= 0, got -1"):
        NeuralRanker(FEATURES, noise=-1)


def test_gradients_are_clipped_with_and_without_a_trainer(tmp_path):
    options = {"scorer_options": {"hidden": [4]}, "optimizer": "SGD", "lr": 1.0, "clip": 1e-3}
    for own in (True, False):
        torch.manual_seed(0)
        ranker = NeuralRanker(FEATURES, "mlp", "ranknet", **options)
        if own:
            ranker.fit(lists(0), epochs=1, batch_documents=10**6)
            torch.manual_seed(0)
            before = NeuralRanker(FEATURES, "mlp", "ranknet", **options)
        else:
            before = copy.deepcopy(ranker)
            trainer(tmp_path, 1).fit(ranker, datamodule=data(10**6))
        moved = [a - b for a, b in zip(ranker.scorer.parameters(), before.scorer.parameters(), strict=True)]
        step = torch.cat([each.detach().flatten() for each in moved]).norm()
        assert float(step) == pytest.approx(1e-3, rel=1e-2), own  # one step of SGD with lr 1
    with pytest.raises(ValueError, match="clip must be > 0, got 0"):
        NeuralRanker(FEATURES, clip=0)


def test_mixed_precision_and_a_cosine_after_a_warm_up(tmp_path):
    schedule = {"name": "CosineAnnealingLR", "T_max": 4, "warmup": 2}
    ranker = NeuralRanker(FEATURES, "attention", "listnet", optimizer="AdamW", scheduler=schedule, clip=1.0)
    trainer(tmp_path, 3, precision="bf16-mixed").fit(ranker, datamodule=data())
    assert ranker.scorer.first.weight.dtype == torch.float32 and ranker.scorer.last.weight.isfinite().all()
    assert load(tmp_path / "last.ckpt").optimization.clip == 1.0


# ---- several outputs, weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scorer", ["linear", "mlp", "resnet", "dcn", "gam", "attention"])
def test_an_ordinal_loss_has_an_output_for_each_grade(scorer, tmp_path):
    train, options = lists(0, 40), {"lr": 0.02 if scorer != "linear" else 0.1}
    ranker = NeuralRanker(FEATURES, scorer, "ordinal", **options).fit(train, epochs=6)
    batch = train.to("cpu", ranker.transform)[:]
    values = ranker.values(batch)
    assert values.shape == (1, len(train.labels), 2)  # grades 0, 1, 2
    torch.testing.assert_close(ranker.score(batch), values[0].sigmoid().sum(1))
    expected = ordinal_loss(values[0], batch.labels, batch.offsets)
    torch.testing.assert_close(ranker.loss(batch), expected)
    assert ndcg(ranker.score(batch), batch.labels, batch.offsets, k=10).nanmean() > 0.8
    assert expected.sum() < ordinal_loss(torch.zeros_like(values[0]), batch.labels, batch.offsets).sum()
    if scorer == "mlp":
        trainer(tmp_path, 2).fit(ranker, datamodule=data())
        test = lists(2)
        assert torch.equal(load(tmp_path / "last.ckpt")(test.x, test.offsets), ranker.eval()(test.x, test.offsets))


def test_an_ordinal_loss_needs_grades():
    train = lists(0)
    real = RankingSet(train.x, train.labels + 0.5, train.offsets)
    with pytest.raises(DataError, match="loss=ordinal needs integer labels"):
        NeuralRanker(FEATURES, loss="ordinal").fit(real)


def test_a_loss_of_levels_has_a_constant():
    train = lists(0)
    far = RankingSet(train.x, train.labels + 7, train.offsets)
    ranker = NeuralRanker(FEATURES, "linear", "mse", optimizer={"name": "Adam"}, lr=0.5).fit(far, epochs=100)
    assert ranker.scorer.bias.item() == pytest.approx(float(far.labels.mean()), abs=0.3)


def test_weights_of_the_data_reach_the_loss():
    def weighted(scores, labels, offsets, *, weights=None):
        return listnet_loss(scores, labels, offsets) * (1 if weights is None else weights.sum())

    train = lists(0)
    heavy = RankingSet(train.x, train.labels, train.offsets, weights=torch.full_like(train.labels, 2.0))
    for members in (1, 2):
        ranker = NeuralRanker(FEATURES, "mlp", weighted, members=members)
        expected = ranker.loss(train[:]) * 2 * len(train.labels) * members
        torch.testing.assert_close(ranker.loss(heavy[:]), expected)
    with pytest.raises(DataError, match=r"the data has weights, but the loss .* takes none"):
        NeuralRanker(FEATURES, loss=lambda scores, labels, offsets: scores.mean()).loss(heavy[:])
