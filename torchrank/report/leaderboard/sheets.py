"""A leaderboard as tables of text."""

from typing import Any

from torchrank.report.leaderboard.tabulate import ERRORS, LEAD
from torchrank.report.significance import ALPHA
from torchrank.report.tables import NOTHING, SPLITS, Bold, Sheet


def sheets(board: dict[str, Any]) -> list[Sheet]:
    """Measures and ranks, the paired tests, the costs, and what has no result."""
    pages = [_measures(board), *(_tests(board, name) for name in board["references"]), _costs(board)]
    missing = [
        [row["name"], f"fold {fold}", reason] for row in board["rows"] for fold, reason in row["reasons"].items()
    ]
    if missing:
        pages.append(Sheet(f"{board['data']}: without a result", ["ranker", "fold", "why"], _merged(missing)))
    return pages


def _merged(rows: list[list[str]]) -> list[list[str]]:
    """One row for the folds of a ranker that have the same reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, fold, reason in rows:
        found.setdefault((name, reason), []).append(fold.removeprefix("fold "))
    return [[name, ", ".join(folds), reason] for (name, reason), folds in found.items()]


def _measures(board: dict[str, Any]) -> Sheet:
    names, measure = board["measures"], board["measure"]
    header = ["rank", "ranker", *names, f"validation {measure}", "rank by validation", "folds", "trials"]
    title = f"{board['data']}: leaderboard, {SPLITS[board['split']]} measures, convention {board['convention']}"
    sheet = Sheet(title, header)
    best = {name: _best(board["rows"], name) for name in names}
    for row in board["rows"]:
        cells = [_value(row["test"].get(name), row["name"] in best[name]) for name in names]
        ranks = [_whole(row["test_rank"]), _whole(row["val_rank"])]
        trials = ", ".join(f"{count} {state}" for state, count in row["trials"].items())
        folds = f"{row['folds']} of {len(board['folds'])}"
        sheet.rows.append(
            [ranks[0], row["name"], *cells, _value(row["val"].get(measure), False), ranks[1], folds, trials or NOTHING]
        )
    budget = board["budget"]
    limit = "" if budget["cpu_seconds"] is None else f" of at most {budget['cpu_seconds']:g} CPU seconds"
    ended = "" if budget["minutes"] is None else f"; after {budget['minutes']:g} minutes no further trials began"
    spread = "Mean over the folds ±standard deviation (n-1). " if len(board["folds"]) > 1 else ""
    sheet.below = [
        f"Convention {board['convention']}: {board['text']}. {board['lists']} queries.",
        f"{spread}Bold: best. Rank: by the test measure of selection, among rankers with all folds. Settings were "
        "chosen by validation alone in every fold; each winner was tested once.",
        f"Budget of every ranker and fold: {budget['trials']} trials{limit}, the first with the defaults{ended}.",
    ]
    if any(row["name"] == "gbdt_seeds" for row in board["rows"]):
        told = "gbdt_seeds: the mean of the standardised scores of gbdt's winner over 4 seeds"
        sheet.below.append(f"{told}; the same as gbdt where its settings draw nothing (no bagging).")
    return sheet


def _best(rows: list[dict[str, Any]], name: str) -> list[str]:
    """The rankers with the highest mean; all measures of a leaderboard but errors grow."""
    from torchrank.record import smaller_is_better

    means = {row["name"]: row["test"][name]["mean"] for row in rows if row["complete"] and name in row["test"]}
    known = {key: value for key, value in means.items() if value is not None}
    top = (min if smaller_is_better(name) else max)(known.values(), default=None)
    return [key for key, value in known.items() if value == top]


def _value(value: dict[str, Any] | None, best: bool) -> str:
    if value is None or value["mean"] is None:
        return NOTHING
    deviation = "" if value["deviation"] is None else f" ±{value['deviation']:.4f}"
    text = f"{value['mean']:.4f}{deviation}"
    return Bold(text) if best else text


def _tests(board: dict[str, Any], reference: str) -> Sheet:
    header = ["ranker", "difference", "95% interval", "t test p (Holm)", "randomisation p (Holm)", "queries", "verdict"]
    sheet = Sheet(f"{board['data']}: {board['measure']} against {reference}", header)
    for row in board["rows"]:
        if (test := row["against"].get(reference)) is not None:
            low, high = test["interval"]
            values = [f"{_p(test[name])} ({_p(test[f'{name}_holm'])})" for name in ("t", "randomisation")]
            verdict = "undecided"
            if test["randomisation_holm"] is not None and test["randomisation_holm"] < ALPHA:
                verdict = "higher" if test["difference"] > 0 else "lower"
            cells = [f"{test['difference']:+.4f}", f"[{low:+.4f}, {high:+.4f}]", *values, str(test["queries"]), verdict]
            sheet.rows.append([row["name"], *cells])
    sheet.below = [
        "Difference of the means over the queries that both have, folds pooled; bootstrap interval over the queries; "
        f"two-sided paired tests, Holm over the {len(sheet.rows)} rows. "
        f"Verdict: Holm-adjusted randomisation p < {ALPHA}."
    ]
    return sheet


def _costs(board: dict[str, Any]) -> Sheet:
    header = ["ranker", "CPU seconds to fit", "microseconds per document", "model size (kB)", "peak memory (MB)"]
    sheet = Sheet(f"{board['data']}: costs of the chosen settings", header)
    for row in board["rows"]:
        if row["folds"]:
            size = None if row["bytes"] is None else row["bytes"] / 1000
            numbers = [(row["fit_seconds"], 2), (row["microseconds"], 2), (size, 1), (row["memory_mb"], 0)]
            sheet.rows.append([row["name"], *(_number(value, digits) for value, digits in numbers)])
    sheet.below = [
        "Means over the folds; one thread. To fit: one fit with the chosen settings. Per document: scoring the test "
        "lists from raw rows. Size: the state of the ranker. Peak memory: of the process, with libraries and data.",
        "Ensembles: without the fits of their members.",
    ]
    return sheet


def default_sheets(found: dict[str, Any]) -> list[Sheet]:
    """The table of defaults and tuned forms."""
    header = ["ranker", "defaults", "tuned", "difference", "standard error", "queries", "verdict"]
    sheet = Sheet(f"{found['data']}: defaults and tuned forms, {found['measure']}", header)
    for row in found["rows"]:
        numbers = [f"{row['default']:.4f}", f"{row['tuned']:.4f}", f"{row['difference']:+.4f}", _number(row["error"])]
        verdict = Bold("the tuned form leads") if row["leads"] else "the defaults stay"
        sheet.rows.append([row["name"], *numbers, str(row["queries"]), verdict])
    folds = len(found["folds"])
    sheet.below = [
        f"Cross-validation inside the training queries, {folds} inner folds: settings are chosen on a fold of them, "
        "and both forms are measured on another one. The test lists of the data are not looked at.",
        f"A tuned form leads by more than {LEAD} and {ERRORS:g} standard errors. This table changes nothing.",
        *(f"{name}: left out, {reason.rstrip('.')}." for name, reason in found["left_out"].items()),
    ]
    return [sheet]


def _whole(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def _number(value: float | None, digits: int = 4) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _p(value: float | None) -> str:
    return NOTHING if value is None else "<0.0001" if value < 1e-4 else f"{value:.4f}"
