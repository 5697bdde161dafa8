"""Anybody's module: a user's LightningModule and a plain torch loop train and validate on `RankingDataModule`."""

import inspect

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from tests.rankers.core.foreign import Mine
from tests.rankers.small import FEATURES, data, lists, measured, trainer
from torchrank import ListNet, RankingDataModule, RankingEvaluation, RankingMetrics, mean_over_lists
from torchrank.data import make_transform
from torchrank.functional import listnet_loss, ndcg


def made(seed=0):
    torch.manual_seed(seed)
    return Mine(FEATURES)


def equal(one, other):
    for key, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[key], tensor), key


def test_it_is_written_in_at_most_15_lines():
    lines = [line for line in inspect.getsource(Mine).splitlines() if line.strip()]
    assert len(lines) <= 15


@pytest.mark.parametrize("resident", [True, False, "auto"])
def test_it_trains_validates_tests_and_predicts(tmp_path, resident):
    module, runner = (
        made(),
        trainer(tmp_path, 15, callbacks=[RankingEvaluation(["ndcg@10", "map"], ["default", "letor"])]),
    )
    before = made()
    runner.fit(module, datamodule=data(resident=resident))
    assert runner.callback_metrics["val/ndcg@10"] > 0.7 and "val/letor/map" in runner.callback_metrics
    (tested,) = runner.test(module, datamodule=data(), verbose=False)
    test = lists(2)
    with torch.no_grad():
        learned, first = (ndcg(each(test.x), test.labels, test.offsets, k=10).nanmean() for each in (module, before))
    assert tested["test/ndcg@10"] == pytest.approx(float(learned), abs=1e-6) and learned > first + 0.05
    assert len(measured(runner, "test")["per_query"]["map"]) == len(test)
    found = torch.cat(runner.predict(module, datamodule=data()))
    torch.testing.assert_close(found, module(test.x).detach(), rtol=1e-5, atol=1e-6)


def test_resident_and_streamed_batches_give_the_same_fit(tmp_path):
    found = []
    for resident in (True, False):
        found.append(made())
        trainer(tmp_path, 3, monitor=None).fit(found[-1], datamodule=data(resident=resident))
    equal(*found)


def test_its_measures_stop_and_choose_as_any_logged_value(tmp_path):
    best = ModelCheckpoint(tmp_path, "chosen", monitor="val/map", mode="max")
    stopper = EarlyStopping("val/map", mode="max", patience=1, min_delta=1.0)
    runner = trainer(tmp_path, 20, callbacks=[RankingEvaluation(["ndcg@10", "map"]), best, stopper])
    runner.fit(made(), datamodule=data())
    assert runner.current_epoch == 2 and best.best_model_score is not None


@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_a_fit_is_resumed_in_the_middle_of_an_epoch(tmp_path, step):
    every = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False)
    whole, resumed = made(), made(seed=3)
    trainer(tmp_path, 3, monitor=None, callbacks=[every]).fit(whole, datamodule=data())
    again = trainer(tmp_path / "again", 3, monitor=None)
    again.fit(resumed, datamodule=data(), ckpt_path=tmp_path / f"{step}.ckpt", weights_only=True)
    equal(whole, resumed)


def test_a_transform_that_it_owns_is_applied(tmp_path):
    class Owner(Mine):
        def __init__(self, num_features):
            super().__init__(num_features)
            self.transform = make_transform("standard", num_features).fit(lists(0).x)

    owner, far = Owner(FEATURES), lists(2)
    (found,) = trainer(tmp_path).predict(owner, datamodule=RankingDataModule.from_sets(test=far))
    expected = owner(owner.transform(far.x, far.offsets)).detach()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_the_rows_of_a_ranker_before_it_do_not_stay(tmp_path):
    """A ranker's transform is its own: the same datamodule gives other modules the rows as they were read."""
    module, shared = made(), data()
    trainer(tmp_path, 3).fit(ListNet(FEATURES, rounds=3, transform="standard"), datamodule=shared)
    found = torch.cat(trainer(tmp_path).predict(module, datamodule=shared))
    torch.testing.assert_close(found, module(lists(2).x).detach(), rtol=1e-5, atol=1e-6)


def test_a_step_that_returns_no_scores_is_told_what_to_return(tmp_path):
    class Wrong(Mine):
        def validation_step(self, batch, batch_index):
            return None

    class Short(Mine):
        def validation_step(self, batch, batch_index):
            return self(batch.x)[:1]

    for kind, found in ((Wrong, "NoneType"), (Short, r"\(1,\)")):
        with pytest.raises(ValueError, match=rf"validation_step must return the scores \(\d+,\) .* got {found}"):
            trainer(tmp_path, 1, callbacks=[RankingEvaluation()]).fit(kind(FEATURES), datamodule=data())


def test_a_misspelt_measure_is_refused_at_once():
    with pytest.raises(ValueError, match="ndgc"):
        RankingEvaluation(["ndgc@10"])
    with pytest.raises(ValueError, match="convention"):
        RankingEvaluation(["ndcg@10"], ["no such"])


def test_loaders_without_a_datamodule_are_measured_too(tmp_path):
    evaluation, module = RankingEvaluation(["ndcg@10"]), made()
    module_data = data()
    module_data.setup()
    loader = module_data.val_dataloader()
    runner = trainer(tmp_path, callbacks=[evaluation])
    runner.validate(module, dataloaders=loader, verbose=False)
    val = lists(1)
    expected = ndcg(module(val.x), val.labels, val.offsets, k=10).nanmean()
    assert evaluation.measured["val"]["default"]["measures"]["ndcg@10"] == pytest.approx(float(expected), abs=1e-6)


def loop(epochs, resume=None, stop=None):
    """A plain torch loop, resumed and stopped at (epoch, batches given)."""
    module, source = made(), data()
    source.setup()
    optimizer, loader = torch.optim.Adam(module.parameters(), lr=0.05), source.train_dataloader()
    first = 0
    if resume is not None:
        module.load_state_dict(resume["module"])
        optimizer.load_state_dict(resume["optimizer"])
        loader.load_state_dict(resume["loader"])
        first = resume["loader"]["epoch"]
    for epoch in range(first, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            mean_over_lists(listnet_loss(module(batch.x), batch.labels, batch.offsets)).backward()
            optimizer.step()
            if stop == (epoch, loader.given):
                return {part: each.state_dict() for part, each in
                        (("module", module), ("optimizer", optimizer), ("loader", loader))}  # fmt: skip
    measures = RankingMetrics(["ndcg@10"])
    for batch in source.val_dataloader():
        measures.update(module(batch.x).detach(), batch.labels, batch.offsets)
    return module, measures.compute()["ndcg@10"]


def test_a_plain_torch_loop_is_the_fit_of_a_trainer(tmp_path):
    module, value = loop(5)
    through, runner = made(), trainer(tmp_path, 5, callbacks=[RankingEvaluation()])
    runner.fit(through, datamodule=data())
    equal(through, module)
    assert runner.callback_metrics["val/ndcg@10"] == pytest.approx(float(value))


@pytest.mark.parametrize("stop", [(0, 1), (1, 2), (2, 1)])
def test_a_plain_torch_loop_is_resumed_in_the_middle_of_an_epoch(stop):
    whole, _ = loop(4)
    resumed, _ = loop(4, resume=loop(4, stop=stop))
    equal(whole, resumed)
