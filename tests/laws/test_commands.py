"""Laws of all commands in `COMMANDS`: help with examples that parse, one line and exit code 2 for a user's mistake."""

import gzip
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchrank.cli import COMMANDS, SUMMARIES, main, overview, parser_of

ROOT = Path(__file__).parents[2]
PARSED = [name for name in SUMMARIES if name != "train"]  # which Hydra parses
BAD = {  # inputs that no command can use
    "missing": lambda path: None,
    "empty file": lambda path: path.write_bytes(b""),
    "blank lines": lambda path: path.write_bytes(b"\n\n \n"),
    "folder": lambda path: path.mkdir(),
    "UTF-16": lambda path: path.write_text("2 qid:1 1:0.5 2:7\n" * 3, encoding="utf-16"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "damaged gzip": lambda path: path.write_bytes(gzip.compress(b"2 qid:1 1:0.5\n" * 50)[:-9]),
    "prose": lambda path: path.write_text("This is no data,\nnot at all.\n"),
}


def positionals(name):
    return [action for action in parser_of(name)._actions if not action.option_strings]


def needed(name, folder):
    """Values of the options that a command requires."""
    required = [action for action in parser_of(name)._actions if action.option_strings and action.required]
    return [text for action in required for text in (action.option_strings[0], str(folder / "out"))]


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", PARSED)
def test_bad_input_is_told_in_one_line(name, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    BAD[kind](tmp_path / "given")
    before = sorted(tmp_path.rglob("*"))
    arguments = ["given"] * len(positionals(name))
    assert main([name, *arguments, *needed(name, tmp_path)]) == 2
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if ": warning: " not in line]
    assert len(lines) == 1 and lines[0].startswith(f"torchrank {name}: error: "), shown.err
    assert len(lines[0]) > len(f"torchrank {name}: error: ") + 10, "it must say what is wrong"
    assert not shown.out and sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", PARSED)
def test_mistakes_in_the_arguments_are_told_in_one_line(name, capsys):
    for arguments in (["--no-such-option"], [name] * 30 + ["--no-such-option"]):
        assert main([name, *arguments]) == 2
        shown = capsys.readouterr()
        assert (
            re.fullmatch(rf"torchrank {name}: error: .+ \(see torchrank {name} --help\)\n", shown.err) and not shown.out
        )


@pytest.mark.parametrize("name", PARSED)
def test_help_has_examples_that_parse(name, capsys):
    assert main([name, "--help"]) == 0
    page = capsys.readouterr().out
    examples = page.partition("\nexamples:\n")[2].strip().splitlines()
    assert len(examples) >= 1 and all(len(line) <= 120 for line in page.splitlines())
    calls = [call for line in examples for call in re.split(r" [|>] ", line) if f"torchrank {name} " in call]
    assert calls, "the examples must call the command"
    for call in calls:
        tokens = shlex.split(call, comments=True)
        parser_of(name).parse_args(tokens[tokens.index(name) + 1 :])
    for action in parser_of(name)._actions:
        assert action.help, f"{action.option_strings or action.dest} has no help"


def test_the_overview_names_every_command_once(capsys):
    assert main(["--help"]) == 0 and main([]) == 2
    page = overview()
    assert capsys.readouterr().out == f"{page}\n{page}\n" and all(len(line) <= 110 for line in page.splitlines())
    for group, commands in COMMANDS.items():
        assert f"\n{group}:\n" in page
        for name, summary in commands.items():
            assert len(re.findall(rf"^  {name} +{re.escape(summary)}$", page, re.MULTILINE)) == 1
            assert (ROOT / "torchrank" / "cli" / f"{name}.py").exists()
            assert summary[0].islower() and not summary.endswith(".")


def test_unknown_commands(capsys):
    assert main(["scoer"]) == 2 and "did you mean score?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2 and "choose one of train, " in capsys.readouterr().err
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("torchrank ")


def start(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torchrank", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, **pipes | options)


def test_a_reader_that_has_seen_enough(tmp_path):
    """`torchrank ... | head -1`, for little and for much output."""
    (tmp_path / "qrels").write_text("".join(f"q{number} 0 d 1\n" for number in range(20_000)))
    (tmp_path / "run").write_text("".join(f"q{number} Q0 d 1 1 r\n" for number in range(20_000)))
    calls = [["--help"], ["evaluate", str(tmp_path / "run"), str(tmp_path / "qrels"), "--per-query", "-"]]
    processes = [start(*call) for call in calls]
    for process in processes:
        process.stdout.close()  # before it has written a line
        assert process.wait() == 0
        assert b"rror" not in process.stderr.read()


def test_an_interrupt(tmp_path, monkeypatch, capsys):
    """Ctrl-C while a command waits for its input."""

    class Waiting:
        @property
        def buffer(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)

    (tmp_path / "qrels").write_text("q 0 d 1\n")
    monkeypatch.setattr(sys, "stdin", Waiting())
    assert main(["evaluate", "-", str(tmp_path / "qrels"), "--per-query", str(tmp_path / "out")]) == 130
    assert capsys.readouterr() == ("", "torchrank evaluate: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["qrels"]
