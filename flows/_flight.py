"""Groups of frames under way: submitted in order, landed in order, published when they are whole."""

import os
import socket
import time
from collections import deque
from typing import Any

from headrace.flows._base import Pending, Submit, UnitResults
from headrace.storage.arrays import chunk_size
from headrace.storage.errors import StoreError
from headrace.storage.provenance import peak_memory
from headrace.storage.runs import Run
from headrace.tasks.insitu.encode import encode_unit
from headrace.tasks.insitu.stream import ClosedGroup, Stream
from headrace.tasks.insitu.target import publish

#: Groups submitted and not yet finished, at most.
IN_FLIGHT = 4
#: Seconds between checkpoints, and between steps of growth that readers see.
CHECKPOINT_SECONDS, PUBLISH_SECONDS = 5.0, 2.0


def finished_units(out: Run) -> set[str]:
    """Units whose marker is there and whose chunk still is what the marker says, by its size."""
    done = set()
    for unit, marker in out.markers().items():
        index = (marker["group"], *marker["block"])
        if chunk_size(out.data, marker["variable"], index) == marker["nbytes"]:
            done.add(unit)
    return done


def check_complete(out: Run) -> None:
    """Refuse to call a run complete whose chunks have gone or changed their size.

    Raises
    ------
    StoreError
        Names the units that are not there.
    """
    lost = sorted(set(out.markers()) - finished_units(out))
    if lost:
        raise StoreError(
            f"{len(lost)} of {len(out.markers())} chunks of the complete run {out.path} are missing or damaged "
            f"({', '.join(lost[:3])}); expected them as they were written; start over with --fresh"
        )


def totals(out: Run) -> dict[str, float]:
    """Sum up CPU seconds of encoding, and the peak memory of this process and of every worker."""
    markers = out.markers().values()
    peaks = {f"{socket.gethostname()}:{os.getpid()}": peak_memory()}
    for marker in markers:
        peaks[marker["worker"]] = max(marker["peak_memory"], peaks.get(marker["worker"], 0))
    return {"seconds_encode": sum(m["seconds"] for m in markers), "peak_memory_bytes": sum(peaks.values())}


class Flight:
    """Groups under way, oldest first; what has landed is published in order."""

    def __init__(self, stream: Stream, out: Run) -> None:
        self.stream, self.out = stream, out
        self.results = UnitResults()
        self.groups: deque[tuple[ClosedGroup, dict[str, Pending[Any]]]] = deque()
        self.done = finished_units(out)
        self.landed = stream.groups  # a resumed stream starts where all earlier groups are done
        self.published = time.monotonic()
        self.saved = time.monotonic()

    @property
    def units(self) -> int:
        return sum(len(jobs) for _, jobs in self.groups)

    def start(self, group: ClosedGroup, submit: Submit) -> None:
        """Submit the units of a group that are not done, and save a checkpoint now and then."""
        jobs = {job.unit: submit(encode_unit, job) for job in group.jobs if job.unit not in self.done}
        self.groups.append((group, jobs))
        if time.monotonic() - self.saved > CHECKPOINT_SECONDS:
            self.out.save_checkpoint(group.number + 1, *self.stream.state())
            useful = [number for number in self.out.checkpoints() if number <= self.landed]
            self.out.drop_checkpoints(
                keep=[*useful[-1:], *(number for number in self.out.checkpoints() if number > self.landed)]
            )
            self.saved = time.monotonic()

    def waiting(self, limit: int) -> bool:
        """Whether a group should be landed: too many under way, or the oldest has ended."""
        if len(self.groups) > limit:
            return True
        return bool(self.groups) and all(job.done() for job in self.groups[0][1].values())

    def land(self) -> None:
        """Take the results of the oldest group; publish it unless something failed."""
        group, jobs = self.groups.popleft()
        for unit, job in jobs.items():
            self.results.take(unit, job)
        group.drop_spool()
        if self.results.failed:
            return
        self.landed = group.number + 1
        if time.monotonic() - self.published > PUBLISH_SECONDS:
            publish(self.out.data, self.stream, group.first + group.frames)
            self.published = time.monotonic()
