"""Distillation: a student learns from the scores of a teacher, so that one small ranker comes near to a large one."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import Tensor

from torchrank.data.sampler import ranges
from torchrank.data.sets import RankingSet
from torchrank.errors import DataError, check_integer, check_number
from torchrank.functional.ragged import per_entry, segment_max, segment_min
from torchrank.rankers.core.checkpoints import load
from torchrank.rankers.core.evaluation import top_grade
from torchrank.rankers.core.ranker import Ranker
from torchrank.rankers.ensemble.members import batch_for
from torchrank.rankers.ensemble.standard import standard_scores
from torchrank.rankers.neural.ranker import NeuralRanker
from torchrank.rankers.trees.ranker import GBDTRanker
from torchrank.record import checkpoint_of

DOCUMENTS = 20_000  # that are scored at once
GRADES = 5  # where the true labels are real-valued
NEED_GRADES = ("bce", "ordinal", "warp", "structured_hinge")  # losses that count or compare grades


def distil(
    teacher: Ranker | str | PathLike[str],
    student: Ranker,
    train: RankingSet,
    val: RankingSet | None = None,
    *,
    alpha: float = 1.0,
    grades: int | None = None,
    **options: Any,
) -> Ranker:
    """Fit a student of any kind to the scores of a teacher, in place of the labels.

    The scores are standardised in each list and moved so that its lowest is 0, since labels are not negative. Students
    that need grades (trees, boosted rules, maximal margins, ...) get integers instead: in each list the best document
    has the highest grade, the worst has 0, and the others lie between as their scores do. Validation lists keep their
    true labels.

    Args:
        teacher: a fitted ranker such as an `Ensemble`, a checkpoint or a run folder.
        student: a ranker, whose fit starts over.
        train: the lists to learn from. Their labels do not matter with alpha=1: they may be lists without judgements.
        val: the lists to choose the best round or epoch by, with true labels.
        alpha: share of the teacher; 1 - alpha is that of the true labels, which are standardised likewise.
        grades: the number of grades; None: real-valued labels where the student takes them, otherwise as many as the
            true labels have (5 where these are real-valued).
        options: of `Ranker.fit`, such as epochs and seed.

    Returns:
        The student, fitted.

    Example:
        >>> from torchrank import GBDTRanker, ListNet
        >>> from torchrank.data import synthetic_splits
        >>> sets = synthetic_splits(num_queries=30, num_features=10)
        >>> teacher = GBDTRanker(10, rounds=20, threads=1).fit(sets["train"])
        >>> student = distil(teacher, ListNet(10), sets["train"], sets["val"])
        >>> type(student).__name__, student.certificate.proved
        ('ListNet', True)
    """
    return student.fit(distilled(teacher, student, train, alpha=alpha, grades=grades), val, **options)


def distilled(
    teacher: Ranker | str | PathLike[str],
    student: Ranker,
    train: RankingSet,
    *,
    alpha: float = 1.0,
    grades: int | None = None,
) -> RankingSet:
    """The training lists with the labels that the student learns from: see `distil`."""
    check_number(">= 0 and <= 1", alpha=alpha)
    check_integer(">= 2", grades=grades)
    given = teacher if isinstance(teacher, Ranker) else load(checkpoint_of(teacher))
    offsets = train.offsets.cpu()
    mixed = alpha * teacher_scores(given, train)
    if alpha < 1:
        mixed = mixed + (1 - alpha) * standard_scores(train.labels.cpu().double(), offsets)
    if grades is None and not takes_real_labels(student):
        grades = train.num_grades if train.num_grades > 1 else GRADES
    new = train.relabelled(labels_of(mixed, offsets, grades).to(train.device))
    new.max_label = top_grade(train)  # err is measured by the true grades
    return new


def labels_of(scores: Tensor, offsets: Tensor, grades: int | None) -> Tensor:
    """Labels (N,) >= 0 of scores: those above the lowest of the list or, with so many grades, integers in steps of
    equal width from the lowest to the highest of the list.

    >>> scores, offsets = torch.tensor([-1.0, 3.0, 0.5, 7.0]), torch.tensor([0, 3, 4])
    >>> labels_of(scores, offsets, None).tolist(), labels_of(scores, offsets, 3).tolist()
    ([0.0, 4.0, 1.5, 0.0], [0.0, 2.0, 1.0, 0.0])
    """
    entries, lowest = len(scores), segment_min(scores, offsets)
    above = scores - per_entry(lowest, offsets, entries)
    if grades is None:
        return above.float()
    width = segment_max(scores, offsets) - lowest
    return (above / per_entry(torch.where(width > 0, width, 1.0), offsets, entries) * (grades - 1)).round().float()


@torch.no_grad()
def teacher_scores(teacher: Ranker, lists: RankingSet) -> Tensor:
    """Scores (N,) of a fitted ranker on the host, standardised in each list."""
    if teacher.num_features != lists.num_features:
        name, count = type(teacher).__name__, lists.num_features
        raise DataError(f"the teacher, a {name}, ranks rows of {teacher.num_features} features, but these have {count}")
    if teacher.by_query and not lists.has_queries:
        raise DataError(
            f"the teacher, a {type(teacher).__name__}, was fitted with query vectors: these lists have none"
        )
    teacher.check_names(lists.feature_names)
    lists.check_rows()
    was_training, found = teacher.training, [torch.zeros(0, dtype=torch.float64)]
    teacher.eval()
    for first, last in ranges(lists.lengths, DOCUMENTS, 0, len(lists)):
        batch = lists[first:last].to(teacher.device)
        found.append(standard_scores(teacher.score(batch_for(teacher, batch)), batch.offsets).cpu())
    teacher.train(was_training)
    scores = torch.cat(found)
    if missing := int(scores.isnan().sum()):
        raise DataError(f"{missing} of {len(scores)} scores of the teacher are NaN: did its fit diverge?")
    return scores


def takes_real_labels(student: Ranker) -> bool:
    """Whether it learns from labels between the grades as they are: by losses of differences or of distributions."""
    if isinstance(student, GBDTRanker):
        return bool(student.hparams["objective"] == "regression")
    return isinstance(student, NeuralRanker) and student.loss_name not in NEED_GRADES
