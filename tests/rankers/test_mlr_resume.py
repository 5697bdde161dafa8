"""MLR cut or interrupted anywhere and taken up again ends at the same state, bit by bit."""

import signal
from contextlib import nullcontext

import pytest
import torch
from pytorch_lightning import Callback

import torchrank
from tests.rankers import small
from tests.rankers.metric_fits import KINDS, QUICK, D, data, fit, graded, module_of, rows
from tests.rankers.small import trainer
from torchrank import MLR, RMLR, LocalRank, MetricBaseline, RankingSet
from torchrank.data import SparseRows
from torchrank.data.corpus import CorpusSet, SameClass


@pytest.fixture(autouse=True)
def interrupts():
    """Lightning ignores SIGINT for ever after one KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def assert_same(one, other, note=""):
    assert one.state_dict().keys() == other.state_dict().keys()
    for key, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], tensor, rtol=0, atol=0, msg=f"{note} {key}")


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_hold_everything(tmp_path, kind):
    """Cut after some rounds and taken up by a new ranker, the fit ends at the same state, bit for bit."""
    options = QUICK | {"rounds": 4} | KINDS[kind]

    def run(folder, epochs, **given):
        ranker = MLR(D, **options)
        trainer(folder, epochs, monitor="val/map").fit(ranker, datamodule=module_of(kind), weights_only=True, **given)
        return ranker

    whole = run(tmp_path / "whole", 4)
    for cut in (1, 3):
        folder = tmp_path / str(cut)
        if cut < whole.trainer.current_epoch:
            run(folder, cut)
            assert_same(run(folder, 4, ckpt_path=folder / "last.ckpt"), whole, cut)


@pytest.mark.parametrize("kind", ["map", "path"])
def test_an_interrupt_at_any_sum_loses_nothing(tmp_path, kind):
    options = QUICK | {"rounds": 4} | KINDS[kind]

    def counted(ranker, stop=None):
        total, calls = ranker.total, []

        def interrupted(fn, into=None):
            calls.append(1)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return total(fn, into)

        ranker.total = interrupted
        return calls

    whole = MLR(D, **options)
    calls = counted(whole)
    trainer(tmp_path / "whole", 4, monitor="val/map").fit(whole, datamodule=data())
    assert len(calls) > 4
    for stop in (1, 2, len(calls) - 1):
        folder, cut, resumed = tmp_path / str(stop), MLR(D, **options), MLR(D, **options)
        counted(cut, stop)
        with pytest.raises(SystemExit):
            trainer(folder, 4, monitor="val/map").fit(cut, datamodule=data())
        last = folder / "last.ckpt"
        given = {"ckpt_path": last if last.exists() else None, "weights_only": True}
        trainer(folder, 4, monitor="val/map").fit(resumed, datamodule=data(), **given)
        assert_same(resumed, whole, stop)


def test_resuming_a_converged_fit_runs_no_round(tmp_path):
    fit(tmp_path).trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = MLR(D, **QUICK)
    again.round = None  # a round would fail
    trainer(tmp_path, 200, monitor="val/map").fit(
        again, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True
    )
    assert again.converged


def test_other_options_are_refused_but_for_more_rounds(tmp_path):
    """Bounds of another problem would prove nothing, and a converged fit would be taken for that of these options."""
    last = tmp_path / "last.ckpt"
    fit(tmp_path).trainer.save_checkpoint(last)
    for given in ({"C": 33.0}, {"measure": "auc"}, {"eps": 1e-7}):
        other = MLR(D, **(QUICK | given))
        with pytest.raises(ValueError, match=rf"made with {next(iter(given))}=.* and this MLR has .* go on with"):
            trainer(tmp_path, 9, monitor=None).fit(other, datamodule=data(), ckpt_path=last, weights_only=True)
    more = MLR(D, **(QUICK | {"rounds": 500}))
    trainer(tmp_path, 500, monitor=None).fit(more, datamodule=data(), ckpt_path=last, weights_only=True)
    assert more.converged


def test_other_data_and_another_ranker_are_refused(tmp_path):
    """Cuts of other lists bound another problem, and its test points may be among them."""

    class Mine(MLR):
        pass

    def go_on(ranker, train, message):
        module = data(form="corpus")
        module.sets["train"] = train
        with pytest.raises(ValueError, match=message) if message else nullcontext():
            trainer(tmp_path, 9, monitor=None).fit(ranker, datamodule=module, ckpt_path=last, weights_only=True)

    last, train = tmp_path / "last.ckpt", graded()
    fit(tmp_path, data(form="corpus"), rounds=2).trainer.save_checkpoint(last)
    other = "made with other training lists"
    go_on(MLR(D, **QUICK), graded(seed=9), other)
    go_on(MLR(D, **QUICK), train.subset(torch.arange(len(train)).flip(0)), other)
    train.labels = 3 - train.labels
    go_on(MLR(D, **QUICK), train, other)
    go_on(MetricBaseline(D, transform=None), graded(), "holds a MLR, not a MetricBaseline")
    go_on(RMLR(D), graded(), "holds a MLR, not a RMLR")
    go_on(Mine(D, **QUICK), graded(), None)


def test_outlines_tell_classes_and_their_order():
    x, classes = rows(0, 12)
    outlines = []
    for codes in (classes, classes.flip(0), classes[torch.randperm(12, generator=torch.Generator().manual_seed(1))]):
        relevance = SameClass(codes, codes, ("a", "b", "c"))
        outlines.append(CorpusSet(x, x, relevance, own=torch.arange(12)).outline())
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


def test_tuples_and_lists_are_the_same_options(tmp_path):
    one, other = (MLR(D, **(QUICK | {"transform": kind(["standard", "l2"])})) for kind in (list, tuple))
    trainer(tmp_path, 1, monitor=None).fit(one, datamodule=data())
    one.trainer.save_checkpoint(tmp_path / "one.ckpt")
    trainer(tmp_path, 2, monitor=None).fit(other, datamodule=data(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)


def test_a_checkpoint_brings_its_certificate_and_the_C_of_a_path(tmp_path):
    ranker = fit(tmp_path, C=[1.0, 10.0])
    ranker.trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = torchrank.load(tmp_path / "last.ckpt")
    assert loaded.certificate == ranker.certificate and loaded.certificate["gap"] <= loaded.certificate["eps*C"]
    assert loaded.findings == {"C": 10.0}


def test_a_ranker_can_be_fitted_again_to_other_lists(tmp_path):
    ranker = fit(tmp_path)
    trainer(tmp_path, 200, monitor=None, precision="64-true").fit(ranker, datamodule=data(form="corpus"))
    assert torch.equal(ranker.metric, fit(tmp_path / "new", data(form="corpus")).metric)
