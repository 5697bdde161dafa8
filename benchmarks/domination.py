"""Domination loss, forward + backward: against the list length, the naive pair form, ListNet and a padded logsumexp.

    python benchmarks/domination.py [--lists 256] [--length 10000] [--repeats 200] [--skip-naive] [--quick]

Each time is the best of `repeats` rounds in which all forms take turns, so that a busy machine slows down all of them.
The padded logsumexp is timed from the flat scores (it makes the `(Q, L)` tensor itself, as every other form), and once
more, for scale, on a tensor that was padded before.
"""

import argparse
import time

import torch
from quick import parse

from torchrank.functional import domination_loss, listnet_loss, pad

GRADES = 5
ROWS = 1000  # of the pair matrix at once: all of it would be 400 MB, several times over


def make_lists(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    labels = torch.randint(0, GRADES, (int(offsets[-1]),), generator=generator)
    scores = torch.randn(len(labels), generator=generator).requires_grad_()
    return scores, labels, offsets


def draw_lengths(lists, kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if kind == "long":
        return torch.randint(60, 201, (lists,), generator=generator)
    return torch.exp(torch.log(torch.tensor(20.5)) + 0.6 * torch.randn(lists, generator=generator)).long().clamp(1, 150)


def gradient(loss, leaf):
    """One forward and backward pass."""
    leaf.grad = None
    loss().sum().backward()


def naive(scores, labels):
    """Gradient of log(1 + sum of exp(f_j - f_i)) over all pairs of one list, `ROWS` rows of the matrix at a time."""
    scores.grad = None
    for some in torch.arange(len(scores)).split(ROWS):
        terms = torch.where(labels[some, None] > labels, scores - scores[some, None], -torch.inf)
        torch.nn.functional.pad(terms, (1, 0)).logsumexp(1).sum().backward()
    return scores.grad


def best_times(forms, repeats):
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(repeats):
        for name, run in forms.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def verdict(text, ratio, limit, at_most=True):
    good = ratio <= limit if at_most else ratio >= limit
    print(f"  {text:58}{ratio:10.2f}x  (wanted: {'<=' if at_most else '>='} {limit}x) {'ok' if good else 'MISSED'}")


def against_length(length, repeats, with_naive):
    tenth = max(1, length // 10)
    lists = {size: make_lists(torch.tensor([size])) for size in (tenth, length)}
    forms = {size: lambda one=one: gradient(lambda: domination_loss(*one), one[0]) for size, one in lists.items()}
    best = best_times(forms, repeats)
    print("one list of " + ", of ".join(f"{size}: {1e3 * value:.3f} ms" for size, value in best.items()))
    verdict("ten times the length / length", best[length] / best[tenth], 3)
    if with_naive:
        scores, labels, _ = lists[length]
        found = scores.grad.clone()
        start = time.perf_counter()
        wanted = naive(scores, labels)
        seconds = time.perf_counter() - start
        print(f"  naive pairs at {length}: {seconds:.2f} s, largest difference of the gradients "
              f"{(found - wanted).abs().max():.1e} of {wanted.abs().max():.1e}")  # fmt: skip
        verdict("naive / torchrank", seconds / best[length], 1000, at_most=False)


def against_losses(lists, kind, repeats, limit):
    batch = make_lists(draw_lengths(lists, kind))
    scores, _, offsets = batch
    longest = int(offsets.diff().max())
    padded = pad(scores.detach(), offsets, fill=-torch.inf)[0].requires_grad_()
    forms = {
        "domination": lambda: gradient(lambda: domination_loss(*batch), scores),
        "listnet": lambda: gradient(lambda: listnet_loss(*batch), scores),
        "padded logsumexp": lambda: gradient(
            lambda: pad(scores, offsets, max_length=longest, fill=-torch.inf)[0].logsumexp(1), scores
        ),
        "logsumexp of a padded tensor": lambda: gradient(lambda: padded.logsumexp(1), padded),
    }
    best = best_times(forms, repeats)
    print(f"\n{lists} lists of {int(offsets.diff().min())} to {longest}, median {int(offsets.diff().median())}, "
          f"{len(scores)} entries")  # fmt: skip
    for name, value in best.items():
        print(f"  {name:58}{1e3 * value:9.3f} ms")
    ours, faster = best["domination"], min(best["listnet"], best["padded logsumexp"])
    verdict("domination / faster of listnet and padded logsumexp", ours / faster, limit)
    print(f"  {'domination / logsumexp of a padded tensor':58}{ours / best['logsumexp of a padded tensor']:10.2f}x")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=256)
    parser.add_argument("--length", type=int, default=10_000, help="of the one long list")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--skip-naive", action="store_true", help="the pairs of 10,000 entries take several seconds")
    options = parse(parser, lists=32, length=500, repeats=3)
    torch.set_num_threads(options.threads)
    print(f"forward + backward, float32, {GRADES} grades, {options.threads} thread(s), best of {options.repeats}\n")
    against_length(options.length, options.repeats, not options.skip_naive)
    against_losses(options.lists, "long", options.repeats, 2)
    against_losses(options.lists, "short", options.repeats, 3)


if __name__ == "__main__":
    main()
