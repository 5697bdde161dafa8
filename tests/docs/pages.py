"""Code blocks of the documentation, to be run by tests."""

import re
import sys
import types
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def module_of(page: str, block: int = 0) -> types.ModuleType:
    """A block as a module that was imported."""
    module = types.ModuleType(f"docs_{page.removesuffix('.md')}")
    sys.modules[module.__name__] = module
    exec(compile(blocks(page)[block], page, "exec"), vars(module))
    return module
