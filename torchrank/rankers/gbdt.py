"""LightGBM as a ranker of this house: one tree per round, measured, saved and tested like any other."""

from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from torchrank.data.batch import Batch
from torchrank.data.sparse import SparseRows
from torchrank.rankers.core.ranker import RoundRanker

OBJECTIVES = ("lambdarank", "rank_xendcg", "regression")  # the papers' lambda-MART, its listwise variant, and GBRT
ROUNDS = ("num_iteration", "num_tree", "num_round", "nround", "n_iter", "n_estimators", "max_iter", "num_boost_round")


class GBDTRanker(RoundRanker):
    """Gradient boosted trees (Ke et al. 2017). `options` are further parameters of LightGBM by their own names.

    Early stopping is the trainer's, on our own measures. A resumed fit continues from the text of the booster. It
    equals an uninterrupted one, but for rank_xendcg and for `options` that may draw (bagging): it says so.
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
        transform: str | dict | list | None = None,
        options: dict | None = None,
    ):
        if objective not in OBJECTIVES:
            raise ValueError(f"unknown objective {objective!r}: choose one of {', '.join(OBJECTIVES)}")
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
            **(options or {}),
        }
        for name, value in (options or {}).items():
            if name.startswith(ROUNDS) or value == "dart":
                raise ValueError(
                    f"options.{name}={value}: rounds are an option of the ranker, and dart changes trees that were "
                    "validated already"
                )
        self.exact_resume = objective != "rank_xendcg" and not options
        self.booster: Any = None
        self._growing = False  # the booster holds the training data and can be updated
        self._kept: dict[int, tuple[int, Tensor]] = {}  # validation batch -> (trees counted, scores)

    def setup(self, stage: str) -> None:
        if self.trainer.world_size > 1:
            raise ValueError("LightGBM trains in one process here: use trainer=cpu (its own threads use all cores).")
        super().setup(stage)

    def prepare(self) -> None:
        self.booster, self._growing, self._kept = None, False, {}

    def round(self) -> bool:
        if self._growing:
            return self.booster.update()
        self.booster = lightgbm().train(
            self.parameters_of_lightgbm,
            self._training_data(),
            num_boost_round=1,
            init_model=self.booster,
            keep_training_booster=True,
        )
        self._growing = True
        return False

    def _training_data(self) -> Any:
        batch = self.data.ready("train")[: len(self.data.sets["train"])]
        if self.parameters_of_lightgbm["objective"] != "regression" and batch.num_grades == 0:
            raise ValueError("LightGBM ranks grades 0, 1, 2, ..., these labels are others: use objective=regression.")
        if self.booster is not None and not self.exact_resume:
            rank_zero_warn("random choices of LightGBM start anew: the resumed fit differs from an uninterrupted one")
        return lightgbm().Dataset(
            array(batch.x), batch.labels.cpu().numpy(), group=batch.offsets.diff().cpu().numpy(), free_raw_data=False
        )

    def score(self, batch: Batch) -> Tensor:
        return self._predict(batch, first_tree=0)

    def evaluation_scores(self, split: str, batch: Batch) -> Tensor:
        """While fitting, the scores of the validation lists are kept and only the new tree is added."""
        if self.trainer.state.fn != "fit" or batch.num_lists == 0 or self.booster is None:
            return super().evaluation_scores(split, batch)
        key = int(batch.query[0])
        trees, scores = self._kept.get(key, (0, torch.zeros_like(batch.labels, dtype=torch.float64)))
        scores = scores + self._predict(batch, first_tree=trees)
        self._kept[key] = (self.booster.current_iteration(), scores)
        return scores

    def _predict(self, batch: Batch, first_tree: int) -> Tensor:
        if len(batch.labels) == 0 or self.booster is None or first_tree == self.booster.current_iteration():
            return torch.zeros_like(batch.labels, dtype=torch.float64)
        threads = self.parameters_of_lightgbm["num_threads"]
        scores = self.booster.predict(array(batch.x), raw_score=True, start_iteration=first_tree, num_threads=threads)
        return torch.from_numpy(np.asarray(scores, dtype=np.float64)).to(batch.device)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["booster"] = self.booster.model_to_string(num_iteration=-1)

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        super().on_load_checkpoint(checkpoint)
        self.booster = lightgbm().Booster(model_str=checkpoint["booster"])
        self._growing, self._kept = False, {}


def lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise ImportError("GBDTRanker needs LightGBM: pip install 'torchrank[gbdt]'") from error
    return lightgbm


def array(x: Tensor | SparseRows) -> Any:
    """Rows as LightGBM takes them, which knows no half precision."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if not isinstance(x, SparseRows):
        return x.detach().to(device="cpu", dtype=dtype).numpy()
    from scipy.sparse import csr_matrix

    x = x.to("cpu", dtype)
    return csr_matrix((x.values.numpy(), x.columns.numpy(), x.row_offsets.numpy()), shape=tuple(x.shape))
