"""What people read on a screen: names and paths as they are, on streams whose end is never the end of a run."""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")  # controls, directions, no text
WORDS = ("true", "false", "null", "nan", "inf")  # which Hydra does not read as text


def visible(text: object) -> str:
    """The text on one line, with escapes for what a terminal would obey instead of showing.

    Args:
        text: anything that has a text, such as a path.

    Returns:
        The same text; control characters, line breaks and changes of direction are escaped.

    Example:
        >>> visible("a[b]c"), visible("a\\x1b[2Jb\\n")
        ('a[b]c', 'a\\\\x1b[2Jb\\\\n')
    """
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def one_line(text: object) -> str:
    """A message of several lines as one; spaces within a line stay, since a path may have them.

    >>> one_line("first:\\n  'a  b'")
    "first: 'a  b'"
    """
    return visible(" ".join(line.strip() for line in str(text).splitlines()).strip())


def told(error: BaseException) -> str:
    """The message of an error on one line; of one of the system its place, and what to do if there is no permission.

    >>> told(ValueError("first\\n  second")), told(FileNotFoundError(2, "No such file or directory", "train.txt"))
    ('first second', 'train.txt: no such file or directory')
    >>> told(PermissionError(13, "Permission denied", "runs/.scores.txt.4711"))
    'runs: permission denied: choose another place, or change its permissions'
    """
    if not isinstance(error, OSError) or not error.strerror or not isinstance(error.filename, str):
        return one_line(error)
    folder, name = os.path.split(error.filename)
    place = (folder or ".") if name.startswith(".") else error.filename  # nobody knows the names of temporary files
    advice = ": choose another place, or change its permissions" if isinstance(error, PermissionError) else ""
    return one_line(f"{place}: {error.strerror[:1].lower()}{error.strerror[1:]}{advice}")


def console(stderr: bool = False, **options: Any) -> Console:
    """A console of rich on which text is text: no markup, no codes of emoji, no colours of numbers.

    Args:
        stderr: print to stderr instead of stdout.
        options: other options of rich's `Console`.

    Returns:
        The console. A file or pipe has no width, so its lines may be long. A reader that goes away is no error.
    """
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            discard(sys.stderr if stderr else sys.stdout)

    stream = sys.stderr if stderr else sys.stdout
    width = {} if stream is not None and stream.isatty() else {"width": 160}
    return Plain(stderr=stderr, markup=False, emoji=False, highlight=False, **width | options)


def say(text: str) -> None:
    """Print a line to stdout. A stream that takes no more, such as a closed pipe, is left alone from then on."""
    try:
        print(visible(text), flush=True)
    except (OSError, ValueError):
        discard(sys.stdout)


def discard(stream: TextIO | None) -> None:
    """Let everything that is still written to the stream vanish, also what its buffer holds."""
    with suppress(OSError, ValueError, AttributeError):  # a stream of somebody else may have no number
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())  # type: ignore[union-attr]
        os.close(nothing)


def settle_streams() -> None:
    """Make stdout and stderr take every text: they may be closed, or of an encoding without its characters."""
    for place, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed by the caller: the next file to be opened would get its number
            _occupy(place)
            setattr(sys, name, open(os.devnull, "w" if place else "r", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _occupy(place: int) -> None:
    """Give the number of a closed stream to the null device."""
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing != place:
        os.dup2(nothing, place)
        os.close(nothing)


def override(key: str, value: object) -> str:
    """An override of Hydra as it is typed in a shell, whatever characters the value has.

    >>> print(override("data.root", "shop/new"), override("data.root", "my shop, [new]"))
    data.root=shop/new 'data.root="my shop, [new]"'
    """
    text = str(value)
    plain = re.fullmatch(r"[A-Za-z_/][\w/.-]*", text, re.ASCII) and text.lower() not in WORDS
    return shlex.quote(f"{key}={text if plain else quoted(text)}")


def quoted(text: str) -> str:
    r"""A text between quotes as Hydra reads it: it unescapes quotes, the backslashes before them, and `\${`.

    >>> print(quoted("a [b]"), quoted('a "b" \\'), quoted("${x}"))
    "a [b]" "a \"b\" \\" "\${x}"
    """
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # or OmegaConf would look it up
    literal = re.sub(r'(\\*)"', r'\1\1\\"', literal)
    return '"' + re.sub(r"(\\+)$", r"\1\1", literal) + '"'
