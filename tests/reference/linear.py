"""Linear models fitted to lists, typed plainly: loops over lists and pairs, minimised by scipy."""

import numpy as np
from scipy.optimize import minimize


def loss_of_list(s, y, loss):
    """The loss of the scores s of one list with labels y; 0 where all labels are equal."""
    if len(set(y)) < 2:
        return 0.0
    if loss == "listnet":
        target = np.exp(y - y.max()) / np.exp(y - y.max()).sum()
        return -(target * (s - s.max() - np.log(np.exp(s - s.max()).sum()))).sum()
    hinges = [max(0.0, 1 - (s[i] - s[j])) ** 2 for i in range(len(s)) for j in range(len(s)) if y[i] > y[j]]
    return np.mean(hinges)


def objective(v, x, labels, offsets, chosen, loss, l2, basis):
    """The mean loss of the chosen lists under the weight basis.T @ v, plus l2 / 2 of the squared norm of v."""
    w = basis.T @ v
    blocks = [slice(offsets[q], offsets[q + 1]) for q in chosen]
    total = sum(loss_of_list(x[b] @ w, labels[b], loss) for b in blocks)
    return total / len(chosen) + l2 / 2 * v @ v


def minimised(x, labels, offsets, chosen, loss, l2, basis=None):
    """The weight (D,) at the minimum of the objective and its value."""
    basis = np.eye(x.shape[1]) if basis is None else basis
    arguments = (x, labels, offsets, chosen, loss, l2, basis)
    found = minimize(objective, np.zeros(len(basis)), arguments, method="BFGS", options={"gtol": 1e-7})
    return basis.T @ found.x, found.fun
