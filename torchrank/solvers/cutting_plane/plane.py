"""The stabilised 1-slack cutting plane: F(W) = Omega(W) + C h(W), where h is a maximum of affine functions.

McFee & Lanckriet, "Metric learning to rank", ICML 2010, Algorithm 1, after Joachims, Finley & Yu 2009. An oracle gives
(Psi, M) at the probe, with h(probe) = max(0, M - <probe, Psi>) and h(W) >= M - <W, Psi> everywhere: a cut. Probes lie
between the minimum of the cuts and the best point so far ("in-out"), which needs half as many rounds or fewer.

The state lives on any device, always in float64; the reduced problem is solved on the host, in one thread.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from torchrank.solvers.cutting_plane.reduced_problem import Array, Cuts, Reduced, hinge, solve_reduced
from torchrank.solvers.cutting_plane.regularisers import Regulariser, make_regulariser

PATIENCE = 50  # a cut is dropped after so many rounds without weight
LOOSE = 0.4  # share of the gap to which the reduced problem is solved; exact minima make worse probes than inner points


class Plane(NamedTuple):
    """R cuts, where the reduced problem stands, the next probe, the best probe so far, and bounds of the minimum."""

    psi: Tensor  # (R, *shape)
    loss: Tensor  # (R,)
    gram: Tensor  # (R, R) inner products of psi
    idle: Tensor  # (R,) rounds in a row without weight
    alpha: Tensor  # (R,) weights of the cuts
    primal: Tensor  # (*shape) Z of ADMM
    dual: Tensor  # (2, *shape) scaled multipliers of ADMM; the second only with l21
    rho: Tensor  # () 0 before the first cut
    probe: Tensor  # (*shape)
    best: Tensor  # (*shape)
    hinge: Tensor  # () h(best)
    upper: Tensor  # () F(best), infinite before the first cut
    lower: Tensor  # ()


def start(shape: tuple[int, ...], device: torch.device | str = "cpu", anchor: Tensor | None = None) -> Plane:
    """A state without cuts, with its probe at 0, or at `anchor`. `shape` is (D, D), or (D,) for `diagonal` and
    `linear`."""
    sizes = ((0, *shape), 0, (0, 0), 0, 0, shape, (2, *shape), (), shape, shape, (), (), ())  # of the fields above
    plane = Plane(*(torch.zeros(size, dtype=torch.float64, device=device) for size in sizes))
    first, infinite = plane.probe if anchor is None else anchor.to(plane.probe), plane.upper + math.inf
    plane = plane._replace(primal=first, probe=first, best=first, hinge=infinite, upper=infinite)
    return plane._replace(idle=plane.idle.long())


def gap(plane: Plane) -> Tensor:
    """How far F(best) is above the minimum at most."""
    return plane.upper - plane.lower


def add_cut(
    plane: Plane, psi: Tensor, loss: Tensor, *, C: float, eps: float = 1e-3, stabilise: float = 0.3, **regulariser: Any
) -> Plane:
    """The state after a round in which the oracle answered `psi (*shape)` and `loss ()` at `plane.probe`.

    F(probe) is exact; where it is the lowest value so far, the probe becomes `best`. Then the reduced problem with this
    cut is solved to within 0.4 of the gap. Its lower bound holds for F, and the next probe is `stabilise` of the way
    from `best` to its minimum (1: at the minimum, the algorithm as published). Nothing is solved once the gap is C eps
    or less. A round whose cut does not raise the minimum of the cuts shrinks the gap to 1 - 0.6 `stabilise` of its size
    or less. Further options choose the regulariser, see `make_regulariser`.

    >>> plane = start((1,))
    >>> for _ in range(3):  # w^2 / 2 + 2 max(0, 1 - 3 w)
    ...     plane = add_cut(plane, torch.tensor([3.0]), torch.tensor(1.0), C=2, regulariser="linear", stabilise=1)
    >>> plane.best, plane.upper
    (tensor([0.3333], dtype=torch.float64), tensor(0.0556, dtype=torch.float64))
    """
    home, plane = plane.probe.device, _to(plane, torch.device("cpu"))
    omega = make_regulariser(**regulariser)
    answer = torch.cat((psi.detach().double().flatten(), torch.as_tensor(loss).detach().double().view(1))).cpu()
    plane = _with_cut(plane, answer[:-1].view(psi.shape), answer[-1])
    reached = torch.clamp(plane.loss[-1] - (plane.probe * plane.psi[-1]).sum(), min=0.0)
    value = omega.value(plane.probe.numpy()) + C * reached
    if value < plane.upper:
        plane = plane._replace(best=plane.probe, hinge=reached, upper=value)
    if gap(plane) > C * eps:
        plane = _solved(plane, omega, C, stabilise)
    return _to(plane, home)


def restart(plane: Plane, *, C: float, eps: float = 1e-3, stabilise: float = 0.3, **regulariser: Any) -> Plane:
    """The state with the same cuts for another C (or another Omega of the same shape): a step on a path of C.

    Cuts do not depend on C, so both bounds start from what is known: F at `best`, and the minimum of the cuts. The
    options are those of `add_cut`.
    """
    home, plane = plane.probe.device, _to(plane, torch.device("cpu"))
    omega = make_regulariser(**regulariser)
    upper = omega.value(plane.best.numpy()) + C * plane.hinge
    plane = plane._replace(upper=upper, lower=torch.zeros_like(upper))
    if C * eps < gap(plane) < math.inf:  # infinite where no cut was made at `best`, which is the probe then
        plane = _solved(plane, omega, C, stabilise)
    return _to(plane, home)


def rest(plane: Plane, anchor: Tensor) -> Plane:
    """The state with the same cuts for C = 0, where W is `anchor`: Omega is 0 there, and nowhere below. No cut is made:
    a later `restart` begins at this probe.

    >>> plane = rest(start((1, 1)), torch.eye(1))
    >>> plane.best, float(gap(plane))
    (tensor([[1.]], dtype=torch.float64), 0.0)
    """
    first, zero = anchor.to(plane.probe), torch.zeros_like(plane.upper)
    return plane._replace(probe=first, best=first, hinge=zero + math.inf, upper=zero, lower=zero)


def _to(plane: Plane, device: torch.device) -> Plane:
    """The state on a device; all of it crosses in one copy."""
    if plane.probe.device == device:
        return plane
    joined = torch.cat([part.double().flatten() for part in plane]).to(device)
    pieces = joined.split([part.numel() for part in plane])
    return Plane(*(piece.view_as(part).to(part.dtype) for piece, part in zip(pieces, plane, strict=True)))


def _with_cut(plane: Plane, psi: Tensor, loss: Tensor) -> Plane:
    if psi.shape != plane.probe.shape or not (torch.isfinite(psi).all() and torch.isfinite(loss)):
        given = f"{tuple(psi.shape)} with {int((~psi.isfinite()).sum())} values that are not finite, loss {float(loss)}"
        raise ValueError(f"a cut must be finite, of shape {tuple(plane.probe.shape)}, got {given}")
    psi = (psi + psi.T) / 2 if psi.ndim == 2 else psi  # not exactly symmetric where products were rounded
    psis = torch.cat((plane.psi, psi[None]))
    row = psis.flatten(1) @ psi.flatten()
    gram = torch.cat((torch.cat((plane.gram, row[None, :-1])), row[:, None]), 1)
    idle, alpha = (torch.cat((part, part.new_zeros(1))) for part in (plane.idle, plane.alpha))
    return plane._replace(psi=psis, loss=torch.cat((plane.loss, loss[None])), gram=gram, idle=idle, alpha=alpha)


def _solved(plane: Plane, omega: Regulariser, C: float, stabilise: float) -> Plane:
    """The state with the reduced problem solved, old cuts dropped, and the next probe chosen."""
    cuts = Cuts(plane.psi.flatten(1).numpy(), plane.loss.numpy(), plane.gram.numpy())
    z, used = plane.primal.numpy(), slice(omega.splits)
    start = Reduced(z, plane.dual.numpy()[used], float(plane.rho), plane.alpha.numpy(), z, math.inf, -math.inf)
    with _blas().limit(limits=1):  # on small matrices, threads that wait for each other take ten to fifty times as long
        solution = solve_reduced(cuts, start, omega, C, LOOSE * float(gap(plane)), plane.idle.numpy())
    alpha, dual = torch.from_numpy(solution.alpha), plane.dual.clone()
    dual[used] = torch.from_numpy(solution.u)
    idle = torch.where(alpha > 0, 0, plane.idle + 1)
    keep = idle < PATIENCE
    return plane._replace(
        psi=plane.psi[keep],
        loss=plane.loss[keep],
        gram=plane.gram[keep][:, keep],
        idle=idle[keep],
        alpha=alpha[keep],
        primal=torch.from_numpy(solution.z),
        dual=dual,
        rho=plane.rho.new_tensor(solution.rho),
        probe=_next_probe(plane, cuts, solution.point, omega, C, stabilise),
        lower=plane.lower.clamp(min=solution.lower),
    )


def _next_probe(plane: Plane, cuts: Cuts, minimum: Array, omega: Regulariser, C: float, stabilise: float) -> Tensor:
    """A point between the best point and the minimum of the cuts.

    With l21 or a diagonal, features that are 0 at the minimum are 0 in the probe too, or they would never become 0 in
    the best point; so are those that keep their rows of the anchor. The exception is a best point that, by the cuts
    known already, is worse without them.
    """
    best = plane.best.numpy()
    fewer = omega.without(best, minimum)
    better = fewer is not best and omega.value(fewer) + C * hinge(cuts, fewer) <= float(plane.upper)
    return torch.from_numpy(omega.between(minimum, fewer if better else best, stabilise))


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
