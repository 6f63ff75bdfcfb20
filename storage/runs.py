"""Run folders: ``<out>/<flow>/<key>/`` holds one run, which can be killed at any instant and opened again.

::

    run.json       params, inputs, status, versions, commit, host, timings (`Run.update`)
    lock           owner of the folder while it is open (`headrace.storage.locks`)
    data.zarr/     the result
    done/          one marker per finished unit of work, written after the unit's data (`mark_done`)
    checkpoints/   state to continue from (`Run.save_checkpoint`)
    report.json    numbers of the report (`Run.write_report`)

The key is a hash of what decides the result, so the same command finds its own folder again.
"""

import contextlib
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote

import numpy as np

from headrace.storage import provenance
from headrace.storage.checkpoints import is_whole, read_checkpoint, write_checkpoint
from headrace.storage.errors import ParameterError, SourceError, StoreError
from headrace.storage.files import plain, read_json, remove, store_error, write_json
from headrace.storage.listing import RECORD, RunInfo, find_run, list_runs
from headrace.storage.locks import Lock, identity
from headrace.storage.records import (
    FORMAT,
    LOCK,
    clear,
    make_folders,
    now,
    open_record,
    run_identity,
    run_key,
    unmake_folders,
)

__all__ = [
    "FORMAT",
    "Run",
    "RunInfo",
    "find_run",
    "list_runs",
    "mark_done",
    "read_json",
    "remove_run",
    "run_identity",
    "run_key",
    "write_json",
]


def marker_path(run_path: Path, unit: str) -> Path:
    """Where the marker of a unit lies; characters that file names cannot hold are percent-encoded."""
    name = quote(unit, safe=" +,=@()[]") + ".json"
    if not unit or len(name) > 250:
        raise ParameterError(f"unit name {unit!r:.80} cannot be a file name; expected 1 to 245 characters; shorten it")
    return Path(run_path) / "done" / name


def mark_done(run_path: Path, unit: str, info: Mapping[str, Any]) -> None:
    """Say that all data of a unit are on the disk; call after writing them.

    Raises
    ------
    StoreError -- the marker cannot be written
    """
    path = marker_path(run_path, unit)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise store_error("create", path.parent, error) from error
    write_json(path, info)


def remove_run(path: Path) -> None:
    """Delete a run folder, so that a kill half-way leaves one that can be deleted or run again.

    Raises
    ------
    RunLockedError -- a live process is writing it
    SourceError -- there is no run
    StoreError -- it cannot be deleted
    """
    path = Path(path)
    if not (path / RECORD).is_file():
        raise SourceError(f"no run in {path}; expected a folder with {RECORD}; see headrace runs list")
    lock = Lock(path / LOCK)
    lock.acquire()
    try:
        record = _own_record(path)
        if record is None:
            raise SourceError(
                f"{path / RECORD} is not the record of the run that {path} is named after; expected a run folder as "
                "headrace made it; look at it, and delete it by hand"
            )
        clear(path, record)
        remove(path)
    except OSError as error:
        raise error if isinstance(error, StoreError) else store_error("delete", path, error) from error
    finally:
        lock.release()


def _own_record(path: Path) -> dict[str, Any] | None:
    """Record of a folder that is a run, by what it says, or by the folder's name where it is damaged; else None."""
    try:
        record = read_json(path / RECORD)
    except StoreError:
        return {"format": FORMAT} if re.fullmatch("[0-9a-f]{12}", path.name) else None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return None
    return record if (record.get("flow"), record.get("key")) == (path.parent.name, path.name) else None


class Run:
    """One open run folder, exclusively ours; a context manager. Made by `Run.open`.

    Leaving the block normally requires `finish` before; an interrupt leaves status ``cancelled``, an error ``failed``,
    a kill ``running`` (shown as interrupted). All of them resume by opening the run again.

    Attributes
    ----------
    path, key : folder and its name
    data : where the result goes, ``path / "data.zarr"``
    resumed : the folder was there before
    complete : the run had finished before it was opened
    """

    def __init__(
        self, path: Path, record: dict[str, Any], lock: Lock, *, resumed: bool, made: Sequence[Path] = ()
    ) -> None:
        self.path = path
        self.key = path.name
        self.data = path / "data.zarr"
        self.resumed = resumed
        self.complete = record["status"] == "complete"
        self._record = record
        self._lock = lock
        self._made = made
        self._clock = time.monotonic()
        self._finished = False

    @classmethod
    def open(
        cls,
        out: Path,
        flow: str,
        params: Mapping[str, object],
        *,
        inputs: Mapping[str, str],
        version: int,
        volatile: frozenset[str] = frozenset(),
        fresh: bool = False,
        command: Sequence[str] = (),
        seed: int | None = None,
    ) -> Self:
        """Create the run folder, or resume it when it is there.

        Parameters
        ----------
        out : folder of all runs; created when missing
        flow : name of the flow
        params : all parameters, as JSON values
        inputs : fingerprint of every input by its name (`headrace.storage.provenance.fingerprint`)
        version : integer of the method, raised when its results change
        volatile : names of parameters that do not change the result and are not part of the key
        fresh : delete what an earlier run with the same key left
        command, seed : recorded only

        Raises
        ------
        RunLockedError -- another live process is writing this run
        RunExistsError -- a file is where a folder must be
        IncompatibleRunError -- the folder belongs to something else; the message names the differing fields
        StoreError -- ``out`` cannot be written or is full, or ``run.json`` is damaged; nothing new is left behind
        """
        fields = run_identity(flow, params, inputs=inputs, version=version, volatile=volatile)
        path = Path(out).absolute() / flow / run_key(fields)
        made = make_folders(path)
        lock = Lock(path / LOCK)
        try:
            lock.acquire()
        except BaseException:
            unmake_folders(made)
            raise
        try:
            record, resumed = open_record(path, fields, fresh=fresh)
            run = cls(path, record, lock, resumed=resumed, made=made)
            if not run.complete:
                extra = {name: plain(value) for name, value in params.items() if name in volatile}
                run._begin(extra, command, seed)
        except BaseException:
            if path in made:
                remove(path)  # while we hold its lock
            lock.release()
            unmake_folders(made)
            raise
        return run

    def _begin(self, extra: dict[str, Any], command: Sequence[str], seed: int | None) -> None:
        who = identity()
        session = {"started": now(), "host": who["host"], "pid": who["pid"], "command": shlex.join(command)}
        self.update(
            **provenance.collect(),
            status="running",
            error=None,
            volatile=extra,
            device=extra.get("device", self._record["params"].get("device")),
            seed=seed,
            command=session["command"],
            owner=who,
            pid=who["pid"],
            started=self._record.get("started") or session["started"],
            ended=None,
            sessions=[*self._record.get("sessions", []), session],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self._finished and not self.complete:
                error = RuntimeError("the run's block ended without finish()")
                self._end("failed", error=str(error))
                raise error
            if error is not None and not self._finished:
                status = "failed" if isinstance(error, Exception) else "cancelled"
                with contextlib.suppress(StoreError):  # a full disk must not hide the first error
                    self._end(status, error=f"{type(error).__name__}: {error}")
        finally:
            self.close()

    def close(self) -> None:
        """Give the folder back without changing its status."""
        self._lock.release()

    def finish(self, **fields: object) -> None:
        """Record that the run is complete, its times and its peak memory, and any further ``fields``."""
        self._end("complete", error=None, **fields)
        self._finished = True

    def discard(self) -> None:
        """Remove the folder of a run whose input proved wrong before any of its work was done."""
        self._finished = True
        clear(self.path, self._record)
        remove(self.path)
        self._lock.release()
        unmake_folders(self._made)

    def _end(self, status: str, **fields: object) -> None:
        ended, seconds = now(), round(time.monotonic() - self._clock, 3)
        sessions = [dict(session) for session in self._record.get("sessions", [])]
        if sessions:
            sessions[-1].update(ended=ended, status=status, seconds=seconds)
        total = round(sum(session.get("seconds", 0.0) for session in sessions), 3)
        peak = max(provenance.peak_memory(), self._record.get("peak_memory_bytes") or 0)
        times = {"ended": ended, "seconds": total, "peak_memory_bytes": peak, "sessions": sessions}
        self.update(status=status, **times, **fields)

    @property
    def record(self) -> dict[str, Any]:
        """A copy of what ``run.json`` holds."""
        return dict(self._record)

    def update(self, **fields: object) -> None:
        """Merge fields into ``run.json``, atomically."""
        merged = {**self._record, **plain(fields)}
        write_json(self.path / RECORD, merged)
        self._record = merged

    def is_done(self, unit: str) -> bool:
        """Whether the unit's marker is there and whole."""
        path = marker_path(self.path, unit)
        if not path.exists():
            return False
        try:
            read_json(path)
        except StoreError:  # a marker that the disk lost is a unit to do again
            return False
        return True

    def markers(self) -> dict[str, dict[str, Any]]:
        """Content of every whole marker by unit, sorted by unit."""
        found = {}
        for path in (self.path / "done").glob("*.json"):
            with contextlib.suppress(StoreError):
                found[unquote(path.name.removesuffix(".json"))] = read_json(path)
        return dict(sorted(found.items()))

    def _checkpoint(self, number: int) -> Path:
        return self.path / "checkpoints" / f"{number}.npz"

    def save_checkpoint(self, number: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write a checkpoint atomically, over one of the same number; see `write_checkpoint` for what it can hold."""
        path = self._checkpoint(number)
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise store_error("create", path.parent, error) from error
        write_checkpoint(path, arrays, meta)

    def checkpoints(self) -> list[int]:
        """Numbers of the whole checkpoints, ascending; damaged ones are left out."""
        paths = (self.path / "checkpoints").glob("*.npz")
        return sorted(int(path.stem) for path in paths if path.stem.isdigit() and is_whole(path))

    def load_checkpoint(self, number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and meta of a checkpoint.

        Raises
        ------
        StoreError -- it is missing or damaged
        """
        return read_checkpoint(self._checkpoint(number))

    def drop_checkpoints(self, keep: Iterable[int]) -> None:
        """Remove all checkpoints except the numbers in ``keep``, damaged ones too."""
        kept = {self._checkpoint(number) for number in keep}
        for path in (self.path / "checkpoints").glob("*.npz"):
            if path not in kept:
                remove(path)

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write ``report.json`` atomically."""
        write_json(self.path / "report.json", report)

    def read_report(self) -> dict[str, Any]:
        """Read ``report.json``."""
        found = read_json(self.path / "report.json")
        if not isinstance(found, dict):
            raise StoreError(
                f"{self.path / 'report.json'} holds a {type(found).__name__}; expected an object; run again"
            )
        return found
