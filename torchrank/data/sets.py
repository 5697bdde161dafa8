"""One split of a ranking data set: rows, relevance, ids, and what the host must know about the lists."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchrank.data.batch import Batch, check_lists
from torchrank.data.relevance import Explicit, Judged, Relevance, SameClass, WholeCorpus
from torchrank.data.rows import ALONE, Share, all_or_none, check_finite, parts_of
from torchrank.data.sampler import read_ahead
from torchrank.data.sparse import SparseRows, as_rows
from torchrank.data.transforms import Transform, transform_batch, transform_rows
from torchrank.data.weights import at, entry_positions, entry_weights
from torchrank.errors import DataError, check_number
from torchrank.functional.arrays import Array, columns_of, lists_of, offsets_of, only_column, to_numpy, to_tensor
from torchrank.functional.ragged import entries_of

Ids = Sequence[str] | np.ndarray
SIGNED = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
Positions = int | slice | Tensor | np.ndarray | Sequence[int]
READ = 4096  # slices whose positions and offsets are remembered


class RankingSet(Dataset[Batch]):
    """The lists of one split; `ranking_set[positions]` is a `Batch` of the lists at these positions.

    Positions are an integer, a slice with step 1, or integers in a tensor, array or list. The rows of consecutive lists
    are views, others are copied. The tensors may be views of memory-mapped files: nothing copies all rows except `to`
    with a transform.

    Args:
        x: (n, D) features, one row per entry; or the rows of a corpus that the lists share. A tensor, `SparseRows`, a
            numpy array, a data frame of pandas or polars, or a matrix of scipy.sparse.
        labels: (N,) relevance of each entry, 0 or more; or a `Relevance` such as `SameClass`, which knows the entries
            itself.
        offsets: (Q + 1,) where each list begins and ends; not given with a `Relevance`.
        group: (Q,) number of entries of each list, in place of offsets.
        qid: (N,) query id of each entry, in place of offsets, with the rows of a query together; also the query_ids.
        index: (N,) the corpus row of each entry, where the lists share a corpus; not given with a `Relevance`.
        queries: (Q, D) a vector for each query (metric learning).
        query_ids: the id of each list.
        document_ids: the id of each entry, or of each corpus row where every list holds the whole corpus.
        name: the name of the split, for messages.
        relevant_from: the lowest grade that the tools of the data set's publisher count as relevant.
        max_label: the highest grade of the data set, if it is known (for ERR).
        feature_names: (D,) the names of the features; by default the columns of a data frame.
        unjudged: the label of entries whose label is negative, such as 0; None refuses them.
        weights: (N,) importance of each entry, 0 or more; not with a `Relevance` over a whole corpus.
        positions: (N,) where each document was shown, integers from 0; not with a `Relevance` over a whole corpus.

    Example:
        >>> lists = RankingSet(torch.eye(3), torch.tensor([0., 2., 1.]), torch.tensor([0, 2, 3]), query_ids=["a", "b"])
        >>> len(lists), lists.num_grades, lists[1:2].query, lists[torch.tensor([1, 0])].labels
        (2, 3, tensor([1]), tensor([1., 0., 2.]))
        >>> relevance = SameClass(torch.tensor([0, 1, 0]), torch.tensor([0, 1, 0]), ("a", "b"), own=torch.arange(3))
        >>> batch = RankingSet(torch.eye(3), relevance, queries=torch.eye(3))[1:]
        >>> batch.index, batch.labels, batch.offsets
        (tensor([0, 2, 0, 1]), tensor([0., 0., 1., 0.]), tensor([0, 2, 4]))
    """

    def __init__(
        self,
        x: Array,
        labels: Array | Relevance,
        offsets: Array = None,
        *,
        group: Array = None,
        qid: Array = None,
        index: Array = None,
        queries: Array = None,
        query_ids: Ids | None = None,
        document_ids: Ids | None = None,
        name: str = "",
        relevant_from: float = 1,
        max_label: float | None = None,
        feature_names: Sequence[str] | None = None,
        unjudged: float | None = None,
        weights: Array = None,
        positions: Array = None,
    ):
        check_number(">= 0", unjudged=unjudged)
        self.x, given = as_rows(x), any(each is not None for each in (offsets, group, qid, index))
        if isinstance(labels, Relevance) and given:
            raise DataError("a Relevance knows the entries of its lists: give no offsets and no index beside it")
        if not isinstance(labels, Relevance):
            labels = self._explicit(judged_labels(labels, unjudged, name), offsets, group, qid, index)
        self.relevance: Relevance = labels
        self.queries = self._here(queries, "queries")
        query_ids = text_ids(lists_of(qid)[1]) if qid is not None and query_ids is None else query_ids
        self.query_ids, self.document_ids, self.name = _as_ids(query_ids), _as_ids(document_ids), name
        self.relevant_from, self.max_label = relevant_from, max_label
        names = columns_of(x) if feature_names is None else feature_names
        self.feature_names = None if names is None else tuple(map(str, names))
        self._on_read: Callable[[Batch], Batch] | None = None
        self._read: dict[tuple[int, int], _Read] = {}
        self._finite = False  # whether `check_rows` has read the rows
        self._ranked: tuple[bool, Tensor | None] = (False, None)  # of its batches: ranked, order
        self._check()
        self.weights = self._per_entry(entry_weights, weights)
        self.positions = self._per_entry(entry_positions, positions)

    def _per_entry(self, check: Callable[..., Tensor], values: Array) -> Tensor | None:
        if values is None:
            return None
        if isinstance(self.relevance, WholeCorpus):
            raise DataError("weights and positions are given for each entry: not with lists of a whole corpus")
        return check(values, int(self.lengths.sum()), self.name).to(self.device)

    def _explicit(self, labels: Array, offsets: Array, group: Array, qid: Array, index: Array) -> Explicit:
        labels = self._here(labels, "labels")
        bounds = offsets_of(len(labels), offsets, group, qid, what="labels").to(self.x.device)
        return Explicit(labels, bounds, self._here(index, "index"))

    def _here(self, values: Array, name: str) -> Any:
        """An array as a tensor beside the rows; tensors and None as they are."""
        if values is None:
            return None
        found = to_tensor(values, name)
        return found if isinstance(values, Tensor) else found.to(self.x.device)

    def _check(self) -> None:
        if isinstance(self.relevance, Explicit):
            check_lists(self.x, self.labels, self.offsets, index=self.index, queries=self.queries)
        whole, lists = isinstance(self.relevance, WholeCorpus), len(self.relevance)
        if isinstance(self.relevance, WholeCorpus) and self.relevance.num_rows != len(self.x):
            known, rows = self.relevance.num_rows, len(self.x)
            raise DataError(f"relevance of {known} rows for a corpus of {rows} rows in the set '{self.name}'")
        if self.queries is not None and self.queries.shape != (lists, self.num_features):
            found, wanted = tuple(self.queries.shape), (lists, self.num_features)
            raise DataError(f"query vectors {found} for lists and features {wanted} in the set '{self.name}'")
        if self.feature_names is not None and len(self.feature_names) != self.num_features:
            names = f"{len(self.feature_names)} feature names for {self.num_features} features"
            raise DataError(f"{names} in the set '{self.name}'")
        entries = len(self.x) if whole else int(self.lengths.sum())
        for ids, count, what in (
            (self.query_ids, lists, "lists"),
            (self.document_ids, entries, "rows" if whole else "entries"),
        ):
            if ids is not None and len(ids) != count:
                raise DataError(f"{len(ids)} ids for {count} {what} in the set '{self.name}'")

    def check_rows(self, share: Share = ALONE) -> None:
        """Refuse NaN and infinite features and query vectors, with their place. Rows on the CPU are read, once.

        Args:
            share: of this process, if all processes check the same rows together; an error is raised in all of them.
        """
        if self._finite or self.x.device.type != "cpu":
            return
        try:
            with all_or_none(share):
                self._check_part(share.rank, share.world)
        except DataError:
            self._check_part(0, 1)  # the first error of all rows
        self._finite = True

    def _check_part(self, rank: int, world: int) -> None:
        for start, part in islice(parts_of(self.queries), rank, None, world):
            check_finite(part, start, f"{self.name} query")
        if isinstance(self.x, SparseRows):
            check_finite(self.x, 0, owner=self._owner)
        else:
            for start, part in islice(parts_of(self.x), rank, None, world):
                check_finite(part, start, owner=self._owner)

    def _owner(self, row: int) -> str:
        """Where a row belongs, for messages."""
        of_set = f" of the set '{self.name}'" if self.name else ""
        if self.is_shared:
            return f", in the corpus{of_set}"
        place = int(np.searchsorted(self.relevance.bounds, row, side="right")) - 1
        return f", in query {place if self.query_ids is None else self.query_ids[place]!r}{of_set}"

    # ---- what is known about the lists --------------------------------------------------------------------------

    @property
    def labels(self) -> Tensor:
        """(N,) labels of all entries; made again at each call where every list holds the whole corpus."""
        return self.relevance.labels if isinstance(self.relevance, Explicit) else self._stored(slice(None)).labels

    @property
    def index(self) -> Tensor | None:
        """(N,) corpus row of each entry; None where every entry has a row of its own."""
        return self.relevance.index if isinstance(self.relevance, Explicit) else self._stored(slice(None)).index

    @property
    def offsets(self) -> Tensor:
        """(Q + 1,) where each list begins and ends."""
        return self.relevance.offsets

    @property
    def lengths(self) -> np.ndarray:
        """(Q,) entries of each list, on the host."""
        return self.relevance.lengths

    @property
    def pairs(self) -> np.ndarray:
        """(Q,) pairs of entries with different labels in each list, on the host."""
        return self.relevance.pairs

    @property
    def num_grades(self) -> int:
        """K where all labels are integers of 0..K-1, otherwise 0."""
        return self.relevance.num_grades

    @property
    def num_features(self) -> int:
        """Columns of the rows, D."""
        return self.x.shape[1]

    @property
    def is_sparse(self) -> bool:
        """Whether the rows are `SparseRows`."""
        return isinstance(self.x, SparseRows)

    @property
    def is_shared(self) -> bool:
        """Whether the lists share the rows of one corpus."""
        return self.relevance.shared

    @property
    def has_queries(self) -> bool:
        """Whether there is a vector for each query."""
        return self.queries is not None

    @property
    def classes(self) -> Tensor | None:
        """(Q,) class of each query, if relevant means of the same class; otherwise None."""
        return self.relevance.classes if isinstance(self.relevance, SameClass) else None

    @property
    def corpus_classes(self) -> Tensor | None:
        """(n,) class of each corpus row, if relevant means of the same class; otherwise None."""
        return self.relevance.corpus_classes if isinstance(self.relevance, SameClass) else None

    @property
    def device(self) -> torch.device:
        """Where the lists are stored."""
        return self.offsets.device

    def __len__(self) -> int:
        return len(self.relevance)

    def __repr__(self) -> str:
        kind = ("sparse" if self.is_sparse else "dense") + (", shared corpus" if self.is_shared else "")
        sizes = f"{len(self)} lists, {int(self.lengths.sum())} entries, {self.num_features} features"
        return f"RankingSet('{self.name}': {sizes}, {kind})"

    # ---- batches ------------------------------------------------------------------------------------------------

    def __getitem__(self, positions: Positions) -> Batch:
        """The lists at these positions; rows of consecutive lists are views, others copies. Never synchronises."""
        batch = self._stored(positions)
        return batch if self._on_read is None else self._on_read(batch)

    def _stored(self, positions: Positions) -> Batch:
        """The lists at these positions as they are stored."""
        host = self._host(positions)
        if isinstance(host, slice):
            place = torch.arange(host.start, host.stop, device=self.device)
            queries = None if self.queries is None else self.queries[host]
        else:
            place = torch.from_numpy(host).to(self.device, non_blocking=True)
            queries = None if self.queries is None else self.queries[place]
        found = self.relevance.entries(host, place)
        place, offsets = self._again(host, place, found.offsets)
        x = self.x if found.index is not None else self.x[found.rows]
        longest, pairs = int(self.lengths[host].max(initial=0)), int(self.pairs[host].sum())
        sizes = longest, pairs, self.num_grades
        beside = at(self.weights, found.rows), at(self.positions, found.rows)
        return Batch(x, found.labels, offsets, place, found.index, queries, *sizes, *beside, *self._ranked)

    def _again(self, host: slice | np.ndarray, place: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Positions and offsets of a slice, in the same memory whenever it is read, unless somebody wrote to them: by
        that a batch is known again."""
        if not isinstance(host, slice):
            return place, offsets
        known = self._read.get((host.start, host.stop))
        if known is None or known.relevance is not self.relevance or known.version != _version(known):
            if len(self._read) >= READ:
                self._read.clear()
            with torch.inference_mode(False):  # they may be read in inference mode first, and for a gradient later
                known = _Read(self.relevance, place.clone(), offsets.clone())
            known = self._read[host.start, host.stop] = known._replace(version=_version(known))
        return known.place, known.offsets

    def _host(self, positions: Positions) -> slice | np.ndarray:
        """The positions on the host, checked: a slice with step 1 if they are consecutive, otherwise an array."""
        if isinstance(positions, slice):
            start, stop, step = positions.indices(len(self))
            if step != 1:
                raise ValueError(f"lists can be sliced with step 1 only, got step {step}: use an array of positions")
            return slice(start, max(start, stop))
        if isinstance(positions, int | np.integer):
            if not -len(self) <= positions < len(self):
                raise IndexError(f"position {positions} is outside a set of {len(self)} lists")
            return slice(int(positions) % len(self), int(positions) % len(self) + 1)
        host = np.asarray(positions.cpu() if isinstance(positions, Tensor) else positions)
        if host.ndim != 1 or (len(host) and host.dtype.kind not in "iu"):
            raise IndexError(f"positions must be a vector of integers, got {host.dtype} of shape {host.shape}")
        host = host.astype(np.int64, copy=False)
        if len(host) and (host.min() < 0 or host.max() >= len(self)):
            raise IndexError(f"positions {host.min()}..{host.max()} are outside a set of {len(self)} lists")
        if len(host) and (host == np.arange(host[0], host[0] + len(host))).all():
            return slice(int(host[0]), int(host[-1]) + 1)
        return host

    # ---- other sets made of this one ----------------------------------------------------------------------------

    def subset(self, positions: Positions) -> RankingSet:
        """A new set of the lists at these positions, in this order, with their ids. A shared corpus stays shared."""
        host = np.arange(len(self))[self._host(positions)]
        relevance = self.relevance.take(host)
        if isinstance(self.relevance, Explicit):
            rows, _ = entries_of(self.offsets, torch.from_numpy(host).to(self.device), int(self.lengths[host].sum()))
            return self._picked(host, relevance, rows, _take(self.document_ids, rows.cpu().numpy()))
        return self._picked(host, relevance, None, self.document_ids)

    def pick(self, lists: np.ndarray, entries: Tensor, offsets: Tensor) -> RankingSet:
        """A new set of some lists with some of their entries, and the ids of both.

        Args:
            lists: (Q',) positions of the lists.
            entries: (N',) the entries to keep, counted over all lists of this set, list by list.
            offsets: (Q' + 1,) where each of the new lists begins and ends among them.
        """
        labels, index = self.labels[entries], self.index
        index = None if index is None else index[entries]
        relevance = Explicit(labels, offsets, index, num_grades=self.num_grades)
        named = index if isinstance(self.relevance, WholeCorpus) and index is not None else entries
        return self._picked(lists, relevance, entries, _take(self.document_ids, named.cpu().numpy()))

    def _picked(
        self, lists: np.ndarray, relevance: Relevance, rows: Tensor | None, document_ids: Ids | None
    ) -> RankingSet:
        new = self._copied()
        new.x = self.x if self.is_shared or rows is None else self.x[rows]
        new.queries = None if self.queries is None else self.queries[torch.from_numpy(lists).to(self.device)]
        new.relevance, new.query_ids, new.document_ids = relevance, _take(self.query_ids, lists), document_ids
        new.weights, new.positions = at(self.weights, rows), at(self.positions, rows)
        new._check()
        return new

    @property
    def has_judgements(self) -> bool:
        """Whether every list holds the whole corpus, of which some rows are judged, so that their ranks tell all."""
        whole = isinstance(self.relevance, Judged)
        return whole and bool((self.relevance.lengths == len(self.x)).all()) and len(self.x) > 0

    def judged(self) -> RankingSet:
        """The judged rows of each list alone: a ranker is asked for their ranks among all rows of the corpus."""
        if not isinstance(self.relevance, Judged):
            raise DataError(f"the lists of the set '{self.name}' are not judged rows of a whole corpus")
        known, new = self.relevance, self._copied()
        new.relevance = Explicit(known.grades, known.judgements, known.rows, num_grades=known.num_grades)
        places = self.id_places()
        new._ranked = (True, None if places is None else places.argsort(stable=True))
        return new

    def id_places(self) -> Tensor | None:
        """(n,) where each corpus row stands in the ascending order of document ids, in which equal scores rank; None:
        where it is, or there are no ids."""
        if not isinstance(self.relevance, WholeCorpus) or self.document_ids is None:
            return None
        places = np.unique(np.asarray(self.document_ids), return_inverse=True)[1]
        return torch.from_numpy(places).to(self.device) if (np.diff(places) < 0).any() else None

    def relabelled(self, labels: Tensor) -> RankingSet:
        """A new set of the same lists with other labels (N,), such as the scores of another ranker."""
        new = self._copied()
        new.relevance = Explicit(judged_labels(labels, name=self.name), self.offsets, self.index)
        if isinstance(self.relevance, WholeCorpus) and new.index is not None:
            new.document_ids = _take(self.document_ids, new.index.cpu().numpy())
        new._check()
        return new

    def _copied(self) -> RankingSet:
        new = copy(self)
        new._read = {}
        return new

    def to(
        self,
        device: torch.device | str,
        transform: Transform | None = None,
        *,
        share: Share = ALONE,
        beside: Iterable[tuple[RankingSet, RankingSet]] = (),
    ) -> RankingSet:
        """The set on a device, its rows and query vectors in float32, after a transform.

        Args:
            device: where everything is moved to.
            transform: a fitted transform; it runs on the device in chunks of whole lists. Without one, float32 rows
                that are on the device already are not copied.
            share: of this process, if all processes do this together: they then transform the rows once per machine.
            beside: other sets, each before and after this was done to it: if one of them shares the corpus of this set,
                the new one shares its new corpus.

        Returns:
            A new set; this one stays as it is.
        """
        if transform is not None:
            transform.check_lists(shared=self.is_shared, vectors=self.has_queries)
        new = self._copied()
        made = [each.x for other, each in beside if self.is_shared and other.is_shared and other.x is self.x]
        offsets = None if self.is_shared else self.offsets
        new.x = made[0] if made else transform_rows(self.x, offsets, device, transform, share)
        new.relevance, new._on_read = self.relevance.to(device), None
        new.weights = None if self.weights is None else self.weights.to(device)
        new.positions = None if self.positions is None else self.positions.to(device)
        if self.queries is not None:
            same = self.queries is self.x
            new.queries = new.x if same else transform_rows(self.queries, None, device, transform, share)
        return new

    def batches(self, positions: Iterable[Positions]) -> Iterator[Batch]:
        """The batches at these positions, one after another; those of a streamed set are read ahead by a thread."""
        return map(self.__getitem__, positions) if self._on_read is None else read_ahead(self.__getitem__, positions)

    def streamed(self, device: torch.device | str, transform: Transform | None = None) -> RankingSet:
        """The same set, but its batches are moved to a device and transformed when they are read.

        For sets that do not fit on the device, or in memory at all. The batches equal those of `to(device, transform)`.
        To a CUDA device they go through pinned memory, without waiting for it.

        Args:
            device: where the batches are moved to.
            transform: a fitted transform.

        Returns:
            A new set that shares its tensors with this one; its `x` and `queries` stay as they are stored.
        """

        def read(batch: Batch) -> Batch:
            batch = batch.streamed_to(device)
            if transform is not None:
                batch = transform_batch(transform, _with_dtype(batch, torch.float64))  # as resident sets are
            return _with_dtype(batch, torch.float32)

        new = self._copied()
        new._on_read = read
        return new

    # ---- checksums and ids --------------------------------------------------------------------------------------

    def outline(self, share: Share = ALONE) -> dict[str, int]:
        """Sizes and checksums that tell this set from others, and from itself in another order.

        Args:
            share: of this process, if all processes ask for the same set together: the first one reads it for all.

        Example:
            >>> lists = RankingSet(torch.eye(3), torch.tensor([0., 2., 1.]), torch.tensor([0, 2, 3]))
            >>> list(lists.outline()), lists.outline() == lists.subset([1, 0]).outline()
            (['lists', 'entries', 'rows', 'query vectors', 'labels'], False)
        """
        sizes = {"lists": len(self), "entries": int(self.lengths.sum())}
        x = (self.x.values, self.x.columns, self.x.row_offsets) if isinstance(self.x, SparseRows) else (self.x,)
        parts: dict[str, Sequence[Tensor | None]] = {
            "rows": x,
            "query vectors": (self.queries,),
            "labels": self.relevance.parts(),
        }
        given = {"weights": self.weights, "positions": self.positions}
        parts |= {name: (each,) for name, each in given.items() if each is not None}
        sums = [_checksum(tensors) if share.rank == 0 else 0 for tensors in parts.values()]
        told = share.reduce(torch.tensor(sums))
        return sizes | dict(zip(parts, told.tolist(), strict=True))

    def tiebreak(self) -> Tensor:
        """The order of the entries of each list by document id, descending (N,): trec_eval's order of equal scores.

        The entry with the smaller number comes first. Ids are compared as text ("9" before "10"), as trec_eval does.
        """
        if isinstance(self.relevance, WholeCorpus):
            index: Tensor = self.index  # type: ignore[assignment]
            return self.row_tiebreak()[index]
        codes, lists = self._id_codes(), np.repeat(np.arange(len(self)), self.lengths)
        order = np.lexsort((-codes, lists))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) - self.relevance.bounds[lists]
        return torch.from_numpy(place).to(self.device)

    def row_tiebreak(self) -> Tensor:
        """The same (n,) of the rows of a corpus that every list holds."""
        codes = self._id_codes()
        return torch.from_numpy(codes.max(initial=0) - codes).to(self.device)

    def _id_codes(self) -> np.ndarray:
        """The place of each document id among the different ones, ascending."""
        if self.document_ids is None:
            raise DataError(f"the set '{self.name}' has no document ids to break ties by: use another convention")
        ids = np.asarray(self.document_ids)
        if missing := int((ids == "").sum()):
            raise DataError(
                f"{missing} of {len(ids)} documents of the set '{self.name}' have no id, so ties cannot be broken by "
                "ids: add a comment with the id to every row, or use another convention than trec"
            )
        codes: np.ndarray = np.unique(ids, return_inverse=True)[1]
        return codes


class _Read(NamedTuple):
    """Positions and offsets of a slice that was read, and the relevance that they are of."""

    relevance: Relevance
    place: Tensor
    offsets: Tensor
    version: int = 0


def _version(read: _Read) -> int:
    """A number that rises when somebody writes to the positions or offsets."""
    return read.place._version + read.offsets._version


def _with_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    queries = None if batch.queries is None else batch.queries.to(dtype)
    return batch._replace(x=batch.x.to(dtype=dtype), queries=queries)


def _checksum(tensors: Sequence[Tensor | None]) -> int:
    """The CRC-32 of all numbers, real ones as float32, as fits take them; -0 counts as 0."""
    found = 0
    for tensor in tensors:
        for _, part in parts_of(tensor):
            numbers = part.float() + 0.0 if part.is_floating_point() else part.long()
            found = zlib.crc32(numbers.cpu().contiguous().numpy(), found)  # type: ignore[arg-type]
    return found


def judged_labels(labels: Array, unjudged: float | None = None, name: str = "") -> Tensor:
    """Labels (N,) of 0 or more, as a tensor; negative ones become `unjudged`, or are refused. Read on CPU only.

    >>> judged_labels([2, -1, 0], unjudged=0)
    tensor([2, 0, 0])
    """
    found = to_tensor(only_column(labels, "labels"), "labels")
    if found.device.type != "cpu" or found.dtype not in SIGNED or len(found) == 0 or not (found.amin() < 0).tolist():
        return found
    if unjudged is not None:
        return torch.where(found < 0, torch.tensor(unjudged, dtype=found.dtype), found)
    entry = int((found < 0).nonzero()[0, 0])
    where = f" of the set '{name}'" if name else ""
    raise DataError(
        f"label {found[entry].tolist():g} of entry {entry}{where}: labels must be 0 or more. Leave out documents "
        "without a judgement, or give them a label with unjudged=0"
    )


def text_ids(ids: Sequence[Any]) -> list[str]:
    """Query ids as text; whole numbers without a point.

    >>> text_ids([7, 8.0, "a"])
    ['7', '8', 'a']
    """
    return [str(int(each) if isinstance(each, float) and each.is_integer() else each) for each in ids]


def _as_ids(ids: Any) -> Ids | None:
    """Ids that can be indexed by position: columns of pandas and polars become arrays."""
    found: Ids | None = ids if ids is None or isinstance(ids, Sequence | np.ndarray) else to_numpy(ids)
    return found


def _take(ids: Ids | None, places: np.ndarray) -> Ids | None:
    if ids is None or isinstance(ids, np.ndarray):
        return None if ids is None else ids[places]
    return [ids[i] for i in places]
