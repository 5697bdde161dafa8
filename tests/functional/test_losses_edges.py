"""What all losses have in common at the edges: NaN, lists without pairs, scores near the largest number."""

import pytest
import torch

from tests.laws.cases import LEARN_ALONE, POINTWISE
from torchrank.functional import LOSSES, structured_hinge

each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
MEASURES = ["map", "auc", "mrr", "ndcg"]


@each_loss
def test_a_nan_score_makes_the_loss_and_the_slopes_of_its_list_nan_and_no_others(loss):
    scores = torch.tensor([1.0, torch.nan, 2.0, 0.5, 0.1, 3.0], dtype=torch.float64, requires_grad=True)
    values = loss(scores, torch.tensor([0, 1, 2, 0, 1, 1]), torch.tensor([0, 3, 6]))
    values.sum().backward()
    assert values.isnan().tolist() == [True, False]
    assert scores.grad.isnan().tolist() == [loss not in POINTWISE, True, loss not in POINTWISE, False, False, False]


@pytest.mark.parametrize("loss", [loss for loss in LOSSES.values() if loss not in LEARN_ALONE])
@pytest.mark.parametrize("label", [0, 1, 3])
def test_one_distinct_label_is_a_loss_of_0_whatever_the_scores(loss, label):
    scores = torch.tensor([1.0, torch.inf, -5.0], requires_grad=True)
    value = loss(scores, torch.full((3,), label), torch.tensor([0, 3]))
    value.sum().backward()
    assert value.tolist() == [0] and scores.grad.tolist() == [0, 0, 0]


@each_loss
def test_empty_lists_pass_anomaly_detection(loss):
    scores = torch.tensor([1.0, 5.0, 2.0], requires_grad=True)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly(check_nan=True):
        loss(scores, torch.tensor([1, 0, 1]), torch.tensor([0, 0, 3, 3])).sum().backward()
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("huge", [1e308, 1.7e308, 1e300])
def test_the_structured_hinge_of_huge_scores_is_finite(measure, huge):
    labels, offsets = torch.tensor([0, 1, 0, 1, 0]), torch.tensor([0, 3, 5])
    for scores in ([huge, -huge, 0.0, 1.0, 0.5], [-huge, huge, 0.0, 1.0, 0.5]):
        scores = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
        values = structured_hinge(scores, labels, offsets, measure=measure)
        values.sum().backward()
        assert torch.isfinite(values).all() and torch.isfinite(scores.grad).all()
        near = structured_hinge(scores.detach()[3:], labels[3:], torch.tensor([0, 2]), measure=measure)
        assert torch.equal(values[1:].detach(), near), "the other lists have the value that they have alone"
        small = torch.where(scores.detach().abs() > 1e200, scores.detach() / huge * 1e9, scores.detach())
        small.requires_grad_()
        structured_hinge(small, labels, offsets, measure=measure).sum().backward()
        assert torch.equal(scores.grad, small.grad), "the most violated ranking is that of smaller scores"
    assert values[0] == 0, "relevant entries far above the others"
