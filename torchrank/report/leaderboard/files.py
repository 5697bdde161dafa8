"""A leaderboard in files: leaderboard.json, .md, .html and .png."""

import base64
import io
import json
from html import escape
from pathlib import Path
from typing import Any

from torchrank import __version__
from torchrank.files import write_atomically
from torchrank.report.leaderboard.sheets import default_sheets, sheets
from torchrank.report.tables import Bold, Sheet, markdown
from torchrank.screen import visible

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 1rem; }
:root { color-scheme: light dark; --line: #8884; --head: #8882; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
th { background: var(--head); } th.text, td.text { text-align: left; }
td.long { white-space: normal; text-align: left; }
p { max-width: 70rem; opacity: .8; } img { max-width: 100%; background: white; }
"""


def write_board(folder: Path, board: dict[str, Any]) -> list[str]:
    """Write all files of a leaderboard and return their names; without matplotlib there is no figure."""
    pages = sheets(board)
    picture = _picture(board)
    texts = {
        "leaderboard.json": f"{json.dumps(board, indent=1, allow_nan=False)}\n".encode(),
        "leaderboard.md": ("\n\n".join(map(markdown, pages)) + "\n").encode(),
        "leaderboard.html": page(board, pages, picture).encode(errors="backslashreplace"),
        **({"leaderboard.png": picture} if picture else {}),
    }
    for name, content in texts.items():
        write_atomically(folder / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    return list(texts)


def write_defaults(folder: Path, found: dict[str, Any]) -> list[str]:
    """Write the table of defaults and tuned forms as defaults.json and defaults.md, and return these names."""
    numbers, text = json.dumps(found, indent=1, allow_nan=False), "\n\n".join(map(markdown, default_sheets(found)))
    write_atomically(folder / "defaults.json", lambda file: file.write(f"{numbers}\n".encode()))
    write_atomically(folder / "defaults.md", lambda file: file.write(f"{text}\n".encode()))
    return ["defaults.json", "defaults.md"]


def _picture(board: dict[str, Any]) -> bytes:
    try:
        from torchrank.report.leaderboard.figure import plot_board

        figure = plot_board(board)
    except ImportError:
        return b""
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=130, bbox_inches="tight")
    return held.getvalue()


def page(board: dict[str, Any], pages: list[Sheet], picture: bytes) -> str:
    """One page without network and scripts.

    >>> "<h2>a &lt;b&gt;</h2>" in page({"data": "x", "measure": "map"}, [Sheet("a <b>", ["m"], [["1"]])], b"")
    True
    """
    title = escape(f"Leaderboard: {visible(board['data'])}, {board['measure']}")
    drawn = f'<img alt="{title}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">' if picture else ""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{''.join(map(_section, pages[:1]))}{drawn}\n{''.join(map(_section, pages[1:]))}"
        f"<p>Made by torchrank {escape(__version__)}.</p></body></html>\n"
    )


def _section(sheet: Sheet) -> str:
    below = "".join(f"<p>{escape(visible(line))}</p>" for line in sheet.below)
    words = [_is_text([row[column] for row in sheet.rows]) for column in range(len(sheet.header))]
    kinds = ["text" if word else "" for word in words]
    head = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(sheet.header, kinds, strict=True))
    rows = "".join(f"<tr>{''.join(map(_cell, row, kinds))}</tr>\n" for row in sheet.rows)
    return f"<h2>{escape(visible(sheet.title))}</h2><div><table><tr>{head}</tr>\n{rows}</table></div>{below}\n"


def _is_text(cells: list[str]) -> bool:
    return any(cell[:1].isalpha() for cell in cells)


def _cell(text: str, kind: str) -> str:
    shown = escape(visible(text))
    bold = f"<strong>{shown}</strong>" if isinstance(text, Bold) else shown
    return f'<td class="{kind if len(text) < 60 else "long"}">{bold}</td>'
