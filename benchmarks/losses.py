"""Losses, forward + backward: against padded float32 forms, on lists of similar length and on ragged ones.

The padded forms are those of most libraries: `(Q, L)` tensors that were padded before (their making is not timed), for
pairs a `(Q, L, L)` tensor with a mask, and gradients by autograd. Where that does not fit into memory, some lists
are timed and the time is multiplied.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.suite import Row, Setting
from torchrank import functional as F

GRADES = torch.tensor([0.52, 0.32, 0.13, 0.02, 0.01])  # of MSLR-WEB30K, about
PADDED_NUMBERS = 2**22  # in a padded (Q, L, L) tensor: more of them would be gigabytes
NS_PER_PAIR = 40  # wanted at most
BARS = {  # kind of lists, loss: wanted share of the time of the padded form
    ("alike", "ranknet"): 1 / 4,
    ("alike", "lambdarank"): 1 / 4,
    ("alike", "listnet"): 1,
    ("ragged", "ranknet"): 1 / 135,
    ("ragged", "lambdarank"): 1 / 155,
    ("ragged", "listnet"): 1,
}


def rows(setting: Setting) -> Iterator[Row]:
    for (kind, name), bar in BARS.items():
        lists = make_lists(kind, setting.size(50_000, 2_000))
        mine, (other, times) = flat_step(name, *lists), padded_step(name, *lists)
        check_same(mine(), other())
        ours, theirs = setting.race(mine, other, repeats=5)
        memory = f"{extra_memory(mine):.0f} MB more memory than before the step"
        what = f"{name}, lists {'of 108 to 132' if kind == 'alike' else 'of 1 to 250 and one of 1,251'}"
        yield Row(what, ours, peer="padded float32", theirs=theirs * times, bar=bar, note=memory)
        if name != "listnet":
            pairs = count_pairs(*lists[1:])
            yield Row(f"{what}, a pair", ours / pairs * 1e9, "ns", "limit", NS_PER_PAIR, 1, f"{pairs:,} pairs")


def check_same(ours, theirs):
    """The padded forms know no lists without pairs, which teach nothing."""
    ours = ours[: len(theirs)]
    torch.testing.assert_close(ours, torch.where(ours > 0, theirs, 0), rtol=1e-3, atol=1e-4)


def make_lists(kind, documents, seed=0):
    """Lists of 108 to 132 entries; or of 1 to 250 and one of 1,251."""
    draw, (low, high) = torch.Generator().manual_seed(seed), (108, 133) if kind == "alike" else (1, 251)
    lengths = torch.randint(low, high, (max(1, 2 * documents // (low + high)),), generator=draw)
    lengths = lengths if kind == "alike" else torch.cat([lengths, torch.tensor([1251])])
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    labels = torch.multinomial(GRADES, int(offsets[-1]), replacement=True, generator=draw)
    return torch.randn(len(labels), generator=draw), labels, offsets


def count_pairs(labels, offsets):
    lists = torch.repeat_interleave(offsets.diff())
    counts = torch.zeros(len(offsets) - 1, len(GRADES), dtype=torch.int64)
    counts.index_put_((lists, labels), torch.ones_like(labels), accumulate=True)
    return int((offsets.diff().square() - counts.square().sum(1)).sum()) // 2


# the padded forms: scores, labels (float32) and mask are (Q, L)


def padded_listnet(scores, labels, mask):
    scores, labels = (part.masked_fill(~mask, -torch.inf) for part in (scores, labels))
    logs = torch.log_softmax(scores, 1).masked_fill(~mask, 0.0)
    return -(torch.softmax(labels, 1) * logs).sum(1)


def padded_ranknet(scores, labels, mask):
    counts = (labels[:, :, None] > labels[:, None]) & mask[:, None] & mask[:, :, None]
    return (torch.nn.functional.softplus(scores[:, None] - scores[:, :, None]) * counts).sum((1, 2))


def padded_lambdarank(scores, labels, mask):
    counts = (labels[:, :, None] > labels[:, None]) & mask[:, None] & mask[:, :, None]
    with torch.no_grad():
        order = scores.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
        discounts = 1 / torch.log2(order.argsort(1) + 2.0)
        gains = torch.where(mask, torch.exp2(labels) - 1, 0)
        ideal = (gains.sort(1, descending=True).values / torch.log2(torch.arange(gains.shape[1]) + 2.0)).sum(1)
        gains = gains / ideal.clamp(min=1e-10)[:, None]
        weights = (gains[:, :, None] - gains[:, None]).abs() * (discounts[:, :, None] - discounts[:, None]).abs()
    return (torch.nn.functional.softplus(scores[:, None] - scores[:, :, None]) * weights * counts).sum((1, 2))


PADDED = {"listnet": padded_listnet, "ranknet": padded_ranknet, "lambdarank": padded_lambdarank}


def flat_step(name, scores, labels, offsets):
    scores = scores.clone().requires_grad_()
    sizes = {"max_length": int(offsets.diff().max()), "num_grades": len(GRADES)}
    sizes["num_pairs"] = count_pairs(labels, offsets)

    def step():
        scores.grad = None
        loss = F.LOSSES[name](scores, labels, offsets, **sizes)
        loss.mean().backward()
        return loss.detach()

    return step


def padded_step(name, scores, labels, offsets):
    """The step, and how many times as many lists there are as it works on."""
    padded, mask = F.pad(scores, offsets)
    grades = F.pad(labels, offsets)[0].float()
    lists, longest = mask.shape
    used = lists if name == "listnet" else max(1, min(lists, PADDED_NUMBERS // longest**2))
    some = padded[:used].clone().requires_grad_()

    def step():
        some.grad = None
        loss = PADDED[name](some, grades[:used], mask[:used])
        loss.mean().backward()
        return loss.detach()

    return step, lists / used


def extra_memory(step):
    """How much more memory the process has at its peak during the step, in MB, looked at every half millisecond."""
    page, done, peak = 4096 / 2**20, threading.Event(), []

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    def watch():
        while not done.is_set():
            peak.append(resident())
            time.sleep(5e-4)

    before, watcher = resident(), threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        step()
    done.set()
    watcher.join()
    return max([*peak, before]) - before
