"""The standing attack: `make attack`, or python -m tests.attack [--minutes 20] [--seed 0] [--only kills,disk].

Everything is drawn from the seed. It ends with a table, and with exit code 1 if anything was lost or wrong.
"""

import argparse
import multiprocessing
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import torch

from tests.attack import children, disk, inputs, kills, pickles
from tests.attack.tally import Tally, table, together, write_json, write_page

Task = Callable[[], Tally]
BATCH = 500  # damaged files that one child reads
SHARES = {
    "cache beside its source": 0.2,
    "LETOR": 8,
    "csv": 3,
    "results.json": 2,
    "cache": 2,
    "npz": 2,
    "parquet": 2,
}  # of all damaged files
TOTAL = 100_000


def kill_tasks(seed: int, scale: float) -> Iterator[Task]:
    for setting in kills.all_settings():
        yield partial(kills.attack, setting, seed, chains=max(1, round(2 * scale)))


def input_tasks(seed: int, scale: float) -> Iterator[Task]:
    shares = {name: SHARES.get(name, 1) for name in inputs.KINDS}
    for name, share in shares.items():
        batches = -(-round(TOTAL * scale * share / sum(shares.values())) // BATCH)
        for number in range(batches):
            yield partial(inputs.attack, name, seed * 1_000_000 + number, BATCH)


def hostile_tasks(seed: int, scale: float) -> Iterator[Task]:
    for what in pickles.ALL:
        for way in pickles.WAYS:
            yield partial(pickles.attack_apart, what, way)


def disk_tasks(seed: int, scale: float) -> Iterator[Task]:
    for what in disk.ATTACKS:
        for number in range(max(1, round(4 * scale))):
            yield partial(disk.attack, what, seed * 1000 + number, 5)


ATTACKS = {"kills": kill_tasks, "inputs": input_tasks, "hostile": hostile_tasks, "disk": disk_tasks}


def run(names: list[str], seed: int, scale: float, jobs: int) -> list[Tally]:
    """All tasks of these attacks, on so many processes."""
    tasks = [task for name in names for task in ATTACKS[name](seed, scale)]
    found: dict[int, Tally] = {}
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=fork) as pool:
        running = {pool.submit(task): place for place, task in enumerate(tasks)}
        for done in as_completed(running):
            found[running[done]] = tally = done.result()
            for failure in tally.failures:
                print(f"FAILED {tally.attack}: {failure}", flush=True)
    return together(found[place] for place in sorted(found))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="about how long, on two idle cores (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(ATTACKS), help=f"some of {', '.join(ATTACKS)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to a file")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between the two marks of a page")
    given = parser.parse_args()
    children.prepare()
    began = time.monotonic()
    names = given.only.split(",")
    if unknown := set(names) - set(ATTACKS):
        parser.error(f"unknown attacks {', '.join(sorted(unknown))}: choose from {', '.join(ATTACKS)}")
    tallies = run(names, given.seed, given.minutes / 20, given.jobs)
    minutes = (time.monotonic() - began) / 60
    told = f"python {platform.python_version()}, torch {torch.__version__}, seed {given.seed}, {minutes:.1f} minutes"
    print(f"\n{table(tallies)}\n\n{told}")
    if given.json:
        write_json(given.json, tallies, {"seed": given.seed, "minutes": round(minutes, 1), "torch": torch.__version__})
    if given.write:
        write_page(given.write, f"{table(tallies)}\n\nLast run: {told}.")
    sys.exit(int(any(tally.failures for tally in tallies)))


if __name__ == "__main__":
    main()
