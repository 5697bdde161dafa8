"""The API pages show every exported name once."""

import importlib.util
import re

import pytest

import torchrank
import torchrank.functional
from tests.docs.pages import DOCS

SPEC = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks/site.py")
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)


def test_every_exported_name_is_on_one_page():
    pages = [site.on_page_markdown(path.read_text()) for path in (DOCS / "api").glob("*.md")]
    shown = re.findall(r"^(?:::: |## `\w+` \{ #)([\w.]+)", "\n".join(pages), flags=re.MULTILINE)
    names = {f"torchrank.{name}" for name in torchrank.__all__} - {
        "torchrank.__version__",
        "torchrank.RANKERS",
        "torchrank.functional",
    }
    names |= {f"torchrank.functional.{name}" for name in torchrank.functional.__all__}
    assert len(shown) == len(set(shown)) and set(shown) == names


def test_functions_on_lists_show_all_their_keywords():
    griffe = pytest.importorskip("griffe")
    extensions = griffe.load_extensions(str(DOCS / "hooks/examples.py"))
    functional = griffe.load("torchrank.functional", extensions=extensions, search_paths=[str(DOCS.parent)])
    for name, keywords in {
        "ndcg": {"group", "qid", "mask", "list_weights"},
        "softmax_loss": {"group", "qid", "mask", "list_weights"},
        "cloud_pca": {"group", "qid", "mask"},
    }.items():
        function = functional[name]
        sections = function.docstring.parse("google", warn_unknown_params=False, warn_missing_types=False)
        args = next(section.value for section in sections if section.kind is griffe.DocstringSectionKind.parameters)
        shown = {parameter.name for parameter in function.parameters}
        assert keywords <= shown == {arg.name for arg in args}


def test_equations_become_mathml():
    latex = pytest.importorskip("latex2mathml.converter")
    for page in DOCS.rglob("*.md"):
        for equation in re.findall(r"^```math\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            assert "<mi>\\" not in latex.convert(equation.strip()), f"{page.name}: an unknown command in {equation}"
