"""Small graded lists, fits of GMML and L-GMML on them, and the comparison with `local_reference.py`."""

import numpy as np
import torch
from pytorch_lightning import Trainer

from torchrank import LGMML, RankingDataModule, RankingSet

from . import local_reference as plain

FEATURES, DEAD, QUERY_LEVEL = 7, 4, 6  # feature 4 is constant in training, feature 6 constant in every list


def graded(seed: int, num_lists: int = 13, *, top: int | None = None, dead: bool = True) -> RankingSet:
    """Lists of grades 0..4 with an odd number of documents in all; two lists have one grade, one has one document.

    Every other list has at least two documents of grade `top` (or of its own highest grade) and two of grade 0.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(7, 14, num_lists)
    lengths[1] = 1
    lengths[0] += 1 - lengths.sum() % 2
    rows, labels = [], []
    for q, length in enumerate(lengths):
        highest = rng.integers(1, 5) if top is None else top
        grades = np.concatenate([[highest, highest, 0, 0], rng.integers(0, highest + 1, 20)])[:length]
        grades = np.full(length, [0, 0, 2][q]) if q in (1, 2) else rng.permutation(grades)
        x = rng.normal(size=(length, FEATURES)) * [1, 3, 0.2, 1, 1, 1, 1] + rng.normal(size=FEATURES)
        x[:, 0] += 0.7 * grades
        x[:, 1] -= grades
        x[:, 5] += 0.5 * x[:, 0] * rng.normal()
        x[:, DEAD] = 2.5 if dead else x[:, DEAD]
        x[:, QUERY_LEVEL] = rng.normal()
        rows.append(x)
        labels.append(grades)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    x = torch.tensor(np.concatenate(rows), dtype=torch.float32)
    return RankingSet(x, torch.tensor(np.concatenate(labels), dtype=torch.float32), torch.tensor(offsets))


def run(ranker, train, epochs: int = 1, test=None, documents: int = 40):
    """Fit without validation; with `test`, the scores that `trainer.predict` gives."""
    torch.manual_seed(0)
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, logger=False, enable_progress_bar=False,
        num_sanity_val_steps=0, enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=1,
        use_distributed_sampler=False,
    )  # fmt: skip
    data = RankingDataModule.from_sets(train=train, test=test, batch_documents=documents)
    trainer.fit(ranker, datamodule=data)
    ranker.eval()
    if test is None:
        return ranker
    with torch.no_grad():
        return torch.cat(trainer.predict(ranker, datamodule=data))


def first_round(train, cls=LGMML, **options):
    settings = {"metrics": 4, "queries_per_metric": 3, "rounds": 1} if cls is LGMML else {}
    return run(cls(train.num_features, **settings | options), train)


def live(train) -> list[int]:
    return [j for j in range(train.num_features) if train.x[:, j].unique().numel() > 1]


def rows_of(train, lists=None, standard: bool = True) -> np.ndarray:
    """Live features of the training rows, or those of other lists, as the transform leaves them."""
    own, other = train.x.double().numpy(), (train if lists is None else lists).x.double().numpy()
    return (plain.standardise(own, other) if standard else other)[:, live(train)]


def state(ranker, train) -> plain.Local:
    """Its metrics on the live features."""
    factors, anchors, tau = (part.detach().double() for part in (ranker.factors, ranker.anchors, ranker.tau))
    if factors.shape[1] != len(live(train)):
        factors, anchors = factors[:, live(train)], anchors[:, live(train)]
    return plain.Local((factors @ factors.mT).numpy(), anchors.numpy(), tau.numpy())


def tolerance(ranker) -> float:
    return 1e-9 if ranker.factors.dtype == torch.float64 else 5e-6


def close(actual, expected, limit: float, what: str = "") -> None:
    """Relative to the largest number of the whole array."""
    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected)
    assert actual.shape == expected.shape, what
    assert np.abs(actual - expected).max(initial=0) <= limit * np.abs(expected).max(initial=1e-300), what


def scores_of(ranker, lists, **given) -> np.ndarray:
    with torch.no_grad():
        return ranker(lists.x, lists.offsets, **given).double().numpy()


@torch.no_grad()
def write(parameter: torch.Tensor, values: torch.Tensor) -> None:
    parameter.copy_(values)


def compare(ranker, train, test, *, standard=True, rows_of_weights=None, **options) -> None:
    """Metrics, anchors, scales and scores of a fit against the transcription on the same source lists."""
    names = {"high", "t", "ridge", "ridge_mode", "anchor", "kappa", "exclude_self", "tau"}
    fitting = {name: value for name, value in options.items() if name in names}
    form = options.get("distance", "mahalanobis")
    expected = plain.fit(
        rows_of(train, standard=standard), train.labels.numpy(), train.offsets.numpy(), ranker.sources.numpy(),
        form=form, scatter_form=options.get("scatter", "mean"), **fitting,
    )  # fmt: skip
    actual, limit = state(ranker, train), tolerance(ranker)
    own = expected.metrics @ expected.metrics if form == "eq12" else expected.metrics  # ||M v||: F is M itself
    close(actual.metrics, own, limit, "metrics")
    close(actual.anchors, expected.anchors, limit, "anchors")
    close(actual.tau, expected.tau, limit, "tau")
    scoring = {"kernel": options.get("kernel", "distance"), "beta": options.get("beta", 2.0), "form": form}
    rows = rows_of(train, test, standard)
    weights = np.ones(len(expected.tau)) if rows_of_weights is None else rows_of_weights
    close(scores_of(ranker, test), plain.scores(expected, rows, test.offsets.numpy(), weights, **scoring), 4 * limit)
