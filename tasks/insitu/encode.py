"""One unit of work of ``compress``: encode one group of frames of one block, write its chunk, mark it done."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headrace.storage.arrays import write_chunk
from headrace.storage.codecs.groups import EncodedGroup, encode_group
from headrace.storage.codecs.predictors import PredictorSpec
from headrace.storage.errors import StoreError
from headrace.storage.provenance import peak_memory
from headrace.storage.runs import mark_done


@dataclass(frozen=True)
class EncodeJob:
    """What a worker needs to know; everything is a path, a number or a short tuple.

    ``frames`` names a ``.npy`` file with the whole group, shape (n, ...); ``region`` is the block's part of a frame.
    """

    run: str
    variable: str
    group: int
    block: tuple[int, ...]
    region: tuple[tuple[int, int], ...]
    frames: str
    first_frame: int
    limits: tuple[float, ...]
    measure: Literal["max", "rms"]
    codecs: tuple[str, ...]
    stream: int
    times: tuple[float, ...] = ()
    predictors: tuple[PredictorSpec, ...] = ()

    @property
    def unit(self) -> str:
        """Name of the unit, which is also that of its marker."""
        return ".".join([self.variable, *(str(n) for n in (self.group, *self.block))])


def encode_unit(job: EncodeJob) -> dict[str, Any]:
    """Encode a unit's frames and put chunk and marker in place.

    Parameters
    ----------
    job : EncodeJob

    Returns
    -------
    dict -- the content of the unit's marker: sizes, errors, seconds, and one entry per record

    Raises
    ------
    StoreError -- the frames cannot be read, or the chunk cannot be written
    """
    begin = time.process_time()
    frames = _load(Path(job.frames), job.region)
    index = (job.group, *job.block)
    group = encode_group(
        frames,
        job.limits,
        measure=job.measure,
        codecs=job.codecs,
        stream=job.stream,
        index=index,
        times=job.times if job.predictors else None,
        predictors={spec.kind: spec.load() for spec in job.predictors},
    )
    run = Path(job.run)
    write_chunk(run / "data.zarr", job.variable, index, group.payload)
    info = {
        "variable": job.variable,
        "group": job.group,
        "block": job.block,
        "first_frame": job.first_frame,
        "frames": len(frames),
        "raw_bytes": frames.nbytes,
        "nbytes": len(group.payload),
        "limits": job.limits,
        "digest": hashlib.sha256(group.payload).hexdigest(),
        "seconds": time.process_time() - begin,
        "peak_memory": peak_memory(),
        "worker": f"{socket.gethostname()}:{os.getpid()}",
        "records": describe_records(group),
    }
    mark_done(run, job.unit, info)
    return info


def describe_records(group: EncodedGroup) -> list[dict[str, Any]]:
    """Say what each record of a group is, how large, how exact, and what else was tried.

    Parameters
    ----------
    group : from ``encode_group``

    Returns
    -------
    list of dict
    """
    described = []
    for record, tried in zip(group.records, group.tried, strict=True):
        rows = slice(record.first, record.first + record.count)
        described.append(
            {
                "kind": record.kind,
                "codec": record.codec,
                "first": record.first,
                "count": record.count,
                "nbytes": record.nbytes,
                "limit": record.limit,
                "max_error": group.max_error[rows].tolist(),
                "rel_l2": group.rel_l2[rows].tolist(),
                "patches": int.from_bytes(record.patches[:4], "little"),
                "tried": tried,
            }
        )
    return described


def blocks_of(shape: Sequence[int], block: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[tuple[int, int], ...]]]:
    """List the blocks of a frame: index of each and its region, one (start, stop) per axis.

    Parameters
    ----------
    shape : of a frame
    block : largest extent of a block along each axis

    Returns
    -------
    list of (index, region)
    """
    counts = tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
    found = []
    for index in np.ndindex(*counts):
        region = tuple((i * b, min((i + 1) * b, n)) for i, b, n in zip(index, block, shape, strict=True))
        found.append((tuple(int(i) for i in index), region))
    return found


def _load(path: Path, region: tuple[tuple[int, int], ...]) -> np.ndarray:
    try:
        frames = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"cannot read the frames of a unit from {path}: {error}; expected the file the run put there; "
            "workers need the run folder on a file system they share with it"
        ) from error
    return np.ascontiguousarray(frames[(slice(None), *(slice(a, b) for a, b in region))])
