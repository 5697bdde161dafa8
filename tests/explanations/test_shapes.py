"""Functions of single features: exact parts of additive networks, their curves and importances."""

import pytest
import torch

from tests.rankers.small import FEATURES, lists
from torchrank import DataError, ListNet, NeuralRanker, explain, shape_functions

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module", params=[1, 3], ids=["one", "members"])
def additive(request):
    options = {"members": request.param, "transform": "quantile", "lr": 0.05}
    return NeuralRanker(FEATURES, "gam", "listnet", **options).fit(lists(0, 40), epochs=15)


def test_explanations_are_exact(additive):
    test = lists(2)
    found = explain(additive, test.x, test.offsets)
    assert found.method == "functions of single features, exact"
    torch.testing.assert_close(found.residual, torch.zeros_like(found.residual), rtol=0, atol=1e-5)


def test_the_curve_of_a_feature_is_the_score_when_it_alone_moves(additive):
    test = lists(2)
    found = shape_functions(additive, test)
    assert found.values.shape == found.terms.shape == (len(test.labels), FEATURES)
    assert (found.values.diff(dim=0) >= 0).all()
    for feature in range(FEATURES):
        rows = test.x[:1].repeat(len(test.x), 1)
        rows[:, feature] = found.values[:, feature].float()
        scores = additive(rows, group=[len(rows)]).double().detach()
        expected = scores - scores.mean()
        torch.testing.assert_close(found.terms[:, feature], expected, rtol=0, atol=1e-4)
        assert float(found.importance[feature]) == pytest.approx(float(expected.std(correction=0)), abs=1e-4)
    assert set(found.order()[:2].tolist()) == {1, 3}  # of which the grades are made


def test_they_print_and_draw_themselves(additive, tmp_path):
    found = shape_functions(additive, lists(2), documents=20)
    assert found.values.shape == (20, FEATURES) and "f2" in str(found) and found.to_dict()["documents"] == 20
    found.plot(tmp_path / "shapes.png", top=3)
    assert (tmp_path / "shapes.png").stat().st_size > 1000


def test_linear_rankers_have_lines_and_others_are_refused():
    linear = ListNet(FEATURES).fit(lists(0))
    found = shape_functions(linear, lists(2))
    slopes = found.terms.diff(dim=0)[1:] / found.values.diff(dim=0)[1:]
    torch.testing.assert_close(slopes, slopes[:1].expand_as(slopes), rtol=1e-2, atol=1e-3)
    with pytest.raises(DataError, match="NeuralRanker has no function of each feature: use scorer=gam"):
        shape_functions(NeuralRanker(FEATURES).fit(lists(0), epochs=1), lists(2))
    with pytest.raises(DataError, match="not pca or quadratic"):
        shape_functions(NeuralRanker(FEATURES, "gam", transform="pca").fit(lists(0), epochs=1), lists(2))
