"""The files around the package agree with it: versions, names of the distribution, make targets of the workflows."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import torchrank

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def targets(text: str) -> set[str]:
    """Targets of the Makefile that commands call."""
    return set(re.findall(r"\bmake (\w+)", text))


def steps(workflow: Path) -> list[str]:
    """The commands of a workflow."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_version_is_that_of_the_citation_and_the_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == torchrank.__version__
    assert f"## [{torchrank.__version__}] - {citation['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"


def test_extras_that_code_names_exist():
    named = set()
    for path in ROOT.glob("torchrank/**/*.py"):
        text = path.read_text()
        assert not re.search(r"pip install '?torchrank(?!-ltr)", text), f"{path} names another project of the index"
        named |= set(re.findall(r"torchrank-ltr\[(\w+)\]", text))
    assert "gbdt" in named and named <= set(PROJECT["optional-dependencies"])


def test_dependencies_are_given_with_their_reason():
    declared = re.findall(r'^  "[\w\[\]-]+[<>=].*$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert len(declared) > 15 and [line for line in declared if "#" not in line] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_of_the_makefile(workflow):
    known = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for command in steps(workflow):
        assert command.startswith("make ") and targets(command) <= known, command


def test_workflows_run_what_the_check_of_a_merge_runs():
    called = targets("\n".join(command for workflow in WORKFLOWS for command in steps(workflow)))
    assert targets((ROOT / ".ci/run").read_text()) | {"wheel", "docs"} <= called


def test_the_navigation_names_each_page_once():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\nexclude_docs")[0]
    named = re.findall(r": ([\w/]+\.md)$", navigation, flags=re.MULTILINE)
    assert sorted(named) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))


def test_the_readme_is_a_page_long():
    assert 120 <= len((ROOT / "README.md").read_text().splitlines()) <= 150
