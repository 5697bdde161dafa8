"""Checkpoints: nothing in them is executed, and what is not one is refused in one line."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import torchrank
from tests.rankers.small import FEATURES, data, lists, trainer
from torchrank import GBDTRanker, LambdaRank, ListNet, LocalRank, SVMMap


@pytest.mark.parametrize("value", [np.float64(0.1), OmegaConf.create({"k": 1}), torch.tensor(1.0), lambda: 1])
def test_hyper_parameters_are_plain(value):
    with pytest.raises(ValueError, match="pass a plain"):
        LambdaRank(FEATURES, lr=value)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    torch.save({"ranker": "os.system"}, tmp_path / "x.ckpt")
    with pytest.raises(torchrank.CheckpointError, match=r"holds a os.system, not one of"):
        torchrank.load(tmp_path / "x.ckpt")
    np.savez(tmp_path / "x.npz", x=1)
    for content in ((tmp_path / "x.npz").read_bytes(), b"", b"# text", b"hello world", bytes(range(256))):
        (tmp_path / "y.ckpt").write_bytes(content)
        with pytest.raises(torchrank.CheckpointError, match=r"y.ckpt is not a( whole)? checkpoint of torchrank"):
            torchrank.load(tmp_path / "y.ckpt")
    with pytest.raises(FileNotFoundError):
        torchrank.load(tmp_path / "none.ckpt")


def test_no_size_stands_beside_the_state_dict(tmp_path):
    """Lightning's own entries, the ranker's name, the format and the random state: all else is in the state dict."""
    trainer(tmp_path, 2).fit(LocalRank(FEATURES, "rankboost", clusters=2, min_lists=1), datamodule=data())
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    own = {"ranker", "format", "random_state"}
    lightning = {"epoch", "global_step", "pytorch-lightning_version", "state_dict", "loops", "callbacks"}
    lightning |= {"optimizer_states", "lr_schedulers", "hparams_name", "hyper_parameters", "hparams_type"}
    assert own <= saved.keys() <= own | lightning


@pytest.mark.parametrize("rounds", [3, 5, 8])
def test_a_resumed_fit_stops_at_its_rounds(tmp_path, rounds):
    trainer(tmp_path, 20).fit(ListNet(FEATURES, rounds=5, tolerance=1e-300), datamodule=data())
    resumed, ran = ListNet(FEATURES, rounds=rounds, tolerance=1e-300), []
    one_round = resumed.round
    resumed.round = lambda *given: ran.append(1) or one_round(*given)
    trainer(tmp_path, 20).fit(resumed, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert len(ran) == max(0, rounds - 5)


def test_resumed_trees_with_sampling_say_that_they_differ(tmp_path):
    options = {"feature_fraction": 0.5}
    trainer(tmp_path, 2).fit(GBDTRanker(FEATURES, rounds=4, min_leaf=3, options=options), datamodule=data())
    with pytest.warns(torchrank.NumericalWarning, match="differs from an uninterrupted"):
        trainer(tmp_path, 4).fit(
            GBDTRanker(FEATURES, rounds=4, min_leaf=3, options=options),
            datamodule=data(),
            ckpt_path=tmp_path / "last.ckpt",
            weights_only=True,
        )


@pytest.mark.parametrize(
    "options, told",
    [
        ({"num_iterations": 5}, "rounds are an option of the ranker"),
        ({"n_estimators": 5}, "rounds are an option of the ranker"),
        ({"boosting": "dart"}, "it changes trees that are already validated"),
    ],
)
def test_options_that_the_rounds_own_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        GBDTRanker(FEATURES, options=options)


def test_a_loaded_ranker_is_tested_on_test_lists_alone(tmp_path):
    runner = trainer(tmp_path, 5)
    runner.fit(ListNet(FEATURES, rounds=5), datamodule=data())
    loaded, again = torchrank.load(tmp_path / "last.ckpt"), trainer(tmp_path)
    again.test(loaded, datamodule=torchrank.RankingDataModule.from_sets(test=lists(2)), verbose=False)
    assert "test/ndcg@10" in again.callback_metrics


def test_a_state_of_other_sizes_is_taken_whole():
    small, large = lists(0), lists(7, num_lists=40)
    ranker = SVMMap(FEATURES, eps=0.1).fit(small)
    other = SVMMap(FEATURES, eps=0.1).fit(large)
    ranker.load_state_dict(other.state_dict())
    assert ranker.cuts.psi.shape == other.cuts.psi.shape and torch.equal(ranker.weight, other.weight)
    assert ranker.certificate == other.certificate
