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
import hashlib
import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote

import numpy as np

from headrace.storage import provenance
from headrace.storage.checkpoints import is_whole, read_checkpoint, write_checkpoint
from headrace.storage.errors import (
    HeadraceError,
    IncompatibleRunError,
    ParameterError,
    RunExistsError,
    StoreError,
)
from headrace.storage.files import (
    TEMPORARY,
    plain,
    read_json,
    remove,
    remove_temporaries,
    store_error,
    write_json,
)
from headrace.storage.listing import RECORD, RunInfo, find_run, list_runs
from headrace.storage.locks import Lock, identity

__all__ = [
    "FORMAT",
    "Run",
    "RunInfo",
    "find_run",
    "list_runs",
    "mark_done",
    "read_json",
    "run_identity",
    "run_key",
    "write_json",
]

FORMAT = 1
_LOCK = "lock"
_IDENTITY = ("flow", "params", "inputs", "version")


def run_key(identity_fields: Mapping[str, Any]) -> str:
    """Short hash (12 hex digits) of what decides a result: flow, params, inputs, version."""
    text = json.dumps(plain(dict(identity_fields)), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()[:12]


def run_identity(
    flow: str,
    params: Mapping[str, object],
    *,
    inputs: Mapping[str, str],
    version: int,
    volatile: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return what decides a result, of the arguments of `Run.open`; `run_key` of it names the run folder."""
    decisive = plain({name: value for name, value in params.items() if name not in volatile})
    return {"flow": flow, "params": decisive, "inputs": plain(dict(inputs)), "version": version}


def now() -> str:
    """Present time, UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


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

    def __init__(self, path: Path, record: dict[str, Any], lock: Lock, *, resumed: bool) -> None:
        self.path = path
        self.key = path.name
        self.data = path / "data.zarr"
        self.resumed = resumed
        self.complete = record["status"] == "complete"
        self._record = record
        self._lock = lock
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
        made = _make_folders(path)
        lock = Lock(path / _LOCK)
        try:
            lock.acquire()
        except BaseException:
            _unmake_folders(made)
            raise
        try:
            record, resumed = _open_record(path, fields, fresh=fresh)
            run = cls(path, record, lock, resumed=resumed)
            if not run.complete:
                extra = {name: plain(value) for name, value in params.items() if name in volatile}
                run._begin(extra, command, seed)
        except BaseException:
            if path in made:
                remove(path)  # while we hold its lock
            lock.release()
            _unmake_folders(made)
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
        remove(self.path)
        self._lock.release()
        _unmake_folders([self.path.parent])

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


def _make_folders(path: Path) -> list[Path]:
    """Create a folder and its parents; return those that were missing, deepest first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in (path, *path.parents):
        if folder.exists() and not folder.is_dir():
            raise RunExistsError(f"{folder} is a file; expected a folder for runs; choose another folder with --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _unmake_folders(missing)
        raise store_error("create", path, error) from error
    return missing


def _unmake_folders(made: Sequence[Path]) -> None:
    """Undo `_make_folders` as far as the folders are empty: another process may use them by now."""
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _open_record(path: Path, fields: dict[str, Any], *, fresh: bool) -> tuple[dict[str, Any], bool]:
    """Record of the run in ``path``, made new where there is none; and whether there was one."""
    created = {"format": FORMAT, **fields, "key": path.name, "status": "created", "created": now()}
    record = _read_record(path, fresh=fresh)
    if record is None:
        strange = sorted(
            item.name for item in path.iterdir() if item.name != _LOCK and not item.name.endswith(TEMPORARY)
        )
        if strange:
            raise IncompatibleRunError(
                f"{path} holds {', '.join(strange[:5])} but no {RECORD}; expected a run folder or none; "
                "move it away or choose another folder with --out"
            )
        remove_temporaries(path)
        write_json(path / RECORD, created)
        return created, False
    if record:
        _check_record(path, record, fields)
    if fresh or record["status"] == "clearing":
        # first say so: a kill half-way must not leave a complete record beside deleted data
        write_json(path / RECORD, {**created, "status": "clearing"})
        for item in path.iterdir():
            if item.name not in {_LOCK, RECORD}:
                remove(item)
        write_json(path / RECORD, created)
        return created, False
    remove_temporaries(path)
    return record, True


def _read_record(path: Path, *, fresh: bool) -> dict[str, Any] | None:
    """Content of ``run.json``; None when there is none; empty when it is damaged and to be replaced."""
    file = path / RECORD
    if not file.exists():
        return None
    try:
        record = read_json(file)
        if not isinstance(record, dict) or "format" not in record:
            raise StoreError(f"{file} is no record of a run; expected the fields format, flow and status")
    except HeadraceError as error:
        if fresh:
            return {}
        raise StoreError(f"{error}; or start over with --fresh, which deletes {path}") from error
    return record


def _check_record(path: Path, record: dict[str, Any], fields: dict[str, Any]) -> None:
    if record["format"] != FORMAT:
        raise IncompatibleRunError(
            f"{path / RECORD} has format {record['format']!r}; expected {FORMAT}; "
            "use the headrace that wrote it, or choose another folder with --out"
        )
    differing = list(_differences({name: record.get(name) for name in _IDENTITY}, fields))
    if differing or "status" not in record:
        raise IncompatibleRunError(
            f"{path} was written with other settings: {'; '.join(differing[:5]) or 'it has no status'}; "
            "expected the same ones; choose another folder with --out, or move that run away"
        )


def _differences(there: Any, asked: Any, name: str = "") -> Iterable[str]:
    if isinstance(there, dict) and isinstance(asked, dict):
        for key in sorted(there.keys() | asked.keys()):
            yield from _differences(there.get(key), asked.get(key), f"{name}.{key}".lstrip("."))
    elif there != asked:
        yield f"{name} is {there!r:.60} there and {asked!r:.60} here"
