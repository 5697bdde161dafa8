"""The pages of the documentation: their code blocks, headings and links."""

import re
import sys
import textwrap
import types
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*?) -->\n\s*?\n?)?"
    r"(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    flags=re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block of a page; `reason` is why it is not run, if it is not."""

    language: str
    text: str
    line: int
    reason: str | None


def all_blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    page = path.read_text()
    return [
        Block(
            found["language"], textwrap.dedent(found["text"]), page.count("\n", 0, found.start("text")), found["reason"]
        )
        for found in FENCE.finditer(page)
    ]


def prose(path: Path) -> str:
    """A page without its fenced blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text()))


def blocks(page: str) -> list[str]:
    """The Python blocks of a page of docs/."""
    return [block.text for block in all_blocks(DOCS / page) if block.language == "python"]


def module_of(page: str, block: int = 0) -> types.ModuleType:
    """A block as a module that was imported."""
    module = types.ModuleType(f"docs_{page.removesuffix('.md')}")
    sys.modules[module.__name__] = module
    exec(compile(blocks(page)[block], page, "exec"), vars(module))
    return module
