"""Checkpoints are whole, always: kills, full disks, flipped bits, files that were cut off."""

import os
import random
import resource
import subprocess
import sys

import pytest
import torch

import torchrank
from tests.rankers.small import FEATURES, data, trainer
from torchrank import LambdaRank
from torchrank.rankers.core.checkpoint_files import WholeCheckpoints, write_whole

KILLED = """
import os, sys, torch
from pathlib import Path
from torchrank.rankers.core import checkpoint_files
at, path = sys.argv[1], Path(sys.argv[2])
if at == "fsync":
    checkpoint_files.os.fsync = lambda handle: os._exit(9)
else:
    save = torch.save
    torch.save = lambda content, file: (save(content, file), file.truncate(100), os._exit(9))
checkpoint_files.write_whole({"step": 2, "x": torch.ones(1000)}, path)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    fit = trainer(folder, 2)
    fit.fit(LambdaRank(FEATURES), datamodule=data())
    assert isinstance(fit.strategy.checkpoint_io, WholeCheckpoints)
    fit.save_checkpoint(folder / "some.ckpt")
    return folder / "some.ckpt"


@pytest.mark.parametrize("at", ["fsync", "write"])
def test_a_kill_while_writing_leaves_the_old_one(tmp_path, at):
    path = tmp_path / "last.ckpt"
    write_whole({"step": 1}, path)
    killed = subprocess.run([sys.executable, "-c", KILLED, at, str(path)], check=False)
    assert killed.returncode == 9
    assert WholeCheckpoints().load_checkpoint(path) == {"step": 1}
    write_whole({"step": 3}, path)
    assert os.listdir(tmp_path) == ["last.ckpt"], "the next one removes what a killed process has left"


def test_a_full_disk_leaves_the_old_one_and_no_litter(tmp_path):
    path, limits = tmp_path / "best.ckpt", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_whole({"step": 1}, path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises((OSError, RuntimeError)):
            write_whole({"x": torch.ones(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert WholeCheckpoints().load_checkpoint(path) == {"step": 1} and os.listdir(tmp_path) == ["best.ckpt"]


def test_flipped_bits_and_cut_files_never_load_as_other_weights(checkpoint, tmp_path):
    content, path, draw = checkpoint.read_bytes(), tmp_path / "x.ckpt", random.Random(0)
    expected = torchrank.load(checkpoint).state_dict()
    refused = 0
    for trial in range(300):
        if trial % 5:
            place = draw.randrange(len(content))
            broken = content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]
        else:
            broken = content[: draw.randrange(len(content))]
        path.write_bytes(broken)
        try:
            found = torchrank.load(path).state_dict()
        except torchrank.CheckpointError as error:
            assert "x.ckpt" in str(error) and "\n" not in str(error)
            refused += 1
            continue
        for name, value in expected.items():  # bits between the parts, which nobody reads
            assert torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
    assert refused > 200


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02}q\x00.", b"1 qid:1 1:2\n", bytes(range(256)) * 8])
def test_other_files_are_one_line_with_the_name(tmp_path, content):
    path = tmp_path / "y.ckpt"
    path.write_bytes(content)
    with pytest.raises(torchrank.CheckpointError, match=r"y\.ckpt .*[Uu]se another checkpoint|y\.ckpt is"):
        torchrank.load(path)
    with pytest.raises(torchrank.CheckpointError, match=r"y\.ckpt is"):
        WholeCheckpoints().load_checkpoint(path)
