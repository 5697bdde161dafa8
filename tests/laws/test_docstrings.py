"""The docstring of every exported name has an example that runs, its parameters, and what a function returns."""

import inspect
import re

import pytest

import torchrank
import torchrank.data
import torchrank.functional

ROOMS = (torchrank, torchrank.data, torchrank.functional)
EXPORTED = {f"{room.__name__}.{name}": getattr(room, name) for room in ROOMS for name in room.__all__}


@pytest.mark.parametrize("name", [name for name, each in EXPORTED.items() if callable(each)])
def test_docstrings_are_complete(name):
    each = EXPORTED[name]
    text = inspect.cleandoc(each.__doc__ or "")
    sections = dict(re.findall(r"^(Args|Returns|Example):\n((?:    .*\n?|\n)+)", text, re.MULTILINE))
    assert ">>> " in sections.get("Example", ""), f"{name} has no example"
    assert "Returns" in sections or inspect.isclass(each), f"{name} does not say what it returns"
    is_error = inspect.isclass(each) and issubclass(each, Exception)  # takes what every exception takes
    for parameter in () if is_error else inspect.signature(each).parameters:
        named = re.search(rf"^    (\w+, )*\**{parameter}\b[^:]*:", sections.get("Args", ""), re.MULTILINE)
        assert named, f"the Args of {name} do not explain {parameter}"
