"""Feature induction and the full L1 optimum on a text corpus: average precision, density, time, memory.

One model per topic, all topics at once, on the seeded corpus `data=text` with pivoted tf-idf. First a path of l1,
downwards from the value at which all weights of a topic are 0, finds the share with the best validation MAP. Its steps
only have to tell which share is best, so they are solved by induction and to a looser violation. Then both fits at that
l1 from w = 0, each in its own process and to the same KKT violation: FISTA on all features, and feature induction.
Memory is the largest resident size minus that after the imports.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

from pytorch_lightning import Callback, Trainer

from benchmarks.suite import Row, Setting, in_process
from torchrank import DominationRank, RankingDataModule, RankingEvaluation
from torchrank.files import peak_memory_mb

RATIO = 0.02  # the last l1 of the path as a share of the first
PART = "import json, sys; from benchmarks.induction import part; print(json.dumps(part(**json.loads(sys.argv[1]))))"


@dataclass(frozen=True)
class Corpus:
    documents: int = 50_000
    features: int = 100_000
    topics: int = 20
    steps: int = 10  # of the path
    tolerance: float = 1e-4
    path_tolerance: float = 1.0
    features_per_round: int = 30


def rows(setting: Setting) -> Iterator[Row]:
    corpus = Corpus(200, 500, 2, 2, 1.0) if setting.quick else Corpus()
    run = partial(in_turn if setting.quick else alone, corpus)
    chosen = run("path")
    share = max(chosen["map"], key=lambda pair: pair[1])[0]
    full, induced = (run(name, share) for name in ("full", "induced"))
    apart, csr = f"MAP {induced['map']:.4f}, theirs {full['map']:.4f}", induced["csr"] / 1e6
    yield Row(f"feature induction at {share:.3g} of the largest l1", induced["cpu"], peer="FISTA on all features",
              theirs=full["cpu"], bar=1, note=apart)  # fmt: skip
    yield Row("memory of feature induction", induced["memory"] / 1e6, "MB", "the sparse rows", csr, bar=6)
    yield Row("memory of FISTA", full["memory"] / 1e6, "MB", "the sparse rows", csr)
    yield Row("weights that are not 0", 100 * induced["density"], "%", "limit", 1, bar=1)


def alone(corpus: Corpus, name: str, share: float | None = None) -> dict:
    """Run a part in its own process, whose last line is what it found."""
    given = json.dumps({"name": name, "share": share, "corpus": asdict(corpus)})
    return json.loads(in_process(PART, given).splitlines()[-1])


def in_turn(corpus: Corpus, name: str, share: float | None = None) -> dict:
    """Run a part in this process: its memory means little."""
    return part(name, share, asdict(corpus))


def part(name: str, share: float | None, corpus: dict) -> dict:
    options = Corpus(**corpus)
    if name == "path":
        return path(options)
    return one(options, share, **({"induction": options.features_per_round} if name == "induced" else {}))


class Validated(Callback):
    """Keeps the validation MAP of each validated round."""

    def __init__(self):
        self.values = []

    def on_validation_end(self, trainer, ranker):
        self.values.append(float(trainer.callback_metrics["val/map"]))


def fit(options, **settings):
    """The fitted ranker, its trainer and data, the validated rounds, and the time and memory of the fit."""
    before = peak_memory_mb()
    data = RankingDataModule(
        "text",
        num_documents=options.documents,
        num_features=options.features,
        num_topics=options.topics,
        batch_documents=60_000,  # two topics at a time: memory
    )
    data.setup()
    ranker = DominationRank(data.num_features, l2=0.0, per_topic=True, transform="singhal", rounds=1000, **settings)
    watch = Validated()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    callbacks = [RankingEvaluation(["map"]), watch]
    trainer = Trainer(accelerator="cpu", max_epochs=1000, num_sanity_val_steps=0, callbacks=callbacks, **quiet)
    cpu = time.process_time()
    trainer.fit(ranker, datamodule=data)
    spent = {"cpu": time.process_time() - cpu}
    return ranker, trainer, data, watch, spent | {"memory": (peak_memory_mb() - before) * 2**20}


def path(options):
    settings = {"path": options.steps, "path_ratio": RATIO, "tolerance": options.path_tolerance}
    *_, watch, found = fit(options, l1=1.0, induction=options.features_per_round, **settings)
    shares = [RATIO ** (step / max(options.steps - 1, 1)) for step in range(options.steps)]
    return found | {"map": list(zip(shares, watch.values[-len(shares) :], strict=True))}


def one(options, share, **settings):
    ranker, trainer, data, _, found = fit(options, l1=share, relative=True, tolerance=options.tolerance, **settings)
    (tested,) = trainer.test(ranker, datamodule=data, verbose=False)
    found |= {"map": tested["test/map"], "kkt": ranker.certificate.found}
    weight, csr = ranker.weight, 0
    for lists in data.sets.values():
        csr += sum(part.nbytes for part in (lists.x.values, lists.x.columns, lists.x.row_offsets))
    return found | {"density": (weight != 0).double().mean().item(), "csr": csr}
