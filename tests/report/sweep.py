"""Writes result folders by hand, in the form that train.py leaves them."""

import json
from pathlib import Path

import numpy as np

TEXT = "gain 2^y-1, discount 1/log2(1+rank), ties stable, relevant y>=1, queries without relevant documents left out"


def write_run(
    folder: Path, name: str, *, value: float, queries: dict[str, list[float]], fold=1, seed=0, settings=None,
    data="mq2008", ids=None, selection="val/ndcg@10", mode="max", steps=None, certificate=None,
    facts=None,
) -> Path:  # fmt: skip
    """`queries`: "convention/measure" -> per-query values; the means are taken from them, nan left out.

    `facts`: length, relevant and group of each query.
    """
    folder.mkdir(parents=True)
    ids = ids or [f"{fold}-{position}" for position in range(len(next(iter(queries.values()))))]
    np.savez(
        folder / "per_query.npz",
        query=np.array(ids),
        **(facts or {}),
        **{key: np.array(v, float) for key, v in queries.items()},
    )
    test: dict = {}
    for key, values in queries.items():
        convention, measure = key.split("/")
        empty = int(np.isnan(values).sum())
        part = test.setdefault(convention, {"text": TEXT, "lists": len(values), "empty": empty, "measures": {}})
        part["measures"][measure] = float(np.nanmean(values))
    content = {
        "schema": 2, "name": name, "ranker": name.title(), "options": {}, "data": data, "fold": fold, "seed": seed,
        "config": {}, "settings": settings or {}, "versions": {}, "git": None,
        "selection": {"measure": selection, "value": value, "mode": mode},
        "certificate": certificate, "findings": {}, "density": None, "steps": steps,
        "num_lists": {"train": 471, "val": 157, "test": len(ids)}, "test": test, "val": test,
        "per_query": "per_query.npz", "seconds": {"data": 0.1, "fit": 2.0, "test": 0.1}, "peak_memory_mb": 300.0,
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def write_sweep(root: Path, *, folds=(1, 2, 3, 4, 5), seed=0) -> Path:
    """Three methods over five folds, about the shape and the numbers of MQ2008; gbdt is the best, linear is level."""
    generator = np.random.default_rng(seed)
    strength = {"linear": 0.475, "gbdt": 0.48, "single": 0.39}
    for fold in folds:
        base = generator.beta(2, 2, size=157) - 0.5
        base[:50] = np.nan
        for name, mean in strength.items():
            for l2 in [0.001, 0.01, 0.1] if name == "linear" else [None]:
                noise = generator.normal(0, 0.12, size=(3, 157))
                values = np.clip(mean + base + noise, 0, 1)
                queries = {"default/ndcg@5": values[0], "default/ndcg@10": values[1] + 0.2, "default/map": values[2]}
                queries |= {f"letor/{key.split('/')[1]}": np.nan_to_num(v) for key, v in queries.items()}
                settings = {} if l2 is None else {"model.l2": l2}
                write_run(root / f"{name}-{l2}-{fold}", name, value=0.7 + 0.01 * generator.random(), queries=queries,
                          fold=fold, settings=settings)  # fmt: skip
    return root
