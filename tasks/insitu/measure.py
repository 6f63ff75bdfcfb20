"""What a finished run holds, measured again from its folder: sizes, errors, violations of the bound.

Two independent witnesses are asked. The records in the completion markers say what the encoder measured on every frame;
the raw sample frames are decoded once more through the ordinary Zarr reader and compared value by value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.bounds import Bound, FrameStatistics
from headrace.storage.errors import SourceError, StoreError
from headrace.storage.files import read_json

if TYPE_CHECKING:
    import xarray as xr

Marker = dict[str, Any]


@dataclass(frozen=True)
class FrameError:
    """Difference of a decoded frame from its original over the finite values [field units].

    ``violations`` counts values beyond the bound (frames, when the bound is on the mean square), and values that are
    not finite and did not come back bit for bit.
    """

    max_error: float = 0.0
    rel_l2: float = 0.0
    excess: float = 0.0
    """Error over its limit."""
    violations: int = 0

    @classmethod
    def of(cls, original: NDArray[Any], decoded: NDArray[Any], bound: Bound) -> FrameError:
        """Compare a frame with what came back.

        Parameters
        ----------
        original, decoded : arrays of one shape and dtype
        bound : that the frame was encoded with

        Returns
        -------
        FrameError
        """
        if original.tobytes() == decoded.tobytes():
            return cls()
        statistics = FrameStatistics.of(original)
        limit = bound.limit(statistics)
        finite = np.isfinite(original)
        wide = np.complex128 if np.iscomplexobj(original) else np.float64
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(decoded[finite].astype(wide) - original[finite].astype(wide))
            error[np.isnan(error)] = np.inf  # a number came back as none
            largest = float(error.max(initial=0.0))
            rms = FrameStatistics.of(error).rms if math.isfinite(largest) else math.inf
        by_rms = bound.measure == "rms"
        beyond = int(rms > limit) if by_rms else int(np.count_nonzero(error > limit))
        lost = int(np.count_nonzero(_bits(original[~finite]) != _bits(decoded[~finite])))
        return cls(largest, _over(rms, statistics.rms), _over(rms if by_rms else largest, limit), beyond + lost)


@dataclass(frozen=True)
class Sample:
    """A raw frame set aside by the run, and the same frame read from the store, where it takes ``nbytes``."""

    number: int
    original: NDArray[Any]
    decoded: NDArray[Any]
    error: FrameError
    nbytes: float


@dataclass(frozen=True)
class FrameRecord:
    """What the encoder noted about one frame of one block: how it is stored, its share of the bytes, its error.

    ``limit`` is that of the whole frame [field units], NaN where the marker does not say.
    """

    number: int
    kind: str
    codec: str
    nbytes: float
    max_error: float
    rel_l2: float
    limit: float


class FinishedRun:
    """A run folder of ``compress`` whose stream has ended.

    Parameters
    ----------
    path : of the run folder

    Raises
    ------
    SourceError -- there is no store in the folder
    StoreError -- the store holds no array with a bound
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "data.zarr").is_dir():
            raise SourceError(
                f"{path} has no data.zarr; a run folder of compress was expected; look at `headrace runs`"
            )
        self.bounds = {
            str(name): Bound(array.attrs["headrace_bound_mode"], float(array.attrs["headrace_bound"]))
            for name, array in self.dataset.data_vars.items()
            if "headrace_bound" in array.attrs
        }
        if not self.bounds:
            raise StoreError(f"{path / 'data.zarr'} has no array with a bound; one written by compress was expected")

    @cached_property
    def dataset(self) -> xr.Dataset:
        """The store as it is, values neither masked nor scaled."""
        import xarray as xr

        return xr.open_zarr(self.path / "data.zarr", chunks=None, mask_and_scale=False, decode_timedelta=False)

    @cached_property
    def markers(self) -> dict[str, list[Marker]]:
        """Completion markers of each variable, in order of group and block."""
        found: dict[str, list[Marker]] = {name: [] for name in self.bounds}
        for path in (self.path / "done").glob("*.json"):
            marker = read_json(path)
            found.setdefault(marker.get("variable", ""), []).append(marker)
        return {name: sorted(found[name], key=lambda m: (m["group"], *m["block"])) for name in self.bounds}

    @cached_property
    def record(self) -> dict[str, Any]:
        """Content of ``run.json``; empty when there is none."""
        path = self.path / "run.json"
        return dict(read_json(path)) if path.exists() else {}

    @cached_property
    def bytes_on_disk(self) -> int:
        """Bytes of all files of the store, metadata and coordinates included."""
        return sum(path.stat().st_size for path in (self.path / "data.zarr").rglob("*") if path.is_file())

    @property
    def kept(self) -> int:
        """Number of frames in the store."""
        return int(self.dataset[next(iter(self.bounds))].shape[0])

    @property
    def offered(self) -> int:
        """Number of frames the source gave."""
        return int(self.dataset.sizes.get("offered", self.kept))

    def frame_values(self, name: str) -> int:
        """Values in a frame of a variable."""
        return int(np.prod(self.dataset[name].shape[1:], dtype=np.int64))

    def frame_bytes(self, name: str | None = None) -> int:
        """Raw bytes of a frame of a variable, or of all variables."""
        names = self.bounds if name is None else [name]
        return sum(self.frame_values(each) * self.dataset[each].dtype.itemsize for each in names)

    def stored_bytes(self, name: str) -> int:
        """Bytes of a variable's chunks."""
        return sum(int(marker["nbytes"]) for marker in self.markers[name])

    def frame_records(self, name: str) -> Iterator[FrameRecord]:
        """What the encoder noted about every frame of every block of a variable."""
        for marker in self.markers[name]:
            limits = marker.get("limits") or [math.nan] * marker["frames"]
            overhead = (marker["nbytes"] - sum(r["nbytes"] for r in marker["records"])) / marker["frames"]
            for record in marker["records"]:
                pairs = zip(record["max_error"], record["rel_l2"], strict=True)
                for k, (max_error, rel_l2) in enumerate(pairs):
                    yield FrameRecord(
                        marker["first_frame"] + record["first"] + k,
                        record["kind"],
                        record["codec"],
                        record["nbytes"] / record["count"] + overhead,
                        _number(max_error),
                        _number(rel_l2),
                        _number(limits[record["first"] + k]),
                    )

    def bound_used(self, name: str) -> float:
        """Largest share of its bound that a frame's error takes, as noted by the encoder; NaN where it did not say."""
        bound = self.bounds[name]
        shares = [
            record.rel_l2 / bound.value if bound.mode == "l2" else _over(record.max_error, record.limit)
            for record in self.frame_records(name)
        ]
        return max(shares, default=0.0)

    def recorded_violations(self, name: str) -> int:
        """Frames of blocks whose error, as noted by the encoder, is beyond the bound."""
        bound, whole = self.bounds[name], all(set(marker["block"]) <= {0} for marker in self.markers[name])
        count = 0
        for record in self.frame_records(name):
            if bound.mode == "l2":  # a block has no relative error of its own; a whole frame has
                count += whole and record.rel_l2 > bound.value * (1 + 1e-12)
            else:
                count += record.max_error > (bound.value if bound.mode == "abs" else record.limit)
        return count

    def samples(self, name: str) -> list[Sample]:
        """Raw frames set aside, with what the store gives back for them, in order of time."""
        found = []
        pattern = re.compile(re.escape(quote(name, safe="")) + r"\.(\d+)\.npy")
        matches = [(pattern.fullmatch(path.name), path) for path in (self.path / "samples").glob("*.npy")]
        numbers = {int(match[1]): path for match, path in matches if match}
        shares: dict[int, float] = dict.fromkeys(numbers, 0.0)
        for record in self.frame_records(name):
            if record.number in shares:
                shares[record.number] += record.nbytes
        for number, path in sorted(numbers.items()):
            original = np.load(path, allow_pickle=False)
            decoded = np.asarray(self.dataset[name][number].values)
            error = FrameError.of(original, decoded, self.bounds[name])
            found.append(Sample(number, original, decoded, error, shares[number]))
        return found


def _number(value: float | None) -> float:
    """A number of a JSON file, where NaN and infinity may have become null or words."""
    return math.nan if value is None else float(value)


def _over(error: float, scale: float) -> float:
    return error / scale if scale > 0 else (math.inf if error > 0 else 0.0)


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(np.dtype((np.void, values.itemsize)))
