"""The trials of a study as a table: what was tried, what became of it, and the winner's test."""

from typing import Any

from torchrank.report.tables import NOTHING, Bold, Sheet

SHOWN = 10  # best trials on a screen


def trial_sheet(found: dict[str, Any], shown: int | None = None) -> Sheet:
    """The trials of a study (the content of study.json), best first; then those without a value, with the reason.

    Args:
        found: the content of study.json.
        shown: the most rows to show; all by default.
    """
    sign = 1 if found["mode"] == "min" else -1
    rows = sorted(found["trials"], key=lambda row: (row["state"] != "complete", sign * (row["value"] or 0)))
    winner = (found["winner"] or {}).get("number")
    sheet = Sheet(f"Trials, chosen by {found['monitor']}", ["trial", "model", "settings", "state", "value", "CPU s"])
    sheet.rows = [_cells(row, row["number"] == winner) for row in rows[:shown]]
    left = len(rows) - len(sheet.rows)
    sheet.below = [counts(found["trials"]), *([f"{left} more in study.md."] if left else [])]
    return sheet


def counts(rows: list[dict[str, Any]]) -> str:
    """How many trials ended in which way.

    >>> counts([{"state": "complete"}, {"state": "pruned"}, {"state": "complete"}])
    '3 trials: 2 complete, 1 pruned.'
    """
    states = [row["state"] for row in rows]
    told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"{len(rows)} trial{'s' if len(rows) != 1 else ''}: {told}."


def _cells(row: dict[str, Any], wins: bool) -> list[str]:
    settings = ", ".join(f"{key}={value}" for key, value in row["settings"].items()) or "the defaults"
    state = f"{row['state']}: {row['reason']}" if row["reason"] else row["state"]
    value = NOTHING if row["value"] is None or row["state"] != "complete" else f"{row['value']:.4f}"
    spent = NOTHING if row["cpu_seconds"] is None else f"{row['cpu_seconds']:.1f}"
    return [str(row["number"]), row["model"], settings, state, Bold(value) if wins else value, spent]
