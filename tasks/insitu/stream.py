"""The streaming side of ``compress``: frames in, closed groups out, memory bounded by one group.

``Stream`` drives the source through the gate. Kept frames collect in the open group; when it is full it is written to
``spool/`` as one file per variable and handed out for encoding. What the stream knows at that moment (solver state,
gate state, metrics so far) can be saved, and a stream restored from it goes on bit for bit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.bounds import Bound, FrameStatistics
from headrace.storage.codecs.predictors import PredictorSpec
from headrace.storage.errors import ParameterError, ShapeError
from headrace.storage.files import store_error, write_file
from headrace.tasks.insitu.encode import EncodeJob, blocks_of
from headrace.tasks.insitu.gates import Frame, Gate, KeepAll, Kept, SwingingDoor
from headrace.tasks.insitu.metrics import METRICS
from headrace.tasks.insitu.sources import Snapshot, Source

#: Sample frames kept raw for the report, per variable.
SAMPLES = 8
#: Largest number of values in a block that is chosen automatically.
BLOCK_VALUES = 2**22
#: Fewest values in a group whose length is chosen automatically; below, records cost more than what they hold.
GROUP_VALUES = 2**16


@dataclass(frozen=True)
class Watch:
    """A metric of a variable, computed for every frame offered and stored under ``label``."""

    label: str
    metric: str
    variable: str

    def measure(self, fields: Frame) -> float:
        """Compute the metric of one frame."""
        return METRICS[self.metric](fields[self.variable])


@dataclass(frozen=True)
class ClosedGroup:
    """A group whose frames are complete: number, first kept frame, frames, and the job of each of its units."""

    number: int
    first: int
    frames: int
    jobs: tuple[EncodeJob, ...]
    spooled: tuple[Path, ...]

    def drop_spool(self) -> None:
        """Remove the raw frames once every unit has them encoded."""
        for path in self.spooled:
            path.unlink(missing_ok=True)


@dataclass
class Layout:
    """How a variable is cut: frame shape, block shape, bound, and the number that ties chunks to the array."""

    shape: tuple[int, ...]
    block: tuple[int, ...]
    bound: Bound
    stream: int
    predictors: tuple[PredictorSpec, ...] = ()

    @property
    def blocks(self) -> list[tuple[tuple[int, ...], tuple[tuple[int, int], ...]]]:
        """Index and region of every block."""
        return blocks_of(self.shape, self.block)


@dataclass
class Stream:
    """One pass over a source.

    Attributes
    ----------
    seen : called after each frame with the numbers of frames offered and kept so far
    offered_times, metrics, kept_indices, kept_times : what has been seen so far
    """

    run: Path
    source: Source
    gate: Gate
    watches: Sequence[Watch]
    layouts: dict[str, Layout]
    group_size: int
    codecs: tuple[str, ...]
    seen: Callable[[int, int], None] | None = None
    offered_times: list[float] = field(default_factory=list)
    metrics: list[tuple[float, ...]] = field(default_factory=list)
    kept_indices: list[int] = field(default_factory=list)
    kept_times: list[float] = field(default_factory=list)
    groups: int = 0
    _open: list[Kept] = field(default_factory=list)
    _limits: dict[str, list[float]] = field(default_factory=dict)
    _state: dict[str, NDArray[Any]] | None = None

    def closed_groups(self) -> Iterator[ClosedGroup]:
        """Run through the source and yield every group when it is full, the last one when the source ends.

        Raises
        ------
        ParameterError -- times do not increase, or the gate cannot judge a metric
        ShapeError -- a frame changes its shape or type
        StoreError -- the spool cannot be written
        """
        for snapshot in self.source.snapshots(self._state):
            yield from self._take(self._offer(snapshot))
        yield from self._take(self.gate.close())
        if self._open:
            yield self._close_group()

    def _offer(self, snapshot: Snapshot) -> list[Kept]:
        values = tuple(watch.measure(snapshot.fields) for watch in self.watches)
        kept = self.gate.offer(snapshot.index, snapshot.time, values, snapshot.fields)
        self.offered_times.append(snapshot.time)
        self.metrics.append(values)
        if self.seen is not None:
            self.seen(len(self.offered_times), len(self.kept_times) + len(kept))
        return kept

    def _take(self, kept: Sequence[Kept]) -> Iterator[ClosedGroup]:
        for frame in kept:
            self._check_frame(frame)
            self._sample(len(self.kept_indices), frame.frame)
            self._open.append(frame)
            self.kept_indices.append(frame.index)
            self.kept_times.append(frame.time)
            for name, layout in self.layouts.items():
                limit = layout.bound.limit(FrameStatistics.of(frame.frame[name]))
                self._limits.setdefault(name, []).append(limit)
            if len(self._open) == self.group_size:
                yield self._close_group()

    def _check_frame(self, kept: Kept) -> None:
        for name, layout in self.layouts.items():
            found = kept.frame[name]
            dtype = self.source.template[name].dtype.newbyteorder("=")
            if found.shape != layout.shape or found.dtype.newbyteorder("=") != dtype:
                raise ShapeError(
                    f"{name!r} has shape {found.shape} and dtype {found.dtype} at t={kept.time:g}; "
                    f"expected {layout.shape} and {dtype} as declared; start a new run when the grid changes"
                )

    def _close_group(self) -> ClosedGroup:
        first = len(self.kept_indices) - len(self._open)
        jobs: list[EncodeJob] = []
        spooled = []
        for name, layout in self.layouts.items():
            path = self._spool(name, [frame.frame[name] for frame in self._open])
            spooled.append(path)
            for block, region in layout.blocks:
                jobs.append(
                    EncodeJob(
                        run=str(self.run),
                        variable=name,
                        group=self.groups,
                        block=block,
                        region=region,
                        frames=str(path),
                        first_frame=first,
                        limits=tuple(self._limits[name]),
                        measure=layout.bound.measure,
                        codecs=self.codecs,
                        stream=layout.stream,
                        times=tuple(frame.time for frame in self._open),
                        predictors=layout.predictors,
                    )
                )
        closed = ClosedGroup(self.groups, first, len(self._open), tuple(jobs), tuple(spooled))
        self.groups += 1
        self._open, self._limits = [], {}
        return closed

    def _spool(self, name: str, frames: Sequence[NDArray[Any]]) -> Path:
        return self._save(self.run / "spool" / f"{_file_name(name)}.{self.groups}.npy", np.stack(frames))

    def _save(self, path: Path, array: NDArray[Any]) -> Path:
        values = np.asarray(array, array.dtype.newbyteorder("="), order="C")
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise store_error("create", path.parent, error) from error
        write_file(path, lambda handle: np.lib.format.write_array(_Plain(handle), values, allow_pickle=False))
        return path

    def _sample(self, number: int, frame: Frame) -> None:
        """Keep at most ``SAMPLES`` raw frames, evenly spaced, without knowing how many will come."""
        stride = sample_stride(number)
        if number % stride:
            return
        for name in self.layouts:
            self._save(self.run / "samples" / f"{_file_name(name)}.{number}.npy", frame[name])
        if number and stride > sample_stride(number - 1):
            for path in (self.run / "samples").glob("*.npy"):
                if int(path.name.split(".")[-2]) % stride:
                    path.unlink()

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return what ``restore`` needs; meaningful right after a group was closed."""
        gate_arrays, gate_meta = self.gate.state()
        arrays = {
            **{f"source.{key}": value for key, value in self.source.state().items()},
            **{f"gate.{key}": value for key, value in gate_arrays.items()},
            "offered_times": np.asarray(self.offered_times, np.float64),
            "metrics": np.asarray(self.metrics, np.float64).reshape(len(self.metrics), len(self.watches)),
            "kept_indices": np.asarray(self.kept_indices, np.int64),
            "kept_times": np.asarray(self.kept_times, np.float64),
        }
        return arrays, {"gate": gate_meta, "groups": self.groups}

    def restore(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        """Go on from a saved state; ``closed_groups`` then yields the groups after it."""
        self._state = _with_prefix(arrays, "source.")
        self.gate.restore(_with_prefix(arrays, "gate."), meta["gate"])
        self.offered_times = arrays["offered_times"].tolist()
        self.metrics = [tuple(row) for row in arrays["metrics"].tolist()]
        self.kept_indices = arrays["kept_indices"].tolist()
        self.kept_times = arrays["kept_times"].tolist()
        self.groups = meta["groups"]


class _Plain:
    """Hides that a stream is a file: NumPy writes to files by C calls that do not say why they fail."""

    def __init__(self, handle: IO[bytes]) -> None:
        self.write = handle.write


def sample_stride(number: int) -> int:
    """Distance between sample frames when ``number`` is the last: the power of two that leaves at most ``SAMPLES``."""
    stride = 1
    while number // stride >= SAMPLES:
        stride *= 2
    return stride


def choose_block(shape: Sequence[int], largest: int | None) -> tuple[int, ...]:
    """Cut a frame into blocks.

    Parameters
    ----------
    shape : of a frame
    largest : largest extent along each axis; None cuts the longest axis in half until a block has at most
        ``BLOCK_VALUES`` values, so that frames of ordinary size stay whole

    Returns
    -------
    tuple of int
    """
    block = [int(n) if largest is None else min(int(n), largest) for n in shape]
    while largest is None and np.prod(block, dtype=np.int64) > BLOCK_VALUES:
        axis = int(np.argmax(block))
        block[axis] = -(-block[axis] // 2)
    return tuple(block)


def choose_group_size(values: int) -> int:
    """Return how many frames make a group: 16, doubled for small frames until a group has ``GROUP_VALUES`` values.

    Parameters
    ----------
    values : number of values in the smallest frame

    Returns
    -------
    int, a power of two from 16 to 65536
    """
    size = 16
    while size * values < GROUP_VALUES and size < GROUP_VALUES:
        size *= 2
    return size


def choose_watches(metrics: Sequence[str], variables: Sequence[str]) -> tuple[Watch, ...]:
    """Pair every metric with every variable; with one variable the label is the metric's name alone.

    Raises
    ------
    ParameterError -- unknown metric
    """
    for name in metrics:
        if name not in METRICS:
            raise ParameterError(f"metric {name!r} is unknown; expected one of {', '.join(METRICS)}; correct it")
    single = len(variables) == 1
    return tuple(Watch(m if single else f"{m}_{v}", m, v) for v in variables for m in metrics)


def make_gate(kind: str, watches: Sequence[Watch], tolerance: float, max_gap: int, c_min: float | None) -> Gate:
    """Build the gate a user named: ``all`` or ``swinging-door``.

    Raises
    ------
    ParameterError -- unknown name, a setting out of range, or no metric to watch
    """
    if kind == "all":
        return KeepAll()
    if kind != "swinging-door":
        raise ParameterError(f"gate {kind!r} is unknown; expected all or swinging-door; correct it")
    if not watches:
        raise ParameterError("the swinging-door gate found no metric to watch; expected at least one; name metrics")
    return SwingingDoor(tolerance, max_gap=max_gap, c_min=c_min, names=[watch.label for watch in watches])


def stream_number(key: str, variable: str) -> int:
    """Number that ties the chunks of a variable to one run."""
    return zlib.crc32(f"{key}/{variable}".encode())


def _file_name(variable: str) -> str:
    from urllib.parse import quote

    return quote(variable, safe="")


def _with_prefix(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
