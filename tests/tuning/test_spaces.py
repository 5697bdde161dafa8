"""Search spaces: every model has one, its values are options that the model takes, and the command line narrows it."""

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from tests.cli.test_configs import MODELS, composed, conf  # noqa: F401
from torchrank.train import CONF
from torchrank.tuning.configs import OWN, compose_model, parse, read_dimension, read_line, search_space
from torchrank.tuning.pruning import is_hopeless, is_rung
from torchrank.tuning.spaces import Choices, Range, as_text


def test_every_model_has_a_space():
    assert sorted(path.stem for path in (CONF / "search").glob("*.yaml")) == MODELS


@pytest.mark.usefixtures("conf")
@pytest.mark.parametrize("name", MODELS)
def test_the_values_of_a_space_are_options_of_its_model(name):
    config = composed(f"model={name}", "seed=0")
    for key, dimension in search_space(name).items():
        texts = dimension.values if isinstance(dimension, Choices) else (repr(dimension.low), repr(dimension.high))
        for text in texts:
            assert OmegaConf.select(config, key, default="nowhere") != "nowhere", key
            option = {key.removeprefix("model."): parse([f"{key}={text}"])[0].value()}
            assert instantiate(config.model, num_features=7, _convert_="all", **option).num_features == 7


@pytest.mark.parametrize("value", [None, True, 3, 1e-5, "standard", "a b", "null", "1", [1, "x"], {"a": [1.5, None]}])
def test_texts_of_values_are_read_back(value):
    assert parse([f"key={as_text(value)}"])[0].value() == value


def test_the_command_line_fixes_options_and_brings_its_own_ranges():
    given = ["model=lambdarank,gbdt", "model.lr=tag(log,interval(0.01,0.2))", "seed=3", "trials=7", "model.k=1,2"]
    line = read_line(given, OWN)
    assert (line.models, line.overrides, line.own["trials"]) == (["lambdarank", "gbdt"], ["seed=3"], 7)
    assert line.swept == {"model.lr": Range(0.01, 0.2, True), "model.k": Choices(("1", "2"))}
    found = compose_model("lambdarank", read_line(["model.lr=0.5", "model.k=1,2"], OWN))
    assert "model.lr" not in found.space and found.space["model.k"] == Choices(("null", "1", "2"))
    assert found.defaults["model.k"] == "null"


@pytest.mark.parametrize(
    "part", [{}, [], 3, {"choices": []}, {"low": 1}, {"low": 2, "high": 1}, {"low": "a", "high": 1}]
)
def test_a_bad_space_is_one_line(part):
    with pytest.raises(ValueError, match=r"x\.yaml"):
        read_dimension("x.yaml: model.lr", part)


def test_ranges_and_choices_include_the_default():
    assert Range.between(2, 8).including(31) == Range(2, 31, False, True)
    assert Range.between(1e-3, 1.0, log=True).including(0.0) == Range(1e-3, 1.0, True)
    assert Choices(("a",)).including(None) == Choices(("null", "a"))
    with pytest.raises(ValueError, match="low < high"):
        Range.between(1.0, 1.0)


def test_pruning_is_the_median_of_the_best_values_so_far():
    curves = [{1: 0.1, 2: 0.4, 4: 0.4}, {1: 0.5}, {1: 0.2, 2: 0.3, 3: 0.6, 4: 0.7}, {1: 0.3, 4: 0.5}]
    assert is_hopeless(4, 0.49, curves, "max") and not is_hopeless(4, 0.51, curves, "max")  # of 0.4, 0.5, 0.7, 0.5
    assert is_hopeless(4, 0.51, curves, "min") and not is_hopeless(4, 0.49, curves, "min")
    assert not is_hopeless(3, 0.0, curves, "max") and not is_hopeless(4, 0.0, curves[:3], "max")  # too early
    assert is_hopeless(4, float("nan"), curves, "max")
    assert [count for count in range(1, 100) if is_rung(count)][-3:] == [48, 64, 96]


def test_the_whole_of_an_option_is_fixed_with_its_part():
    """Otherwise a choice of `model.scorer_options` would undo what the command line sets in it."""
    fixed = compose_model("mlp", read_line(["model.scorer_options.dropout=0.3"], OWN))
    assert "model.lr" in fixed.space and "model.scorer_options" not in fixed.space
    swept = compose_model("mlp", read_line(["model.scorer_options.dropout=0.2,0.3"], OWN))
    assert swept.space["model.scorer_options.dropout"] == Choices(("0.1", "0.2", "0.3"))
    assert "model.scorer_options" not in swept.space


def test_an_option_that_is_added_can_be_searched():
    found = compose_model("gbdt", read_line(["+model.options.lambda_l2=0.5,2.0"], OWN))
    key = "+model.options.lambda_l2"
    assert found.space[key] == Choices(("null", "0.5", "2.0")) and found.defaults[key] == "null"
    assert "model.options" not in found.space and compose_model("gbdt", read_line([f"{key}=2.0"], OWN)).space


@pytest.mark.parametrize(
    "given", ["data=mq2007,mq2008", "data.fold=1,2", "monitor=val/map,val/mrr", "inner=1/5,2/5", "trainer=cpu,gpu"]
)
def test_what_trials_are_compared_by_is_not_searched(given):
    with pytest.raises(ValueError, match=f"^{given.partition('=')[0]} must have one value"):
        read_line([given], OWN)
