"""Losses, forward + backward: against padded float32 forms, on lists of similar length and on ragged ones.

The padded forms (benchmarks/padded_losses.py) are those of most libraries: `(Q, L)` tensors that were padded before
(their making is not timed), for pairs a `(Q, L, L)` tensor with a mask, and gradients by autograd. Where that does not
fit into memory, some lists are measured, and time and memory are multiplied. Memory is the peak of what torch has
allocated during the step, of all that it allocates, as its profiler records it.
"""

from collections.abc import Iterator

import torch
from torch.profiler import profile

from benchmarks.padded_losses import OF_ENTRIES, PADDED
from benchmarks.suite import Row, Setting
from torchrank import functional as F

GRADES = torch.tensor([0.52, 0.32, 0.13, 0.02, 0.01])  # of MSLR-WEB30K, about
PADDED_NUMBERS = 2**22  # in a padded (Q, L, L) tensor: more of them would be gigabytes
NS_PER_PAIR = 40  # wanted at most
BARS = {  # kind of lists, loss: wanted share of the time of the padded form, where more is asked than of the others
    ("alike", "ranknet"): 1 / 4,
    ("alike", "lambdarank"): 1 / 4,
    ("alike", "listnet"): 1,
    ("ragged", "ranknet"): 1 / 135,
    ("ragged", "lambdarank"): 1 / 155,
    ("ragged", "listnet"): 1,
}
FAST = 1e-3  # seconds, of which checks and autograd's Python are a large part
CONSTANT = "0.06 ms (mse) to 0.15 ms (softmax) are checks and autograd's Python, for any number of entries"
TIME = {"alike": 1.2, "ragged": 1 / 2}
MEMORY = 1 / 3  # of the padded form, on ragged lists
SLOW = {"neural_ndcg"}  # of 50 products with a matrix for each list: on a tenth of the entries
COLUMNS = {"ordinal": len(GRADES) - 1}  # scores of an entry, where there are several


def rows(setting: Setting) -> Iterator[Row]:
    others = [(kind, name) for kind in TIME for name in F.LOSSES if (kind, name) not in BARS]
    for kind, name in [*BARS, *others]:
        if not setting.quick or kind == "alike" or name in OF_ENTRIES:  # all pairs of 1,251 entries are not quick
            yield from loss_rows(setting, kind, name)


def loss_rows(setting: Setting, kind: str, name: str) -> Iterator[Row]:
    lists = make_lists(kind, setting.size(5_000 if name in SLOW else 50_000, 1_000 if name in SLOW else 2_000))
    what = f"{name}, lists {'of 108 to 132' if kind == 'alike' else 'of 1 to 250 and one of 1,251'}"
    mine, repeats = flat_step(name, *lists), setting.size(2 if name in SLOW else 9, 1)
    if name not in PADDED:
        (alone,) = setting.race(mine, repeats=repeats)
        yield Row(what, alone, note=f"no padded form; {peak_memory(mine):.1f} MB at its peak")
        return
    other, times = padded_step(name, *lists)
    check_same(mine(), other())
    ours, theirs = setting.race(mine, other, repeats=repeats)
    note, bar = CONSTANT if kind == "alike" and ours < FAST else "", BARS.get((kind, name), TIME[kind])
    yield Row(what, ours, peer="padded float32", theirs=theirs * times, bar=bar, note=note)
    if kind == "ragged":
        sizes = peak_memory(mine), peak_memory(other) * times
        yield Row(f"{what}, memory", sizes[0], "MB", "padded float32", sizes[1], MEMORY)
    if name in ("ranknet", "lambdarank"):
        pairs = count_pairs(*lists[1:])
        yield Row(f"{what}, a pair", ours / pairs * 1e9, "ns", "limit", NS_PER_PAIR, 1, f"{pairs:,} pairs")


def check_same(ours, theirs):
    """Some padded forms know no lists without pairs, which teach nothing."""
    ours = ours[: len(theirs)]
    torch.testing.assert_close(ours, torch.where(ours != 0, theirs, 0), rtol=1e-3, atol=1e-4)


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


def flat_step(name, scores, labels, offsets):
    scores = columns(name, scores).requires_grad_()
    sizes = {"max_length": int(offsets.diff().max()), "num_grades": len(GRADES)}
    sizes["num_pairs"] = count_pairs(labels, offsets)

    def step():
        scores.grad = None
        loss = F.LOSSES[name](scores, labels, offsets, **sizes)
        loss.mean().backward()
        return loss.detach()

    return step


def columns(name, scores):
    """A copy of the scores, with as many columns as the loss takes."""
    return scores[:, None] - torch.arange(float(COLUMNS[name])) if name in COLUMNS else scores.clone()


def padded_step(name, scores, labels, offsets):
    """The step, and how many times as many lists there are as it works on."""
    padded, mask = F.pad(columns(name, scores), offsets)
    grades = F.pad(labels, offsets)[0].float()
    lists, longest = mask.shape
    most = PADDED_NUMBERS // 16 if name in SLOW else PADDED_NUMBERS  # autograd keeps a tensor of each product
    used = lists if name in OF_ENTRIES else max(1, min(lists, most // longest**2))
    some = padded[:used].clone().requires_grad_()

    def step():
        some.grad = None
        loss = PADDED[name](some, grades[:used], mask[:used])
        loss.mean().backward()
        return loss.detach()

    return step, lists / used


def peak_memory(step):
    """The most memory that torch holds at a time of what it allocates during the step, in MB."""
    step()
    with profile(profile_memory=True) as seen:
        step()
    moves = sorted((e.start_ns(), e.nbytes()) for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    held = torch.tensor([size for _, size in moves]).cumsum(0)
    return held.max().item() / 2**20
