"""Text is text: names and paths are shown as they are, in every form of a table and on every stream."""

import ast
import io
import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from rich.console import Console

from tests.report.sweep import write_run
from torchrank.cli import main
from torchrank.report.comparison import latex
from torchrank.report.tables import Sheet, as_markdown, markdown, show
from torchrank.screen import console, one_line, override, quoted, say, visible

ROOT = Path(__file__).parents[2] / "torchrank"
ODD = ["x[/b]y", "[default,letor]", "[red]a[/red]", ":smile:", "a|b", "`a`", "**a**", "_a_", "a\\", "$x_$", "<b>", "ü€"]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("terminal", [True, False])
def test_tables_show_names_as_they_are(name, terminal):
    file = io.StringIO()
    screen = Console(file=file, width=200, force_terminal=terminal, color_system=None)  # even one that reads markup
    show(Sheet(name, [name, "b"], [[name, "1"]], [name]), screen)
    assert file.getvalue().count(name) == 4
    show(Sheet(name), screen)
    assert file.getvalue().count(name) == 5


@pytest.mark.parametrize("name", ODD)
def test_select_reads_no_name_as_markup(name, tmp_path, capsys):
    folder = tmp_path / name.replace("/", "_")
    write_run(folder / "run", name, value=0.5, queries={"default/ndcg@10": [0.5]}, data=f"{name} data")
    assert main(["select", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"{name} data: test measures" in out and f"to {folder}" in out
    assert as_markdown(name) in (folder / "table.md").read_text(encoding="utf-8")
    assert main(["select", str(tmp_path / f"{name}-missing")]) == 2
    assert f"{name}-missing" in capsys.readouterr().err


def test_markdown_and_latex_escape_what_they_would_read():
    page = markdown(Sheet("a", ["m", "v"], [["a|b\nc", "1"]], ["# no heading", "- no list", "1. no list", "1 query"]))
    assert "| a\\|b\\\\nc | 1 |" in page and page.count("\n#") == 0
    assert page.splitlines()[-4:] == ["\\# no heading  ", "\\- no list  ", "1\\. no list  ", "1 query"]
    assert as_markdown("lgmml_net [+0.1, +0.2]") == "lgmml_net [+0.1, +0.2]"
    assert r"a\textbackslash{}b\_\{\$\}" in latex(Sheet("a", ["m"], [["a\\b_{$}"]]))


def test_control_characters_are_shown_not_obeyed():
    assert visible("a\x1b[2J\r\u202eb") == r"a\x1b[2J\r\u202eb" and one_line("a  b:\n c") == "a  b: c"
    assert visible("naïve – ≈ \u00a0[x]") == "naïve – ≈ \u00a0[x]"  # noqa: RUF001


def test_a_console_prints_text(capsys):
    for text in ODD:
        console().print(text)
        say(text)
    assert capsys.readouterr().out.splitlines() == [text for text in ODD for _ in range(2)]


QUOTED = [
    "a b",
    "a=b,c",
    "it's",
    'say "x"',
    "\\",
    'a\\"',
    "a\\\\",
    "${x}",
    "\\${x}",
    "-a",
    "null",
    "1",
    "1e3",
    "",
    " a ",
]
QUOTED += ["(a)", "{a: b}", "~x", "#a", "C:\\a\\b", "%d", "日本"]


@pytest.mark.parametrize("text", [*ODD, *QUOTED])
def test_hydra_reads_back_every_quoted_text(text):
    def read(line):
        value = OverridesParser.create().parse_override(line).value()
        return str(OmegaConf.create({"key": value}).key)

    assert read(f"key={quoted(text)}") == text
    (typed,) = shlex.split(override("key", text))
    assert read(typed) == text


def test_only_one_module_makes_consoles():
    """Every other one takes it from there, so that nothing is read as markup."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    made = re.compile(r"\bConsole\(\w|\(Console\)|from rich import print")
    assert [name for name, text in texts.items() if made.search(text)] == ["screen.py"]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_text_files_have_an_encoding(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            modes = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            text = name == "read_text" or (name == "open" and modes and re.fullmatch("[rwax+]+t?", modes[-1]))
            assert not text or any(each.arg == "encoding" for each in node.keywords), f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("kind", ["measures", "scatter", "differences", "costs"])
def test_figures_show_names_as_they_are(kind, tmp_path):
    names = ["$x_$", "_a$b$"]
    for name in names:
        values = {"default/ndcg@10": [0.5, 0.1 * len(name), 0.7]}
        write_run(tmp_path / str(names.index(name)), name, value=0.5, queries=values, data="$\\frac$")
    out = tmp_path / "figure.svg"
    assert main(["plot", str(tmp_path), "--kind", kind, "--out", str(out)]) == 0 and out.stat().st_size > 1000


def test_legends_hide_no_name(tmp_path):
    from torchrank.report.plots.metrics import plot_spectrum

    figure = plot_spectrum({"_hidden": [[1.0]], "$x_$": [[2.0]]})
    figure.savefig(tmp_path / "a.svg")
    shown = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert shown == ["_hidden: 1 of 1", r"\$x_\$: 1 of 1"]
