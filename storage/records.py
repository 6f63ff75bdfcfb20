"""The record of a run, ``run.json``: what decides its key, and whether a folder that is there is that run."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.storage.errors import HeadraceError, IncompatibleRunError, RunExistsError, StoreError
from headrace.storage.files import (
    TEMPORARY,
    plain,
    read_json,
    remove,
    remove_temporaries,
    store_error,
    write_json,
)
from headrace.storage.listing import RECORD

FORMAT = 1
LOCK = "lock"
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


def make_folders(path: Path) -> list[Path]:
    """Create a folder and its parents; return those that were missing, deepest first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in (path, *path.parents):
        if folder.exists() and not folder.is_dir():
            raise RunExistsError(f"{folder} is a file; expected a folder for runs; choose another folder with --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        unmake_folders(missing)
        raise store_error("create", path, error) from error
    return missing


def unmake_folders(made: Sequence[Path]) -> None:
    """Undo `make_folders` as far as the folders are empty: another process may use them by now."""
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def open_record(path: Path, fields: dict[str, Any], *, fresh: bool) -> tuple[dict[str, Any], bool]:
    """Record of the run in ``path``, made new where there is none; and whether there was one."""
    created = {"format": FORMAT, **fields, "key": path.name, "status": "created", "created": now()}
    record = _read_record(path, fresh=fresh)
    if record is None:
        strange = sorted(
            item.name for item in path.iterdir() if item.name != LOCK and not item.name.endswith(TEMPORARY)
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
        clear(path, created)
        write_json(path / RECORD, created)
        return created, False
    remove_temporaries(path)
    return record, True


def clear(path: Path, record: Mapping[str, Any]) -> None:
    """Remove everything from a run folder but its record and its lock.

    The record says so first: a kill half-way must leave neither a complete record beside deleted data, nor data that
    seem to belong to nobody.
    """
    write_json(path / RECORD, {**record, "status": "clearing"})
    for item in path.iterdir():
        if item.name not in {LOCK, RECORD}:
            remove(item)


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
