"""One self-contained page: the template with its style, its script and the collected data inside. No network."""

import json
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from torchrank import __version__
from torchrank.files import write_atomically

FOLDER = Path(__file__).parent


def write_page(path: str | Path, document: dict[str, Any], title: str = "") -> None:
    """Write the page of a document of `collect`; a reader sees the old file or the new one."""
    text = render(document, title)
    write_atomically(Path(path), lambda file: file.write(text.encode(errors="backslashreplace")))


def render(document: dict[str, Any], title: str = "") -> str:
    """The page as text.

    >>> page = render({"sections": [], "runs": 0, "unfinished": ["</script><script>alert()"]})
    >>> page.count("</script>"), "alert()" in page
    (2, True)
    """
    created = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    data = {**document, "version": __version__, "created": created}
    names = ", ".join(dict.fromkeys(section["data"] for section in document["sections"]))
    parts = {
        "title": escape(title or f"torchrank report: {names}"),
        "version": escape(__version__),
        "css": _read("report.css"),
        "js": "\n".join(['"use strict";', _read("charts.js"), _read("report.js")]),
        "data": embed(data),
    }
    before, *rest = _read("report.html").split("{{")
    return before + "".join(parts[name] + text for name, text in (piece.split("}}", 1) for piece in rest))


def embed(value: Any) -> str:
    """Strict JSON that is harmless inside a script tag, whatever texts it holds.

    >>> embed({"query": "</script><b>&"})
    '{"query":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e\\\\u0026"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ascii: no line separators of JavaScript either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8").strip()
