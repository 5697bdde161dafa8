"""Checkpoints with right checksums and foreign, forged or mutated content: one line with the file's name, or a ranker
that scores. Never another error, never memory for what the file cannot hold."""

import copy
import math
import multiprocessing
import random
import re
import resource
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from zlib import crc32

import pytest
import torch

import torchrank
from tests.laws.rankers import CASES, sets
from torchrank import RankingEstimator
from torchrank.cli import main
from torchrank.rankers.core.checkpoint_files import write_whole
from torchrank.rankers.core.checkpoints import FORMAT

RANKERS = [
    "listnet",
    "mlp_ranknet",
    "ensemble",
    "gbdt",
    "xgboost",
    "lgmml_similar",
    "lgmml",
    "rankboost",
    "local_listnet",
    "mlr",
    "queryknn",
]
VALUES = [None, "x", "", -1, 0, 2**31, 2**62, 1.5, math.nan, math.inf, True, [], {}, [1, "a"], torch.zeros(3),
          torch.zeros(2, 2), torch.ones(1).expand(2**33), torch.zeros(4, dtype=torch.int64),
          torch.zeros(5, dtype=torch.complex64), torch.zeros(0)]  # fmt: skip
BOOSTERS = """
import random, re, sys
from torchrank import CheckpointError
from torchrank.rankers.trees.ranker import ENGINES, Common
engine = ENGINES["lightgbm"](Common("lambdarank", 0.1, None, None, 1, 0), {})
text, draw, refused = open(sys.argv[1]).read(), random.Random(0), 0
for _ in range(150):
    places = list(re.finditer(r"-?[0-9.]+", text[:text.index("parameters:")]))
    place = draw.choice(places)
    new = draw.choice(["", "-1", "99", "2147483648", "1e400", "1_0", "x", "0 0"])
    forged = text[:place.start()] + new + text[place.end():]
    head, gap, rest = forged.partition("\\n\\n")
    sizes = [len(part) for part in re.split("(?=Tree=)|(?=end of trees)", rest) if part.startswith("Tree=")]
    forged = re.sub("tree_sizes=.*", "tree_sizes=" + " ".join(map(str, sizes)), head) + gap + rest
    try:
        engine.read(forged, 5).predict([[0.0] * 5])
    except Exception as error:
        refused += isinstance(error, CheckpointError)
print("refused", refused)
"""
FORESTS = """
import copy, json, random, sys
import numpy as np
from torchrank import CheckpointError
from torchrank.rankers.trees.ranker import ENGINES, Common
engine = ENGINES["xgboost"](Common("lambdarank", 0.1, None, None, 1, 0), {})
whole, draw, refused = json.load(open(sys.argv[1])), random.Random(0), 0
values = [None, "x", "", "0", "7", "-1", "999999999", -1, 0, 1, 99, 2**31 - 1, 2**62, 1.5, 1e39, True, [], {}, [0]]
def places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))
every = list(places(whole))
for _ in range(400):
    forged = copy.deepcopy(whole)
    *above, key = draw.choice(every)
    holder = forged
    for each in above:
        holder = holder[each]
    if draw.random() < 0.2:
        holder.pop(key)
    else:
        holder[key] = draw.choice(values)
    text = json.dumps(forged)
    place = draw.randrange(len(text))
    text = text if draw.random() < 0.9 else text[:place] + draw.choice(["", "{", "9" * 50]) + text[place + 2 :]
    try:
        engine.read(text, 5).inplace_predict(np.zeros((3, 5), dtype=np.float32))
    except CheckpointError as error:
        refused += "\\n" not in str(error)
print("refused", refused)
"""


def content(ranker):
    return {
        "ranker": type(ranker).__name__,
        "format": FORMAT,
        "hyper_parameters": dict(ranker.hparams),
        "state_dict": ranker.state_dict(),
        "pytorch-lightning_version": "2.6.0",
    }


@pytest.fixture(scope="module")
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: CASES[name].make().fit(**some(name), epochs=2) for name in RANKERS}


def some(name):
    return {split: lists for split, lists in sets(CASES[name].kind).items() if split != "test"}


def places(value, path=()):
    """The path of every entry of nested dicts and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutated(whole, draw):
    changed = copy.deepcopy(whole)
    *above, key = draw.choice(list(places(whole)))
    holder = changed
    for each in above:
        holder = holder[each]
    if draw.random() < 0.25 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = draw.choice(VALUES)
    return changed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RANKERS)
def test_mutated_content_is_refused_or_scores(name, fitted, tmp_path):
    draw, path, whole = random.Random(name), tmp_path / "x.ckpt", content(fitted[name])
    refused, test = 0, sets(CASES[name].kind)["test"]
    for _ in range(25):
        write_whole(mutated(whole, draw), path)
        try:
            ranker = torchrank.load(path)
        except torchrank.CheckpointError as error:
            assert "x.ckpt" in str(error) and "\n" not in str(error)
            refused += 1
            continue
        if ranker.num_features == test.x.shape[1] and not test.is_shared:
            scores = ranker(test.x, test.offsets)
            assert scores.shape == test.labels.shape
            if tensors_equal(ranker, fitted[name]) and options_equal(ranker, fitted[name]):
                assert torch.equal(scores, fitted[name](test.x, test.offsets))
    assert refused > 3


def tensors_equal(one, other):
    mine, theirs = ({key: value for key, value in each.state_dict().items() if isinstance(value, torch.Tensor)}
                    for each in (one, other))  # fmt: skip
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def options_equal(one, other):
    return dict(one.hparams) == dict(other.hparams)


@pytest.mark.filterwarnings("ignore")
def test_commands_refuse_forged_content_in_one_line(fitted, tmp_path, capsys):
    draw, path, whole = random.Random(1), tmp_path / "x.ckpt", content(fitted["listnet"])
    lists, refused = tmp_path / "lists.txt", 0
    lists.write_text("1 qid:1 1:0.5 5:1\n0 qid:1 2:0.5\n")
    for turn in range(20):
        write_whole(mutated(whole, draw), path)
        command = ["score", "test", "info", "explain"][turn % 4]
        code, told = main([command, str(path), *([] if command == "info" else [str(lists)])]), capsys.readouterr().err
        errors = [line for line in told.splitlines() if not line.startswith(f"torchrank {command}: warning: ")]
        assert (code, len(errors)) in ((0, 0), (2, 1)), told
        refused += code == 2
    assert refused > 5


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_compressed_content_is_refused_before_it_is_unpacked(method, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.ckpt", "w", method) as archive:
        archive.writestr("x/data.pkl", b"")
        archive.writestr("x/data/0", bytes(2**22))
    for load in (torchrank.load, torchrank.ListNet.load_from_checkpoint):
        with pytest.raises(torchrank.CheckpointError, match=r"x\.ckpt .* larger than the file"):
            load(tmp_path / "x.ckpt")


@pytest.mark.filterwarnings("ignore")
def test_a_refusal_takes_no_memory(fitted, tmp_path):
    """In a copy of this process that may take 256 MB more than it has."""
    forged = {}
    for name in ("listnet", "mlp_ranknet", "lgmml", "gbdt"):
        forged[name] = content(fitted[name])
        forged[name]["hyper_parameters"] = forged[name]["hyper_parameters"] | {"num_features": 2**24}
    forged["wide"] = content(fitted["listnet"])
    forged["wide"]["state_dict"]["weights"] = torch.ones(1).expand(2**33)
    for name, whole in forged.items():
        write_whole(whole, tmp_path / f"{name}.ckpt")
    child = multiprocessing.get_context("fork").Process(target=refuse_all, args=(tmp_path,))
    child.start()
    child.join(30)
    assert child.exitcode == 0


def refuse_all(folder):
    torch.set_num_threads(1)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, taken + 2**28))
    for path in folder.glob("*.ckpt"):
        with pytest.raises(torchrank.CheckpointError, match=path.name) as refused:
            torchrank.load(path)
        assert "alloc" not in str(refused.value) and "MemoryError" not in str(refused.value)


@pytest.mark.parametrize("features", [2**31, 2**62, -1, math.nan, "5", None])
def test_absurd_sizes_are_refused_before_memory_is_taken(features, fitted, tmp_path):
    for name in ("listnet", "mlp_ranknet", "gbdt"):
        whole = content(fitted[name])
        whole["hyper_parameters"]["num_features"] = features
        write_whole(whole, tmp_path / "x.ckpt")
        with pytest.raises(torchrank.CheckpointError, match=r"x\.ckpt"):
            torchrank.load(tmp_path / "x.ckpt")


FOREIGN = {"ranker": "ListNet", "format": 2, "hyper_parameters": [], "state_dict": {}}


@pytest.mark.parametrize("forged", ["text", [1], {"ranker": 3}, {"ranker": "ListNet"}, FOREIGN])
def test_foreign_content_is_refused(forged, tmp_path):
    torch.save(forged, tmp_path / "x.ckpt")
    for load in (torchrank.load, RankingEstimator.load, torchrank.ListNet.load_from_checkpoint):
        with pytest.raises(torchrank.CheckpointError, match=r"x\.ckpt"):
            load(tmp_path / "x.ckpt")


def test_options_of_another_class_are_refused(fitted, tmp_path):
    whole = content(fitted["listnet"]) | {"hyper_parameters": dict(fitted["gbdt"].hparams)}
    write_whole(whole, tmp_path / "x.ckpt")
    with pytest.raises(torchrank.CheckpointError, match=r"x\.ckpt: its hyper-parameters are not those of a ListNet"):
        torchrank.load(tmp_path / "x.ckpt")


def test_an_option_of_earlier_versions_is_dropped(fitted, tmp_path):
    """Files of 0.2 name the solver of LGMML and GMML: alone, and as members of an ensemble."""
    lists = sets("lists")["test"]
    for name in ("lgmml_similar", "lgmml"):
        both = torchrank.Ensemble(members=[fitted[name], fitted[name]]).fit(**some(name))
        one, two = copy.deepcopy(content(fitted[name])), copy.deepcopy(content(both))
        for options in (one["hyper_parameters"], *(each["options"] for each in two["hyper_parameters"]["members"])):
            assert "solver" not in options
            options["solver"] = "svd"
        for whole, ranker in ((one, fitted[name]), (two, both)):
            write_whole(whole, tmp_path / "x.ckpt")
            loaded = torchrank.load(tmp_path / "x.ckpt")
            found, expected = (each(lists.x, lists.offsets) for each in (loaded, ranker.eval()))
            assert "solver" not in str(loaded.hparams) and torch.equal(found, expected)


def test_forged_trees_with_a_right_checksum_are_refused(fitted, tmp_path):
    for name, place, forged in (
        ("gbdt", "left_child=.*", "left_child=99 99 99"),
        ("xgboost", r'"left_children":\[1', '"left_children":[99'),
    ):
        refuse_forged_trees(content(fitted[name]), place, forged, tmp_path)


def refuse_forged_trees(whole, place, forged, tmp_path):
    state = whole["state_dict"]["_extra_state"]
    state["booster"] = re.sub(place, forged, state["booster"], count=1)
    state["checksum"] = crc32(state["booster"].encode())
    write_whole(whole, tmp_path / "x.ckpt")
    with pytest.raises(torchrank.CheckpointError, match=r"x\.ckpt: the text of its trees is damaged"):
        torchrank.load(tmp_path / "x.ckpt")


@pytest.mark.parametrize(("name", "script", "least"), [("gbdt", BOOSTERS, 40), ("xgboost", FORESTS, 350)])
def test_forged_trees_never_end_the_interpreter(name, script, least, fitted, tmp_path):
    (tmp_path / "trees.txt").write_text(fitted[name].state_dict()["_extra_state"]["booster"])
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "trees.txt")], capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout.split()[-1]) > least, done.stderr[-500:]
