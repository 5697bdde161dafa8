"""Every code block of the README and of docs/ runs as it stands, and every link leads somewhere."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from tests.docs.pages import DOCS, PAGES, ROOT, all_blocks, prose
from tests.docs.running import run_page

REPOSITORY = "https://github.com/torchrank/torchrank"
ELSEWHERE = {"methods/lgmml.md": "tests/notebooks/test_lgmml_groups.py"}  # run there, with the figures that it prints
OF_COMMANDS = ("commands", "report", "training", "deployment", "coming_from", "data")
LANGUAGES = {"python", "bash", "text", "math", "yaml", "toml", "json", "latex", "bibtex", "dockerfile"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def write_letor(path: Path, queries: range) -> None:
    """A small LETOR file; the grade follows the first two of five features."""
    draw = np.random.default_rng(queries.start)
    lines = []
    for query in queries:
        for document in range(8):
            x = draw.normal(size=5)
            grade = int(np.clip(round(x[0] + x[1]), 0, 2))
            row = " ".join(f"{number}:{value:.4f}" for number, value in enumerate(x, 1))
            lines.append(f"{grade} qid:{query} {row} #docid = q{query}d{document}\n")
    path.write_text("".join(lines))


@pytest.fixture
def folder(tmp_path):
    """A folder with a reader's own files: train.txt, val.txt, test.txt and new.txt."""
    place = tmp_path / "page"
    place.mkdir()
    for number, name in enumerate(("train", "val", "test", "new")):
        write_letor(place / f"{name}.txt", range(100 * number, 100 * number + (60 if name == "train" else 20)))
    return place


def page(path: Path):
    """Pages of many commands, each of which other tests run as well, are run once a week."""
    of_commands = path.parent.name == "methods" or path.stem in OF_COMMANDS
    return pytest.param(path, id=name_of(path), marks=[pytest.mark.weekly] if of_commands else [])


@pytest.mark.slow
@pytest.mark.parametrize("path", [page(path) for path in PAGES])
def test_blocks_of_a_page_run(path, folder):
    if path.is_relative_to(DOCS) and path.relative_to(DOCS).as_posix() in ELSEWHERE:
        pytest.skip("run by a test of its own")
    blocks = [block for block in all_blocks(path) if block.language in ("python", "bash") and block.reason is None]
    if not blocks:
        pytest.skip("no block to run")
    failed = run_page(blocks, name_of(path), folder)
    assert failed is None, failed


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_blocks_of_a_page_say_what_they_are(path):
    found = [(block.line, block.language) for block in all_blocks(path) if block.language not in LANGUAGES]
    assert found == [], "give each fence its language; what is not code is text"


def anchors(path: Path) -> set[str]:
    """What links to a page may name: its headings, as mkdocs spells them, and explicit ids."""
    text = prose_with_code(path)
    headings = re.findall(r"^#+ +(.*?)(?: *\{ *#([\w-]+) *\})?$", text, flags=re.MULTILINE)
    ids = {explicit for _, explicit in headings if explicit} | set(re.findall(r'id="([\w-]+)"', text))
    return ids | {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title, _ in headings}


def prose_with_code(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def broken(path: Path, link: str) -> str | None:
    """Why a link of a page leads nowhere, if it does."""
    if link.startswith(f"{REPOSITORY}/blob/main/") or link.startswith(f"{REPOSITORY}/tree/main/"):
        return None if (ROOT / link.split("/main/")[1].split("#")[0]).exists() else f"{link}: not in the repository"
    if re.match(r"\w+:", link):
        return None  # other sites
    target, _, anchor = link.partition("#")
    place = (path.parent / target).resolve() if target else path
    if not place.exists():
        return f"{link}: no such file"
    if path.is_relative_to(DOCS) and not place.is_relative_to(DOCS):
        return f"{link}: outside of docs/, which the site does not have: link to {REPOSITORY}/blob/main/"
    return f"{link}: no such heading" if anchor and anchor not in anchors(place) else None


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(path):
    links = re.findall(r"\]\(([^)\s]+)\)", prose(path)) + re.findall(r'(?:src|href)="([^"]+)"', prose(path))
    assert [reason for link in links if (reason := broken(path, link))] == []


def unrun_trainings() -> list[tuple[str, str]]:
    """The training commands of blocks that are not run, with their pages."""
    found = []
    for path in PAGES:
        for block in all_blocks(path):
            if block.language == "bash" and block.reason is not None:
                lines = block.text.replace("\\\n", " ").splitlines()
                found += [
                    (name_of(path), line) for line in lines if re.search(r"\btorchrank train |\btrain\.py ", line)
                ]
    return found


@pytest.mark.parametrize(("page", "command"), unrun_trainings())
def test_options_of_commands_that_are_not_run_exist(page, command):
    words = shlex.split(re.split(r"\btorchrank train |\btrain\.py ", command)[1], comments=True)
    overrides = [word for word in words if "=" in word and not word.startswith("hydra.")]
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        compose("train", ["hydra.runtime.output_dir=out", *overrides], return_hydra_config=True)
