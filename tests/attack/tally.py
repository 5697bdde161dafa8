"""What an attack has tried and what it found: one line of the table, and the table."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

BEGIN, END = "<!-- make attack: begin -->", "<!-- make attack: end -->"


@dataclass
class Tally:
    """Tries of one kind, and a line for each that went wrong, with the seed that shows it again."""

    attack: str
    what: str
    tries: int = 0
    failures: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    skipped: str = ""

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def add(self, other: "Tally") -> None:
        self.tries += other.tries
        self.failures += other.failures
        self.skipped = self.skipped or other.skipped
        for name, number in other.counts.items():
            self.count(name, number)

    def line(self) -> str:
        told = ", ".join(f"{number:,} {name}" for name, number in self.counts.items())
        found = f"{self.tries:,} tries, {len(self.failures)} failures" + (f" ({told})" if told else "")
        return f"{self.attack}: {self.what}: {self.skipped or found}"


def together(tallies: Iterable[Tally]) -> list[Tally]:
    """One line for each kind, in the order of their first parts."""
    found: dict[tuple[str, str], Tally] = {}
    for each in tallies:
        found.setdefault((each.attack, each.what), Tally(each.attack, each.what)).add(each)
    return list(found.values())


def table(tallies: list[Tally]) -> str:
    """The lines as a table in Markdown."""
    rows = ["| attack | what | tries | failures | of which |", "|---|---|---:|---:|---|"]
    for each in tallies:
        told = each.skipped or ", ".join(f"{number:,} {name}" for name, number in each.counts.items())
        rows.append(f"| {each.attack} | {each.what} | {each.tries:,} | {len(each.failures):,} | {told} |")
    tries, failures = (sum(numbers) for numbers in zip(*((t.tries, len(t.failures)) for t in tallies), strict=True))
    return "\n".join([*rows, f"| **all** | | **{tries:,}** | **{failures:,}** | |"])


def write_json(path: Path, tallies: list[Tally], facts: dict[str, object]) -> None:
    path.write_text(json.dumps({**facts, "attacks": [asdict(each) for each in tallies]}, indent=1) + "\n")


def write_page(path: Path, text: str) -> None:
    """Replace what is between the two marks of a page."""
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{path} has no place for the table: expected the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
