"""MLR cut or interrupted in the middle of a path and resumed ends at the same state, bit for bit; what may not resume.

That every ranker can be cut after every round is a law of tests/laws.
"""

from contextlib import nullcontext

import pytest
import torch
from pytorch_lightning import Callback

import torchrank
from tests.rankers import small
from tests.rankers.metric.fits import KINDS, QUICK, D, data, graded, of_classes, rows
from tests.rankers.small import trainer
from torchrank import MLR, RMLR, CheckpointError, LocalRank, MetricBaseline, RankingSet, SVMMap
from torchrank.data import SparseRows, TrainingLists


def assert_same(one, other, note=""):
    """Their states, bit for bit; what is beside the tensors too."""
    assert one.state_dict().keys() == other.state_dict().keys()
    for key, value in one.state_dict().items():
        found = other.state_dict()[key]
        same = torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value
        assert same, f"{note} {key}: {found} instead of {value}"


def mlr(kind):
    return MLR(D, **QUICK | {"rounds": 4} | KINDS[kind]), data()


def svmmap_path():
    return SVMMap(small.FEATURES, C=[1.0, 3.0, 9.0], eps=1e-2, transform="standard"), small.data()


@pytest.mark.parametrize(
    "make", [lambda: mlr("path"), svmmap_path, lambda: mlr("anchor")], ids=["mlr path", "svmmap path", "mlr anchor"]
)
def test_a_cut_after_any_round_loses_nothing(tmp_path, make):
    """On a path a round is a whole fit: the next one starts with the cuts of the ones before, from the checkpoint."""

    def run(folder, epochs, **given):
        ranker, module = make()
        trainer(folder, epochs).fit(ranker, datamodule=module, weights_only=True, **given)
        return ranker

    whole = run(tmp_path / "whole", 4)
    for cut in range(1, whole.trainer.current_epoch):
        folder = tmp_path / str(cut)
        run(folder, cut)
        assert_same(whole, run(folder, 4, ckpt_path=folder / "last.ckpt"), cut)


def count_sums(monkeypatch, stop=None):
    """Count the sums over the training lists that a fit asks for, and interrupt it at one of them."""
    total, calls = TrainingLists.total, []

    def interrupted(lists, fn, into=None):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return total(lists, fn, into)

    monkeypatch.setattr(TrainingLists, "total", interrupted)
    return calls


def test_an_interrupt_in_the_middle_of_a_fit_of_a_path_loses_nothing(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        calls, (whole, module) = count_sums(patch), mlr("path")
        trainer(tmp_path / "whole", 4).fit(whole, datamodule=module)
    assert len(calls) > 4
    for stop in range(1, len(calls) + 1, 2):
        folder, (cut, module), (resumed, again) = tmp_path / str(stop), mlr("path"), mlr("path")
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            count_sums(patch, stop)
            trainer(folder, 4).fit(cut, datamodule=module)
        last = folder / "last.ckpt"
        given = {"ckpt_path": last if last.exists() else None, "weights_only": True}
        trainer(folder, 4).fit(resumed, datamodule=again, **given)
        assert_same(whole, resumed, stop)


def fitted(folder, module=None, rounds=200, **options):
    """A ranker, and its checkpoint in the folder."""
    ranker = MLR(D, **QUICK | {"rounds": rounds} | options)
    trainer(folder, rounds, monitor=None).fit(ranker, datamodule=module or data())
    return ranker, folder / "last.ckpt"


def test_resuming_a_converged_fit_runs_no_round(tmp_path):
    _, last = fitted(tmp_path)
    again = MLR(D, **QUICK)
    again.round = None  # a round would fail
    trainer(tmp_path, 200).fit(again, datamodule=data(), ckpt_path=last, weights_only=True)
    assert again.converged


def test_other_options_are_refused_but_for_more_rounds(tmp_path):
    """Bounds of another problem would prove nothing, and a converged fit would be taken for that of these options."""
    _, last = fitted(tmp_path)
    for given in ({"C": 33.0}, {"measure": "auc"}, {"eps": 1e-7}):
        other = MLR(D, **(QUICK | given))
        with pytest.raises(CheckpointError, match=rf"made with {next(iter(given))}=.* but this MLR has"):
            trainer(tmp_path, 9, monitor=None).fit(other, datamodule=data(), ckpt_path=last, weights_only=True)
    more = MLR(D, **(QUICK | {"rounds": 500}))
    trainer(tmp_path, 500, monitor=None).fit(more, datamodule=data(), ckpt_path=last, weights_only=True)
    assert more.converged


def test_other_data_and_another_ranker_are_refused(tmp_path):
    """Cuts of other lists bound another problem, and its test points may be among them."""

    class Mine(MLR):
        pass

    def resume(ranker, train, message):
        module = data(form="corpus")
        module.sets["train"] = train
        with pytest.raises(CheckpointError, match=message) if message else nullcontext():
            trainer(tmp_path, 9, monitor=None).fit(ranker, datamodule=module, ckpt_path=last, weights_only=True)

    train, (_, last) = graded(), fitted(tmp_path, data(form="corpus"), rounds=2)
    other = "the training data .* differs from the checkpoint"
    resume(MLR(D, **QUICK), graded(seed=9), other)
    resume(MLR(D, **QUICK), train.subset(torch.arange(len(train)).flip(0)), other)
    upside_down = RankingSet(train.x, 3 - train.labels, train.offsets, index=train.index, queries=train.queries)
    resume(MLR(D, **QUICK), upside_down, other)
    resume(MetricBaseline(D, transform=None), graded(), "MLR, not a MetricBaseline")
    resume(RMLR(D), graded(), "MLR, not a RMLR")
    resume(Mine(D, **QUICK), graded(), None)


def test_outlines_tell_classes_and_their_order():
    x, classes = rows(0, 12)
    orders = (classes, classes.flip(0), classes[torch.randperm(12, generator=torch.Generator().manual_seed(1))])
    outlines = [of_classes(x, codes).outline() for codes in orders]
    assert outlines[0] != outlines[1] != outlines[2] != outlines[0]
    assert all(one["rows"] == outlines[0]["rows"] and one["lists"] == outlines[0]["lists"] for one in outlines)


def test_outlines_tell_every_part_and_no_types():
    lists = graded()
    whole = {"x": lists.x, "labels": lists.labels, "offsets": lists.offsets, "index": lists.index}
    whole["queries"] = lists.queries

    def outline(**parts):
        return tuple(RankingSet(**whole | parts).outline().values())

    first, moved = outline(), lists.offsets.clone()
    moved[1] += 1
    assert outline(x=lists.x.float(), labels=lists.labels.long()) == first
    others = [{"x": -lists.x}, {"x": lists.x.flip(1)}, {"x": lists.x.roll(1, 0)}, {"labels": lists.labels.flip(0)},
              {"index": lists.index.flip(0)}, {"queries": -lists.queries}, {"offsets": moved}]  # fmt: skip
    assert len({first, *(outline(**other) for other in others)}) == 8


def test_outlines_of_sparse_rows_tell_their_columns():
    rows = [SparseRows.from_dense(x) for x in (torch.eye(3), torch.eye(3), torch.eye(3).flip(1), torch.eye(3).roll(1))]
    one, same, *others = (RankingSet(x, torch.ones(3), torch.tensor([0, 3])).outline() for x in rows)
    assert one == same and one not in others


class Seen(Callback):
    def __init__(self):
        self.epochs = []

    def on_validation_epoch_end(self, trainer, ranker):
        self.epochs.append(trainer.current_epoch)


def test_every_fit_of_a_path_is_validated(tmp_path):
    path, base = {"C": [1.0, 3.0, 10.0]}, {"C": [1.0, 10.0], "eps": 0.1}
    for ranker, module, rounds in (
        (MLR(D, **QUICK | path), data(), [0, 1, 2]),
        (LocalRank(small.FEATURES, base="svmmap", base_options=base, clusters=2), small.data(), [0, 1]),
    ):
        seen = Seen()
        limits = {"monitor": None, "check_val_every_n_epoch": 1000, "callbacks": [seen]}
        trainer(tmp_path, 9, **limits).fit(ranker, datamodule=module)
        assert seen.epochs == rounds


def test_the_best_checkpoint_of_a_path_is_the_fit_that_validates_best(tmp_path):
    """Through a trainer as by `fit` with validation lists."""
    ranker, module = MLR(D, **QUICK | KINDS["path"]), data()
    trainer(tmp_path, 3).fit(ranker, datamodule=module)
    best = torchrank.load(tmp_path / "best.ckpt")
    chosen = MLR(D, **QUICK | KINDS["path"]).fit(module.sets["train"], module.sets["val"], batch_documents=60)
    assert torch.equal(best.metric, chosen.metric) and best.findings == chosen.findings
    assert best.certificate == chosen.certificate and best.certificate.proved


def test_tuples_and_lists_are_the_same_options(tmp_path):
    one, other = (MLR(D, **(QUICK | {"transform": kind(["standard", "l2"])})) for kind in (list, tuple))
    trainer(tmp_path, 1, monitor=None).fit(one, datamodule=data())
    trainer(tmp_path, 2, monitor=None).fit(
        other, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True
    )


def test_a_checkpoint_brings_its_certificate_and_the_C_of_a_path(tmp_path):
    ranker, last = fitted(tmp_path, C=[1.0, 10.0])
    loaded = torchrank.load(last)
    assert loaded.certificate == ranker.certificate and loaded.certificate.proved
    assert loaded.findings == {"C": 10.0}
