"""Your own network and loss in a ranker: they learn as built-in ones do, and files never make anything import."""

import copy
import sys

import numpy as np
import pytest
import torch
from torch import nn

import torchrank
from tests.docs.pages import blocks
from tests.rankers import own_parts
from tests.rankers.own_parts import Centred, Column, Linear, scalar, squared
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import CheckpointError, LGMMLNet, LocalRank, NeuralRanker, RankingSet
from torchrank.cli import main
from torchrank.export.errors import NotExportable
from torchrank.functional import listnet_loss

HERE = "tests.rankers.own_parts"


def weights(scorer, loss="listnet", epochs=4, **options):
    ranker = NeuralRanker(FEATURES, scorer, loss, lr=0.05, **options).fit(lists(0), lists(1), epochs=epochs)
    return ranker.scorer.weight.detach()


@pytest.mark.parametrize("scorer", [Linear, Column, Linear(FEATURES), f"{HERE}.Linear", f"{HERE}.Column"], ids=str)
def test_an_own_network_learns_as_the_built_in_one(scorer):
    assert torch.equal(weights(scorer), weights("linear"))


def test_an_own_loss_learns_as_the_built_in_one():
    expected = weights("linear")

    def mine(scores, labels, offsets):
        return listnet_loss(scores, labels, offsets)

    def counted(scores, labels, offsets, **sizes):
        return mine(scores, labels, offsets).mean()

    assert torch.equal(weights("linear", mine), expected)
    torch.testing.assert_close(weights("linear", counted), expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(weights(Linear, mine), expected)


@pytest.mark.parametrize("loss", [squared, scalar, f"{HERE}.squared"], ids=["per list", "scalar", "name"])
def test_the_minimum_of_a_squared_error_is_that_of_least_squares(loss):
    train = lists(0)
    ranker = NeuralRanker(FEATURES, Linear, loss, transform=None, optimizer="LBFGS", lr=1.0)
    ranker.fit(train, epochs=40)
    expected = np.linalg.lstsq(train.x.numpy().astype(float), train.labels.numpy().astype(float), rcond=None)[0]
    np.testing.assert_allclose(ranker.scorer.weight.detach().numpy(), expected, atol=1e-3)


def test_options_reach_both():
    ranker = NeuralRanker(
        FEATURES, Linear, squared, scorer_options={"start": 2.0}, loss_options={"scale": 3.0}, transform=None
    )
    assert (ranker.scorer.weight == 2).all()
    batch = lists(0)[:]
    assert torch.equal(ranker.loss(batch), 3 * squared(ranker.score(batch), batch.labels, batch.offsets))


@pytest.mark.parametrize("corpus", [False, True])
def test_a_network_that_takes_offsets_sees_whole_lists(corpus):
    flat = lists(3)
    index = torch.randperm(len(flat.x), generator=torch.Generator().manual_seed(0)) if corpus else None
    inside = {} if index is None else {"index": index}
    x = flat.x.double()
    ranker = NeuralRanker(FEATURES, Centred, "listnet", scorer_options={"start": 1.0}, transform=None)
    found = ranker(x, flat.offsets, **inside).detach().numpy()
    rows = x.numpy() if index is None else x.numpy()[index.numpy()]
    for first, last in zip(flat.offsets[:-1], flat.offsets[1:], strict=True):
        part = rows[first:last]
        np.testing.assert_allclose(found[first:last], (part - part.mean(0)).sum(1), atol=1e-5)
    assert found.dtype == np.float64  # as the rows
    shared = RankingSet(x, flat.labels, flat.offsets, **inside)
    ranker.fit(shared, epochs=2)


def test_an_instance_is_copied_and_is_where_every_fit_starts():
    network = Linear(FEATURES, start=1.0)
    ranker = NeuralRanker(FEATURES, network, "listnet", lr=0.05)
    first = ranker.fit(lists(0), epochs=2).scorer.weight.detach().clone()
    assert (network.weight == 1).all() and not torch.equal(first, network.weight)
    assert torch.equal(ranker.fit(lists(0), epochs=2).scorer.weight, first)
    other = copy.deepcopy(ranker)
    assert torch.equal(other.fit(lists(0), epochs=2).scorer.weight, first) and other.scorer is not ranker.scorer


def test_layers_with_buffers_and_draws():
    """Batch statistics and dropout: a fit starts over, and scores are those of the evaluation mode."""
    layers = nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1)
    ranker, test = NeuralRanker(FEATURES, nn.Sequential(*layers), "listnet", lr=0.05), lists(2)
    first, again = (ranker.fit(lists(0), lists(1), epochs=3)(test.x, test.offsets) for _ in range(2))
    assert torch.equal(first, again) and torch.equal(ranker(test.x, test.offsets), again)
    assert (layers[1].running_mean == 0).all() and (ranker.scorer[1].running_mean != 0).any()


def test_an_own_loss_of_metrics_that_learn(tmp_path):
    options = {"closed_form": {"num_groups": 2, "alpha": 2.0, "high": "positive", "kappa": 3.0}, "lr": 0.01}
    rankers = [LGMMLNet(FEATURES, loss=loss, **options) for loss in (scalar, f"{HERE}.scalar")]
    for ranker in rankers:
        trainer(tmp_path, 2).fit(ranker, datamodule=data())
    test = lists(2)
    loaded = torchrank.load(tmp_path / "last.ckpt", loss=scalar)
    scores = [each.eval()(test.x, test.offsets) for each in (*rankers, loaded)]
    assert torch.equal(scores[0], scores[1]) and torch.equal(scores[0], scores[2])


def test_layers_take_the_number_of_inputs_that_a_transform_finds():
    ranker = NeuralRanker(FEATURES, Linear, "listnet", {"name": "pca", "variance": 0.6})
    ranker.fit(lists(0), epochs=2)
    assert len(ranker.scorer.weight) == ranker.transform.num_outputs < FEATURES


def test_the_documentation_shows_an_own_network_in_12_lines():
    lines = [line for line in blocks("losses_and_networks.md")[0].splitlines() if line.strip()]
    assert len(lines) <= 12 and "class Net(torch.nn.Module)" in lines[2] and "rank(" in lines[-1]


# --- checkpoints ---


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A ranker with an own network and loss, and its checkpoint."""
    folder = tmp_path_factory.mktemp("own")
    ranker = NeuralRanker(FEATURES, Linear, squared, scorer_options={"start": 1.0}, lr=0.05)
    trainer(folder, 2).fit(ranker, datamodule=data())
    return ranker.eval(), folder / "last.ckpt"


def test_a_checkpoint_holds_names(fitted):
    saved = torch.load(fitted[1], weights_only=True)["hyper_parameters"]
    assert (saved["scorer"], saved["loss"]) == (f"{HERE}.Linear", f"{HERE}.squared")
    assert saved["scorer_options"] == {"start": 1.0}


def test_it_is_loaded_with_what_it_names(fitted):
    ranker, path = fitted
    test = lists(2)
    for own in (
        {"scorer": Linear, "loss": squared},
        {"scorer": f"{HERE}.Linear", "loss": f"{HERE}.squared"},
    ):
        loaded = torchrank.load(path, **own)
        direct = NeuralRanker.load_from_checkpoint(path, **own)
        for each in (loaded, direct):
            assert torch.equal(each(test.x, test.offsets), ranker(test.x, test.offsets))
        again = loaded.fit(lists(0), epochs=1)  # starts over, with the objects that were given
        assert again.own == {"scorer": Linear, "loss": squared}


def test_a_class_that_has_moved_is_taken_too(fitted):
    class Moved(Linear):
        pass

    test = lists(2)
    loaded = torchrank.load(fitted[1], scorer=Moved, loss=lambda scores, labels, offsets, scale=1: scores)
    assert torch.equal(loaded(test.x, test.offsets), fitted[0](test.x, test.offsets))


def test_without_it_the_error_names_it(fitted):
    for given, missing in (({}, "scorer='tests.rankers.own_parts.Linear'"), ({"scorer": Linear}, "loss='tests.")):
        for load in (torchrank.load, NeuralRanker.load_from_checkpoint):
            with pytest.raises(
                CheckpointError, match=f"needs {missing}.*nothing is imported.*load\\(path, .*--"
            ) as told:
                load(fitted[1], **given)
            assert "\n" not in str(told.value)


def test_what_a_checkpoint_does_not_need_is_refused(tmp_path):
    trainer(tmp_path, 1).fit(NeuralRanker(FEATURES, "linear", "listnet"), datamodule=data())
    with pytest.raises(ValueError, match="the checkpoint has no scorer of your own: load it without scorer="):
        torchrank.load(tmp_path / "last.ckpt", scorer=Linear)


def poisoned(path, folder, **options):
    """The checkpoint with other hyper-parameters."""
    content = torch.load(path, weights_only=True)
    content["hyper_parameters"] |= options
    torch.save(content, folder / "poisoned.ckpt")
    return folder / "poisoned.ckpt"


@pytest.mark.parametrize(
    "options",
    [
        {"scorer": "evil_module.Net"},
        {"loss": "evil_module.loss"},
        {"scorer": "os.system"},
        {"loss": "os.system", "loss_options": {"command": "touch touched"}},
        {"_instantiator": "evil_module.make"},
        {"_class_path": "evil_module.Net", "_instantiator": "pytorch_lightning.cli.instantiate_module"},
    ],
    ids=str,
)
def test_nothing_is_imported_because_a_file_names_it(tmp_path, monkeypatch, options, capsys):
    (tmp_path / "evil_module.py").write_text("open('touched', 'w').close()\nraise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    trainer(tmp_path, 1).fit(NeuralRanker(FEATURES, "linear", "listnet"), datamodule=data())
    path = poisoned(tmp_path / "last.ckpt", tmp_path, **options)
    (tmp_path / "new.txt").write_text("1 qid:1 1:1\n0 qid:1 2:1\n")
    for load in (torchrank.load, NeuralRanker.load_from_checkpoint):
        try:
            load(path)
        except CheckpointError as error:
            assert "evil_module" in str(error) or "os.system" in str(error)
    refused = main(["score", str(path), "new.txt", "--out", "scores.txt"])
    assert refused == (0 if "_instantiator" in options else 2)
    assert "Traceback" not in capsys.readouterr().err
    again = NeuralRanker(FEATURES, "linear", "listnet")
    try:
        trainer(tmp_path, 2).fit(again, datamodule=data(), ckpt_path=path, weights_only=True)
    except CheckpointError as error:
        assert "Cannot resume" in str(error)
    assert "evil_module" not in sys.modules and not (tmp_path / "touched").exists()


def test_a_poisoned_base_of_a_local_ranker_is_refused(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("open('touched', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    base = {"scorer": "linear", "loss": "listnet"}
    trainer(tmp_path, 1).fit(LocalRank(FEATURES, "neural", base, 2, min_lists=1), datamodule=data())
    path = poisoned(tmp_path / "last.ckpt", tmp_path, base_options=base | {"scorer": "evil_module.Net"})
    with pytest.raises(CheckpointError, match=r"needs scorer='evil_module.Net'"):
        torchrank.load(path)
    assert "evil_module" not in sys.modules and not (tmp_path / "touched").exists()


@pytest.mark.parametrize("names", [False, True])
def test_a_fit_is_resumed(tmp_path, names):
    own = (f"{HERE}.Linear", f"{HERE}.squared") if names else (Linear, squared)
    whole, resumed = (NeuralRanker(FEATURES, *own, lr=0.05) for _ in range(2))
    trainer(tmp_path / "whole", 4).fit(whole, datamodule=data())
    trainer(tmp_path / "cut", 2).fit(NeuralRanker(FEATURES, *own, lr=0.05), datamodule=data())
    checkpoint = tmp_path / "cut/last.ckpt"
    trainer(tmp_path / "cut", 4).fit(resumed, datamodule=data(), ckpt_path=checkpoint, weights_only=True)
    assert torch.equal(resumed.scorer.weight, whole.scorer.weight)
    with pytest.raises(CheckpointError, match="Cannot resume: the checkpoint was made with loss='tests"):
        trainer(tmp_path / "cut", 4).fit(
            NeuralRanker(FEATURES, Linear, "listnet", lr=0.05),
            datamodule=data(),
            ckpt_path=checkpoint,
            weights_only=True,
        )


@pytest.mark.parametrize("scorer", [Linear, f"{HERE}.Linear", Linear(FEATURES)], ids=["class", "name", "instance"])
def test_as_the_base_of_a_local_ranker(tmp_path, scorer):
    ranker = LocalRank(FEATURES, "neural", {"scorer": scorer, "loss": squared, "lr": 0.1}, 2, min_lists=1)
    assert ranker.hparams["base_options"] == {"scorer": f"{HERE}.Linear", "loss": f"{HERE}.squared", "lr": 0.1}
    trainer(tmp_path, 2).fit(ranker, datamodule=data())
    assert len(ranker.parts) >= 2 and all(isinstance(part.scorer, Linear) for part in ranker.parts)
    with pytest.raises(CheckpointError, match="needs scorer="):
        torchrank.load(tmp_path / "last.ckpt", loss=squared)
    loaded, test = torchrank.load(tmp_path / "last.ckpt", scorer=scorer, loss=squared), lists(2)
    assert torch.equal(loaded(test.x, test.offsets), ranker.eval()(test.x, test.offsets))
    ranker.fit(lists(0), lists(1), epochs=1)


# --- the command line ---

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, inputs, hidden=4):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1))

    def forward(self, x):
        return self.layers(x)

def loss(scores, labels, offsets):
    return ((scores - labels) ** 2).mean()
"""


@pytest.mark.slow
def test_from_configs_and_commands(tmp_path):
    from tests.cli.running import SMALL, quick_train, results

    (tmp_path / "my_network.py").write_text(MODULE)
    model = ["model=neural", "model.scorer=my_network.Net", "model.scorer_options={hidden: 3}"]
    options = [*SMALL, *model, "model.loss=my_network.loss", "logger=csv", "show=false"]
    done = quick_train(*options, "trainer.max_epochs=2", "hydra.run.dir=first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first = results(tmp_path / "first")
    assert first["options"]["scorer"] == "my_network.Net" and first["options"]["loss"] == "my_network.loss"
    last, best = "ckpt_path=first/checkpoints/last.ckpt", "ckpt_path=first/checkpoints/best.ckpt"
    done = quick_train(*options, "trainer.max_epochs=3", "hydra.run.dir=second", last, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = quick_train(*options, "train=false", best, "hydra.run.dir=third", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "third")["test"] is not None
    done = quick_train(*SMALL, "train=false", best, "hydra.run.dir=fourth", cwd=tmp_path)
    assert done.returncode != 0 and "needs scorer='my_network.Net'" in done.stderr and "Traceback" not in done.stderr
    done = quick_train(*SMALL, "model=neural", "model.scorer=my_network.Nothing", "hydra.run.dir=x", cwd=tmp_path)
    assert done.returncode != 0 and "cannot import scorer='my_network.Nothing'" in done.stderr


def test_scores_by_the_command(fitted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.txt").write_text("1 qid:1 1:1\n0 qid:1 2:1\n")
    (tmp_path / "their_network.py").write_text(f"from {HERE} import Linear as Net, squared as loss\n")
    command = ["score", str(fitted[1]), "new.txt", "--out", "scores.txt"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "--scorer tests.rankers.own_parts.Linear" in told and told.count("\n") == 1
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main([*command, "--scorer", "their_network.Net", "--loss", "their_network.loss"]) == 0
    x = torch.eye(FEATURES)[:2]
    expected = fitted[0](x, torch.tensor([0, 2])).detach()
    np.testing.assert_allclose(np.loadtxt("scores.txt"), expected, rtol=1e-6)
    assert main([*command, "--scorer", "their_network.Nothing", "--loss", "their_network.loss"]) == 2
    assert "cannot import scorer='their_network.Nothing'" in capsys.readouterr().err


# --- files for other programs ---


def test_a_network_with_sizes_that_depend_on_values_does_not_leave(tmp_path):
    ranker = NeuralRanker(FEATURES, Centred, "listnet", lr=0.1).fit(lists(0), epochs=1)
    with pytest.raises(NotExportable, match="nothing was written: the exported file fails on 1 rows"):
        ranker.export(tmp_path / "own.pt2")
    assert list(tmp_path.iterdir()) == []


# --- refusals ---


@pytest.mark.parametrize(
    ("scorer", "loss", "options", "message"),
    [
        ("conv", "listnet", {}, "unknown scorer='conv': choose one of linear, mlp, .*, the dotted name of your own"),
        ("linear", "margin", {}, "unknown loss='margin'"),
        ("no.such.Net", "listnet", {}, "cannot import scorer='no.such.Net'"),
        (f"{HERE}.Nothing", "listnet", {}, "cannot import scorer="),
        ("os.system", "listnet", {}, "scorer must be a class or an instance of torch.nn.Module"),
        (print, "listnet", {}, "scorer must be a class or an instance of torch.nn.Module"),
        ("linear", 3, {}, r"loss must be a function of \(scores, labels, offsets\), got 3"),
        ("linear", Linear, {}, "loss must be a function"),
        (Linear, "listnet", {"scorer_options": {"stop": 1}}, "unexpected keyword argument 'stop'"),
        (nn.Identity(), "listnet", {"scorer_options": {"a": 1}}, "was given as an instance"),
        (nn.LazyLinear(1), "listnet", {}, "has layers without a size, such as weight"),
        (Linear, squared, {"loss_options": {"scales": 1}}, "has no option scales; its options are: scale"),
        ("linear", "listnet", {"loss_options": {"a": 1}}, "has no option a; its options are: none"),
    ],
)  # fmt: skip
def test_refusals(scorer, loss, options, message):
    with pytest.raises(ValueError, match=message) as told:
        NeuralRanker(FEATURES, scorer, loss, **options)
    assert "\n" not in str(told.value)


def test_wrong_shapes_are_refused():
    with pytest.raises(
        ValueError, match=r"the scorer tests.rankers.own_parts.Wrong must return \(\d+,\) or \(\d+, 1\)"
    ):
        NeuralRanker(FEATURES, own_parts.Wrong, "listnet").fit(lists(0), epochs=1)
    with pytest.raises(ValueError, match=r"the loss tests.rankers.own_parts.long must return \(12,\) or a scalar, got"):
        NeuralRanker(FEATURES, "linear", own_parts.long).fit(lists(0), epochs=1, batch_documents=10_000)


def test_sparse_rows_are_for_built_in_scorers():
    assert "sparse" in NeuralRanker(FEATURES).takes and "sparse" not in NeuralRanker(FEATURES, Linear).takes


def test_lists_without_entries_have_no_loss():
    ranker = NeuralRanker(FEATURES, Linear, scalar, transform=None)
    batch = lists(0)[0:0]
    losses = ranker.loss(batch)
    assert losses.shape == (0,)
    torchrank.mean_over_lists(losses).backward()
    assert (ranker.scorer.weight.grad == 0).all()


def test_a_subclass_of_the_base_class_learns(tmp_path):
    class Mine(torchrank.GradientRanker):
        def __init__(self, num_features, lr=0.05, optimizer="SGD"):
            super().__init__(num_features, "standard", lr=lr, optimizer=optimizer)
            self.weight = nn.Parameter(torch.zeros(num_features))

        def score(self, batch):
            return batch.at_entries(batch.x @ self.weight.to(batch.x.dtype))

        def loss(self, batch):
            return listnet_loss(self.score(batch), batch.labels, batch.offsets)

    ranker = Mine(FEATURES).fit(lists(0), epochs=4)
    built_in = NeuralRanker(FEATURES, "linear", "listnet", lr=0.05, optimizer="SGD").fit(lists(0), epochs=4)
    assert torch.equal(ranker.weight, built_in.scorer.weight)
    trainer(tmp_path, 2).fit(ranker, datamodule=data())
    loaded, test = Mine.load_from_checkpoint(tmp_path / "last.ckpt"), lists(2)
    assert torch.equal(loaded(test.x, test.offsets), ranker.eval()(test.x, test.offsets))
