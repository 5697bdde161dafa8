"""An extension of griffe: what docstrings call "Example:" is what it calls "Examples:", a section of doctests."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Rename the sections, so that their doctests are shown as code."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
