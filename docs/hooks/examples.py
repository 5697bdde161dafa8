"""An extension of griffe, which reads docstrings and signatures from the source without running it.

"Example:" becomes "Examples:", which griffe knows as a section of doctests. Functions on lists get the keywords that
`takes_arrays` and its like add when the module is imported: group, qid, mask and list_weights.
"""

import re
from typing import Any

import griffe

from torchrank.functional.lists import Given, Weighted, explain_lists

KEYWORDS = {f"Unpack[{kind.__name__}]": list(kind.__annotations__) for kind in (Given, Weighted)}


class ExampleSections(griffe.Extension):
    """Show the doctests of all objects as code, and all keywords of functions on lists."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
        if isinstance(obj, griffe.Function):
            show_keywords(obj)


def show_keywords(function: griffe.Function) -> None:
    """Replace `**given: Unpack[Weighted]` by the keywords that it stands for, and explain them after offsets."""
    for parameter in list(function.parameters):
        if (names := KEYWORDS.get(str(parameter.annotation))) is None:
            continue
        del function.parameters[parameter.name]
        for name in names:
            kind = griffe.ParameterKind.keyword_only
            function.parameters.add(griffe.Parameter(name, annotation="Array", kind=kind, default="None"))
        if function.docstring:
            function.docstring.value = explain_lists(function.docstring.value)
