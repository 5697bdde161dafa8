"""LocalRank: one model per cluster of query clouds (Banerjee, Dubey, Machchhar & Chakrabarti 2009)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torchrank.data.batch import Batch
from torchrank.data.state import Derived, store
from torchrank.data.training import TrainingLists
from torchrank.errors import ConvergenceWarning, NotFittedError, check_choice, check_number
from torchrank.functional.clouds import DIRECTIONS
from torchrank.functional.conventions import canonical
from torchrank.functional.ragged import list_ids, per_entry
from torchrank.rankers.core.kept import KEPT_BYTES, BatchMemory
from torchrank.rankers.core.own import plain_names
from torchrank.rankers.core.ranker import Ranker, TransformOption, warn
from torchrank.rankers.core.rounds import Round
from torchrank.rankers.listnet import ListNet
from torchrank.rankers.localrank.clusters import QueryClusters
from torchrank.rankers.localrank.parts import LINEAR, make_base, spread
from torchrank.record import smaller_is_better
from torchrank.solvers.linear.many_models import join_lists, solve_many_linear


class LocalRank(Ranker):
    """Clusters the training lists by the shapes of their clouds of documents, whatever their labels, and trains a copy
    of the `base` ranker on each cluster. A list is ranked by the model of the cluster that its most similar training
    list is in: scores depend on all documents of a list, so rank whole lists only. A list without a shape (one
    document, or several equal ones) is ranked by the global model, which is trained on all lists.

    Args:
        num_features: number of columns of the rows.
        base: the ranker that is copied: listnet, lambdarank, neural, singlefeature, gbdt, gmml, lgmml, lgmml_net,
            domination, pamir, svmmap, ranksvm, rankboost or adarank.
        base_options: options of the base.
        clusters: one number, or several from which validation chooses by `choose_by`: the smallest that is not worse
            than the best by more than one standard error of the difference per query. 1, the global model, is always
            among them, because clustering often does not help. All are cuts of one dendrogram, and clusters of the same
            lists share their model.
        choose_by: the measure that chooses the number of clusters.
        similarity: of principal directions: ordered (eq. 5), squared, subspace or weighted; of moments: mean, variance
            or skew; or of Gaussians: jeffreys or bhattacharyya.
        components: number of principal directions of a cloud; auto: as many as explain `variance` of the clouds.
        variance: share of the variance that components="auto" explains.
        assignment: hard: one model ranks a list; soft: the scores of all clusters are mixed by softmax(similarity to
            the nearest list of each / temperature); shrink: one linear model w_0 + d_c is trained on all lists.
        temperature: temperature of the softmax of assignment="soft".
        stiffness: l2 of the corrections d_c of assignment="shrink", as a multiple of the l2 of the base.
        min_lists: clusters of fewer lists are merged into others.
        partition: clouds; or random, the placebo: lists are assigned at random to clusters of the same sizes.
        lsh: None: the most similar list is found exactly. {"bits": 12, "tables": 16, "rerank": 50}: it is the best of
            the 50 lists that share most buckets, which pays off only for very many training lists.
        rounds: maximum number of rounds of the base.
        seed: seed of samples, hyperplanes and the placebo.
        transform: feature transform, see `make_transform`.

    Example:
        >>> from torchrank.data import RankingSet
        >>> flat = torch.tensor([[9.0, 1.0], [0.0, 2.0], [-9.0, 3.0]])  # the second feature is the relevance
        >>> tall = flat.flip(1)  # here it is the first
        >>> x, offsets = torch.cat([flat, flat + 1, tall, tall + 1]), torch.tensor([0, 3, 6, 9, 12])
        >>> lists = RankingSet(x, torch.tensor([0.0, 1.0, 2.0]).repeat(4), offsets)
        >>> ranker = LocalRank(2, clusters=2, min_lists=1, transform=None).fit(lists)
        >>> ranker.findings["cluster sizes"], ranker.rank(tall - 5, torch.tensor([0, 3]))
        ({'2': [2, 2]}, tensor([2, 1, 0]))
    """

    models: Tensor  # (numbers of clusters, C) number of the part that ranks the lists of each cluster
    done: Tensor  # (M,) rounds that each part has made
    chosen: Tensor  # () row of `clusters.labels` in use

    def __init__(
        self,
        num_features: int,
        base: str = "listnet",
        base_options: dict[str, Any] | None = None,
        clusters: int | list[int] = (1, 2, 3, 5, 8),  # type: ignore[assignment]
        choose_by: str = "ndcg@10",
        similarity: str = "ordered",
        components: int | str = "auto",
        variance: float = 0.8,
        assignment: str = "hard",
        temperature: float = 0.05,
        stiffness: float = 3.0,
        min_lists: int = 10,
        partition: str = "clouds",
        lsh: dict[str, Any] | None = None,
        rounds: int = 500,
        seed: int = 0,
        transform: TransformOption = "query_minmax",
    ):
        given, base_options = base_options or {}, plain_names(base_options)  # hyper-parameters hold names
        with torch.random.fork_rng([]):  # this copy is only inspected: it must not change the weights drawn for parts
            shape = make_base(base, num_features, rounds, given)
        super().__init__(num_features, transform, shape.rounds)
        self.certified, self.is_path, self.takes = shape.certified, shape.is_path, shape.takes & {"corpus"}
        self.optimization = shape.optimization
        self.numbers = sorted({1, *clusters}) if isinstance(clusters, list | tuple) else [clusters]
        self.chosen_by = (canonical(choose_by),) if isinstance(clusters, list | tuple) else ()
        self.clusters = QueryClusters(
            self.numbers,
            similarity=similarity,
            components=components,
            variance=variance,
            min_lists=min_lists,
            partition=partition,
            lsh=lsh,
            seed=seed,
        )
        self.assignment, self.temperature, self.stiffness = assignment, temperature, stiffness
        self.base, self.base_options, self.base_rounds = base, given | shape.own, rounds
        self.own = {"base_options": self.base_options} if shape.own else {}
        self._check(similarity, choose_by)
        self.register_buffer("models", torch.zeros(0, 0, dtype=torch.int64))
        self.register_buffer("done", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("chosen", torch.zeros((), dtype=torch.int64))
        self.derived = Derived()
        self.parts: Any = nn.ModuleList()  # copies of the base: the first learns from all lists, the others from some

    def _check(self, similarity: str, choose_by: str) -> None:
        check_choice(("hard", "soft", "shrink"), assignment=self.assignment)
        if self.assignment == "shrink" and self.base not in LINEAR:
            raise ValueError(f"assignment=shrink corrects linear models, not base={self.base}: use {', '.join(LINEAR)}")
        if self.assignment == "soft" and similarity not in DIRECTIONS:
            raise ValueError(f"assignment=soft needs a similarity from 0 to 1: choose one of {', '.join(DIRECTIONS)}")
        check_number("> 0", temperature=self.temperature, stiffness=self.stiffness)
        if smaller_is_better(choose_by):
            raise ValueError(f"choose_by must be a measure to maximise, got {choose_by}")

    def check_validation(self, there: bool) -> None:
        if self.chosen_by and not there:
            raise ValueError(
                f"Choosing among clusters={self.numbers} needs a validation set; pass val=... or a single number."
            )

    # ---- the parts ----------------------------------------------------------------------------------------------

    def _new_part(self, number: int) -> Ranker:
        """A copy of the base for the rows of a part, in the mode, on the device and in the precision of the whole."""
        width = self.transform.num_outputs
        width *= max(self.numbers) + 1 if number and self.assignment == "shrink" else 1
        part: Ranker = make_base(self.base, width, self.base_rounds, self.base_options)
        part = part.to(self.device).train(self.training)
        return part.double() if self.clusters.points.dtype == torch.float64 else part  # trainer.precision=64-true

    def start(self, lists: TrainingLists) -> None:
        self.findings = self.clusters.fit(lists)
        store(self, models=self._numbered(lists))
        self.parts = nn.ModuleList(map(self._new_part, range(int(self.models.max()) + 1)))
        store(self, done=torch.zeros(len(self.parts)), chosen=torch.tensor(0))
        for part, own in self._with_lists(lists):
            part.by_query = False
            part.settle(own.lists, None, lambda lists, _, own=own: own.over(lists))  # type: ignore[misc]
            part.begin(own)

    def open(self, lists: TrainingLists) -> None:
        self.kept.memory = BatchMemory(KEPT_BYTES)
        for part, own in self._with_lists(lists):
            part.resume(own)

    def _numbered(self, lists: TrainingLists) -> Tensor:
        """The part of each cluster, (numbers of clusters, C): 0, the global model, where a cluster holds all lists or
        no pair to learn from. Clusters of the same lists share a part; with assignment="shrink", all of one number
        do."""
        pairs = torch.from_numpy(lists.lists.pairs > 0).to(lists.device)
        table = torch.zeros(len(self.numbers), max(self.numbers), dtype=torch.int64, device=lists.device)
        known: dict[Any, int] = {}
        for row, labels in enumerate(self.clusters.labels):
            for each in range(int(labels.max()) + 1):
                inside = labels == each
                if not inside.all() and (inside & pairs).any():
                    key = row if self.assignment == "shrink" else inside.cpu().numpy().tobytes()
                    table[row, each] = known.setdefault(key, len(known) + 1)
        return table

    def _places(self) -> list[tuple[int, int]]:
        """For each part but the first, the row of `models` and the cluster where it first occurs."""
        found: dict[int, tuple[int, int]] = {}
        for row, models in enumerate(self.models.tolist()):
            for each, part in enumerate(models):
                found.setdefault(part, (row, each))
        return [found[part] for part in range(1, max(found) + 1)]

    def _with_lists(self, lists: TrainingLists) -> Iterator[tuple[Ranker, TrainingLists]]:
        """Each part with the lists it learns from, which are made once in a fit."""
        if not hasattr(self.kept, "lists_of_parts"):
            self.kept.lists_of_parts = [lists, *(self._lists_of_part(lists, *place) for place in self._places())]
        return zip(self.parts, self.kept.lists_of_parts, strict=True)

    def _lists_of_part(self, lists: TrainingLists, row: int, each: int) -> TrainingLists:
        labels = self.clusters.labels[row]
        if self.assignment == "shrink":
            return lists.changed(lambda batch: self._spread(batch, labels[batch.query]))
        return lists.subset((labels == each).nonzero().flatten())

    def _spread(self, batch: Batch, cluster: Tensor) -> Batch:
        """The lists, of these clusters (Q,), with the rows of a linear model that has a correction for each cluster."""
        entries = per_entry(cluster, batch.offsets, len(batch.labels))
        return batch._replace(x=spread(batch.dense, entries, max(self.numbers), self.stiffness), index=None)

    def close(self, limit: str) -> None:
        super().close(limit)
        for part in self.parts:
            if part.converged:  # for the others the certificate of the whole has been reported
                part.close(limit)
        if self.chosen_by and "validation" not in self.findings:
            warn(
                "No validation ran, so the number of clusters was not chosen; using the global model.",
                ConvergenceWarning,
            )

    def release(self) -> None:
        super().release()
        for part in self.parts:
            part.release()

    def make_room(self, state: dict[str, Any], prefix: str) -> None:
        super().make_room(state, prefix)  # the width of the parts is the number of outputs of the transform
        names = (name.removeprefix(f"{prefix}parts.") for name in state if name.startswith(f"{prefix}parts."))
        numbers = {int(name.partition(".")[0]) for name in names}
        self.parts = nn.ModuleList(map(self._new_part, range(len(numbers))))
        super().make_room(state, prefix)

    # ---- learning -----------------------------------------------------------------------------------------------

    def round(self, lists: TrainingLists, number: int) -> Round:
        """One round of every part that has not converged. Each part counts its own rounds, so that a fit interrupted
        in the middle of a round resumes with the next part."""
        flags = torch.stack([part.converged for part in self.parts])
        read: list[int] = torch.cat((self.done, flags.to(self.done.dtype))).tolist()  # one copy from the device
        done, converged = read[: len(flags)], list(map(bool, read[len(flags) :]))
        if not any(done):
            self._solve_together(lists)
        for place, part in enumerate(self.parts):
            if not converged[place] and done[place] <= number:
                converged[place] = part.take_round(number).done
                self.done[place] += 1
        certificates = [part.certificate for part in self.parts if part.certificate is not None]
        worst = max(certificates, key=lambda each: each.found, default=None)
        left = converged.count(False)
        return Round(left == 0, {"train/parts": float(left)}, worst, self.findings)

    def _solve_together(self, lists: TrainingLists) -> None:
        """Solve for the models of all clusters in one optimisation, where they are ListNets: their rounds then only
        confirm the minimum. The global model is fitted by its own rounds, so that it equals a ListNet to the bit."""
        first, places = self.parts[0], self._places()
        if not places or not isinstance(first, ListNet) or self.assignment == "shrink":
            return
        rows = [(self.clusters.labels[row] == each).nonzero().flatten() for row, each in places]
        members = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        joined = join_lists((batch.flat() for batch in lists), reduce=lists.reduce)
        found = solve_many_linear(
            joined, len(places), l2=first.l2, tolerance=first.tolerance, members=members, reduce=lists.reduce
        )
        for part, weight in zip(self.parts[1:], found.weight, strict=True):
            part.scorer.weight.copy_(weight)

    def loss(self, batch: Batch) -> Tensor:
        """Loss (Q,) of each list, summed over the parts that learn from it."""
        losses: Tensor = self.parts[0].loss(batch)
        for part, (row, each) in zip(self.parts[1:], self._places(), strict=True):
            cluster = self.clusters.labels[row, batch.query]
            if self.assignment == "shrink":
                losses = losses + part.loss(self._spread(batch, cluster))
            else:
                lists = (cluster == each).nonzero().flatten()
                losses = losses.index_add(0, lists, part.loss(batch.take(lists)[0]))
        idle = [parameter.sum() for parameter in self.parameters() if parameter.requires_grad]
        return losses + 0 * torch.stack(idle).sum() if len(self.parts) > 1 else losses

    # ---- scoring ------------------------------------------------------------------------------------------------

    def entry_bytes(self, width: int) -> int:
        return super().entry_bytes(width) + 8 * width**2  # the principal components of a list, which may be short

    def score(self, batch: Batch) -> Tensor:
        self._check_fitted()
        row = int(self.chosen)
        return self._scores(batch, row, self.clusters.nearest(batch)[1] if self._is_local(row) else None)

    def _check_fitted(self) -> None:
        if not len(self.models):
            raise NotFittedError("this LocalRank is not fitted: call fit first")

    def _is_local(self, row: int) -> bool:
        """Whether any list is ranked by another model than the global one."""
        return any(self._table()[row])

    def _table(self) -> list[list[int]]:
        """`models` on the host."""
        table: list[list[int]] = self.derived("table", [self.models], self.models.tolist)
        return table

    def _scores(self, batch: Batch, row: int, place: Tensor | None) -> Tensor:
        """Scores (N,) by the clusters of this row, for lists whose most similar training lists are at `place (Q,)`."""
        whole: Ranker = self.parts[0]
        if place is None or not self._is_local(row):
            return whole.score(batch)
        cluster = self.clusters.of(place, row)
        part = self._part_of(cluster, row)
        if self.assignment == "hard":
            return self._by_parts(batch, part)
        if self.assignment == "soft":
            local, without = self._mixed(batch, row), cluster < 0
        else:
            local, without = self.parts[int(self.models[row].max())].score(self._spread(batch, cluster)), part == 0
        return torch.where(per_entry(without, batch.offsets, len(batch.labels)), whole.score(batch), local)

    def _part_of(self, cluster: Tensor, row: int) -> Tensor:
        """The number of the part that ranks lists of these clusters (Q,)."""
        return torch.where(cluster < 0, 0, self.models[row, cluster.clamp(min=0)])

    def _by_parts(self, batch: Batch, part: Tensor) -> Tensor:
        """Scores (N,) of lists that are ranked by one part each, `part (Q,)`."""
        scores: Tensor | None = None
        for number in part.unique().tolist():
            some, entries = batch.take((part == number).nonzero().flatten())
            found = self.parts[number].score(some)
            scores = found.new_zeros(len(batch.labels)) if scores is None else scores
            scores[entries] = found
        return self.parts[0].score(batch) if scores is None else scores

    def _mixed(self, batch: Batch, row: int) -> Tensor:
        """Mean (N,) of the scores by all clusters, weighted by their shares: softmax of similarities."""
        shares = (self.clusters.closest(batch, row) / self.temperature).softmax(1)
        lists = list_ids(batch.offsets, len(batch.labels))
        every = torch.stack(
            [self.parts[number].score(batch) for number in self.models[row, : shares.shape[1]].tolist()]
        )
        return (every * shares.T[:, lists].to(every.dtype)).sum(0)

    @property
    def has_groups(self) -> bool:
        return len(self.models) > 0 and self._is_local(int(self.chosen))

    def groups_of(self, batch: Batch) -> Tensor:
        """The cluster (Q,) of the most similar training list of each list."""
        return self.clusters.of(self.clusters.nearest(batch)[1], int(self.chosen))

    def nearest(self, x: Tensor, offsets: Tensor, *, index: Tensor | None = None) -> dict[str, Tensor]:
        """Which training list is most similar to each raw list, and which model ranks it.

        Args:
            x: (n, D) features, as in a call.
            offsets: (Q + 1,) where each list begins and ends.
            index: (N,) the corpus row of each entry, where the lists share a corpus.

        Returns:
            "list", "similarity", "cluster" and "part", (Q,) each. List and cluster are -1 where a list has no shape,
            and part 0, the global model, ranks it.
        """
        self._check_fitted()
        if max(self.numbers) == 1:
            raise ValueError("nearest needs clusters > 1: with clusters=1 the global model ranks all lists")
        similarity, place = self.clusters.nearest(self.inputs(x, offsets, index=index))
        row = int(self.chosen)
        cluster = self.clusters.of(place, row)
        return {"list": place, "similarity": similarity, "cluster": cluster, "part": self._part_of(cluster, row)}

    # ---- the number of clusters ---------------------------------------------------------------------------------

    def validation_scores(self, batch: Batch) -> Tensor:
        """In a fit with several numbers of clusters the scores by each of them, (R, N). Clouds do not change, so they
        are compared only once in a fit."""
        checked = self._trainer is not None and self._trainer.sanity_checking  # untrained: nothing to choose by
        if checked or not hasattr(self.kept, "memory"):
            return self.score(batch)
        rows = range(len(self.numbers)) if self.chosen_by else [int(self.chosen)]
        place = self._nearest_kept(batch) if any(map(self._is_local, rows)) else None
        scores = [self._scores(batch, row, place) for row in rows]
        return torch.stack(scores) if self.chosen_by else scores[0]

    def _nearest_kept(self, batch: Batch) -> Tensor:
        """Position (Q,) of the most similar training list of each validation list."""
        memory: BatchMemory = self.kept.memory
        place: Tensor | None = memory.find(batch)
        if place is None:
            place = self.clusters.nearest(batch)[1]
            memory.keep(batch, place)
        return place

    def choose(self, measured: list[dict[str, Any]]) -> int:
        """Choose the number of clusters that is used from now on; returns its row."""
        (measure,) = self.chosen_by
        values = torch.stack([found["per_query"][measure] for found in measured])
        row, gain, error = smallest_not_worse(values)
        best = self.numbers[int(values.nanmean(1).argmax())]
        self.chosen.fill_(row)
        tried = ", ".join(map(str, self.numbers))
        found = f"best of {tried} by {measure}: {best} ({gain:+.4f} ±{error:.4f} against {self.numbers[0]})"
        self.findings = self.findings | {"clusters": self.numbers[row], "validation": found}
        return row


def smallest_not_worse(values: Tensor) -> tuple[int, float, float]:
    """The first of several methods that is not worse than the best one by more than one standard error of their paired
    difference; then how much better the best one is than the first, and the standard error of that.

    `values (R, Q)` are a measure of each query (nan: none) by each method, in the order of their size.

    >>> row, gain, error = smallest_not_worse(torch.tensor([[0.5, 0.5, 0.5], [0.9, 0.5, 0.2]]))
    >>> row, round(gain, 3), round(error, 3)
    (0, 0.033, 0.203)
    """
    values = values[:, ~values.isnan().any(0)].double()
    if values.shape[1] < 2:
        return 0, 0.0, 0.0
    losses = values[values.mean(1).argmax()] - values
    gain, error = losses.mean(1), losses.std(1) / losses.shape[1] ** 0.5
    return int((gain <= error).nonzero()[0]), float(gain[0]), float(error[0])
