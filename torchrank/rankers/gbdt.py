"""LightGBM as a ranker: one tree per round; validated, saved and tested like every other ranker."""

from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.data.training import TrainingLists
from torchrank.errors import CheckpointError, DataError, NumericalWarning, check_choice, check_integer
from torchrank.rankers.booster_text import check_booster_text
from torchrank.rankers.core.kept import KEPT_BYTES, BatchMemory
from torchrank.rankers.core.ranker import Ranker, TransformOption, warn
from torchrank.rankers.core.rounds import Round

OBJECTIVES = ("lambdarank", "rank_xendcg", "regression")  # LambdaMART, its listwise variant, and GBRT of the papers
ALIASES = {  # LightGBM's other names of what the ranker sets
    "objective": ("app", "application", "loss", "objective_type"),
    "learning_rate": ("eta", "shrinkage_rate"),
    "num_leaves": ("max_leaf", "max_leaf_nodes", "max_leaves", "num_leaf"),
    "min_data_in_leaf": ("min_child_samples", "min_data", "min_data_per_leaf", "min_samples_leaf"),
    "num_threads": ("n_jobs", "nthread", "nthreads", "num_thread"),
    "seed": ("random_seed", "random_state"),
    "verbosity": ("verbose",),
    "metric": ("metric_types", "metrics"),
    "num_iterations": (
        *("max_iter", "n_estimators", "n_iter", "nrounds", "num_boost_round"),
        *("num_iteration", "num_round", "num_rounds", "num_tree", "num_trees"),
    ),
}
NAMES = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
MOST_DOCUMENTS = 10_000  # of a list, in LightGBM's lambdarank
MOST_GRADES = 31  # without label_gain


class GBDTRanker(Ranker):
    """Gradient boosted trees of LightGBM (Ke et al. 2017).

    Early stopping uses the measures of torchrank, as for every ranker. A resumed fit continues from the text of the
    booster. It equals an uninterrupted one, except with rank_xendcg or with `options` (bagging draws random numbers): a
    warning says so.

    Args:
        num_features: number of columns of the rows.
        objective: lambdarank, rank_xendcg, or regression on the labels.
        rounds: maximum number of trees.
        lr: learning rate.
        leaves: maximum number of leaves of a tree.
        min_leaf: minimum number of documents in a leaf.
        threads: number of threads of LightGBM; 0: all cores.
        seed: seed of LightGBM.
        transform: feature transform, see `make_transform`.
        options: further parameters of LightGBM; they take precedence over those above.

    Example:
        >>> from torchrank.data import RankingSet
        >>> x, offsets = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0, 3])
        >>> lists = RankingSet(x, torch.tensor([0.0, 2.0, 1.0]), offsets)
        >>> GBDTRanker(1, rounds=5, min_leaf=1, threads=1).fit(lists).rank(x, offsets)
        tensor([1, 2, 0])
    """

    takes = frozenset({"sparse"})

    def __init__(
        self,
        num_features: int,
        objective: str = "lambdarank",
        rounds: int = 1000,
        lr: float = 0.05,
        leaves: int = 31,
        min_leaf: int = 20,
        threads: int = 0,
        seed: int = 0,
        transform: TransformOption = None,
        options: dict[str, Any] | None = None,
    ):
        check_choice(OBJECTIVES, objective=objective)
        check_integer(">= 2", leaves=leaves)
        super().__init__(num_features, transform, rounds)
        self.parameters_of_lightgbm: dict[str, Any] = {
            "objective": objective,
            "learning_rate": lr,
            "num_leaves": leaves,
            "min_data_in_leaf": min_leaf,
            "num_threads": threads,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
            "metric": "none",
            **_by_main_names(options or {}),
        }
        self.exact_resume = objective != "rank_xendcg" and not options
        self.booster: Any = None

    def start(self, lists: TrainingLists) -> None:
        self.booster = None

    def open(self, lists: TrainingLists) -> None:
        if lists.world > 1:
            threads = "trainer=cpu (LightGBM uses all cores)"
            raise ValueError(f"GBDTRanker trains in one process, but there are {lists.world}: use {threads}")
        self.kept.growing = False  # whether the booster holds the training data and can be updated
        self.kept.memory = BatchMemory(KEPT_BYTES)

    def round(self, lists: TrainingLists, number: int) -> Round:
        if self.kept.growing:
            return Round(done=self.booster.update())
        self.booster = lightgbm().train(
            self.parameters_of_lightgbm,
            self._training_data(lists),
            num_boost_round=1,
            init_model=self.booster,
            keep_training_booster=True,
        )
        self.kept.growing = True
        return Round(done=False)

    def _training_data(self, lists: TrainingLists) -> Any:
        batch = lists.lists[:]
        self._check_limits(batch)
        if self.booster is not None and not self.exact_resume:
            warn(
                "LightGBM's random numbers start over, so the resumed fit differs from an uninterrupted one",
                NumericalWarning,
            )
        return lightgbm().Dataset(
            array(batch.x), batch.labels.cpu().numpy(), group=batch.offsets.diff().cpu().numpy(), free_raw_data=False
        )

    def _check_limits(self, batch: Batch) -> None:
        """What LightGBM itself would end with, or with a wrong number."""
        objective, others = self.parameters_of_lightgbm["objective"], "use objective=regression"
        if objective != "regression" and batch.num_grades == 0:
            raise DataError(f"LightGBM ranks integer grades, but the labels are real-valued: {others}")
        if objective != "lambdarank":
            return
        if batch.max_length > MOST_DOCUMENTS:
            raise DataError(
                f"LightGBM's lambdarank takes lists of {MOST_DOCUMENTS} documents at most, but one has "
                f"{batch.max_length}: use objective=rank_xendcg, or split the list"
            )
        if batch.num_grades > MOST_GRADES and "label_gain" not in self.parameters_of_lightgbm:
            raise DataError(
                f"LightGBM's lambdarank knows the gains of labels up to {MOST_GRADES - 1}, but the highest label is "
                f"{batch.num_grades - 1}: give its option label_gain, or map the labels to fewer grades"
            )

    def release(self) -> None:
        super().release()
        if self.booster is not None:
            self.booster = as_booster(as_text(self.booster))  # without the training data

    def score(self, batch: Batch) -> Tensor:
        return self._predict(batch, first_tree=0)

    def validation_scores(self, batch: Batch) -> Tensor:
        """Scores (N,); during a fit those of the last validation are kept, and only the new trees are added."""
        memory: BatchMemory | None = getattr(self.kept, "memory", None)
        if memory is None or self.booster is None:
            return self.score(batch)
        held: Any = memory.find(batch) or (None, 0, None)
        booster, trees, before = held
        counted = self.booster.current_iteration()
        grown = booster is self.booster and trees <= counted
        scores: Tensor = before + self._predict(batch, first_tree=trees) if grown else self.score(batch)
        memory.keep(batch, (self.booster, counted, scores))
        return scores

    def _predict(self, batch: Batch, first_tree: int) -> Tensor:
        if len(batch.labels) == 0 or self.booster is None or first_tree == self.booster.current_iteration():
            return torch.zeros_like(batch.labels, dtype=torch.float64)
        threads = self.parameters_of_lightgbm["num_threads"]
        scores = self.booster.predict(array(batch.x), raw_score=True, start_iteration=first_tree, num_threads=threads)
        return torch.from_numpy(np.asarray(scores, dtype=np.float64)).to(batch.device)

    def get_extra_state(self) -> dict[str, Any]:
        text = None if self.booster is None else as_text(self.booster)
        return super().get_extra_state() | {"booster": text, "checksum": None if text is None else crc32(text.encode())}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        text = state["booster"]
        if not isinstance(text, str | None):
            raise CheckpointError(f"the trees in this state must be a text, got {type(text).__name__}")
        if text is not None and state.get("checksum") != crc32(text.encode()):  # LightGBM would end the interpreter
            raise CheckpointError("the trees in this state are damaged: their checksum differs. Fit the ranker again.")
        if text is not None:
            check_booster_text(text, self.transform.num_outputs)
        self.booster = None if text is None else as_booster(text)


def _by_main_names(options: dict[str, Any]) -> dict[str, Any]:
    """Options by LightGBM's main names, under which the ranker sets them too; an alias would be ignored beside them."""
    found: dict[str, Any] = {}
    for given, value in options.items():
        name = NAMES.get(given, given)
        if name in found:
            raise ValueError(f"options have {name} twice, once as {given}: give it once")
        if name == "num_iterations" or value == "dart":
            raise ValueError(
                f"options cannot have {given}={value}: rounds are an option of the ranker, and dart changes trees "
                "that are already validated"
            )
        found[name] = value
    if "objective" in found:
        check_choice(OBJECTIVES, **{"options.objective": found["objective"]})
    return found


def as_text(booster: Any) -> str:
    return str(booster.model_to_string(num_iteration=-1))


def as_booster(text: str) -> Any:
    return lightgbm().Booster(model_str=text)


def lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise ImportError("GBDTRanker needs LightGBM: pip install 'torchrank-ltr[gbdt]'") from error
    return lightgbm


def array(x: Tensor | SparseRows) -> Any:
    """Rows as LightGBM takes them: arrays in single or double precision, or a scipy matrix."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if not isinstance(x, SparseRows):
        return x.detach().to(device="cpu", dtype=dtype).numpy()
    from scipy.sparse import csr_matrix

    x = x.to("cpu", dtype)
    return csr_matrix((x.values.numpy(), x.columns.numpy(), x.row_offsets.numpy()), shape=tuple(x.shape))
