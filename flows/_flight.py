"""Groups of frames under way: submitted in order, landed in order, published when they are whole."""

import time
from collections import deque
from typing import Any

from headrace.flows._base import Pending, Submit, UnitResults
from headrace.storage.runs import Run
from headrace.tasks.insitu.encode import encode_unit
from headrace.tasks.insitu.stream import ClosedGroup, Stream
from headrace.tasks.insitu.target import publish

#: Groups submitted and not yet finished, at most.
IN_FLIGHT = 4
#: Seconds between checkpoints, and between steps of growth that readers see.
CHECKPOINT_SECONDS, PUBLISH_SECONDS = 5.0, 2.0


class Flight:
    """Groups under way, oldest first; what has landed is published in order."""

    def __init__(self, stream: Stream, out: Run) -> None:
        self.stream, self.out = stream, out
        self.results = UnitResults()
        self.groups: deque[tuple[ClosedGroup, dict[str, Pending[Any]]]] = deque()
        self.landed = stream.groups  # a resumed stream starts where all earlier groups are done
        self.published = time.monotonic()
        self.saved = time.monotonic()

    @property
    def units(self) -> int:
        return sum(len(jobs) for _, jobs in self.groups)

    def start(self, group: ClosedGroup, submit: Submit) -> None:
        """Submit the units of a group that are not done, and save a checkpoint now and then."""
        jobs = {job.unit: submit(encode_unit, job) for job in group.jobs if not self.out.is_done(job.unit)}
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
