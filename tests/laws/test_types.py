"""Type checkers see the parameters of functions behind their doors, and the classes of the table of measures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIGHT = """
import torch
from torchrank import NDCG
from torchrank.functional import Lists, evaluate, lambdarank_loss, ndcg

scores, labels = torch.ones(2), torch.ones(2)
ndcg(scores, labels, [0, 2], k=5)
ndcg(scores, labels, group=[2], list_weights=[1.0])
ndcg([[1.0, 2.0]], [[1, 0]], mask=[[True, True]])
lambdarank_loss(scores, labels, Lists.of([0, 2])).mean().backward()
metric: NDCG = NDCG(k=5)
reveal_type(ndcg(scores, labels, qid=[1, 1]))
reveal_type(evaluate(scores, labels, [0, 2]))
reveal_type(ndcg)
"""
WRONG = """
ndcg(1, "a", nonsense=3)
ndcg(scores, labels, [0, 2], k="ten")
lambdarank_loss(scores, labels, [0, 2], max_length=3)
"""


@pytest.mark.slow  # 4 s after the first time
def test_types_of_functions_on_lists(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(RIGHT + WRONG)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", tmp_path / "program.py"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    lines = re.findall(r"program\.py:(\d+): (\w+): (.*)", output)
    assert lines, output
    errors = {int(line): text for line, kind, text in lines if kind == "error"}
    first = RIGHT.count("\n") + 2
    assert sorted(errors) == [first, first + 1, first + 2], errors
    assert "nonsense" in errors[first] and '"k"' in errors[first + 1] and "max_length" in errors[first + 2]
    shown = [text for _, kind, text in lines if kind == "note" and "Revealed" in text]
    assert "Tensor" in shown[0] and "dict[str, " in shown[1] and "(*" not in shown[2]
    assert "scores: Any, labels: Any, offsets: Any =, *, k: int | None =" in shown[2] and "mask: Any =" in shown[2]
