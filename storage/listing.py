"""Find run folders: what is below an output folder, in which state."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.storage.errors import ParameterError, SourceError, StoreError
from headrace.storage.files import read_json
from headrace.storage.locks import is_dead

RECORD = "run.json"


@dataclass(frozen=True)
class RunInfo:
    """One run as `list_runs` shows it.

    Attributes
    ----------
    flow, key, path : which run, where
    status : created, running, complete, failed, cancelled; interrupted when its process is gone; damaged when its
        record cannot be read
    started : first start, ISO 8601 in UTC; empty when unknown
    seconds : wall time of the sessions that ended in order [s]; None when there is none
    bytes : size of all files in the folder
    """

    flow: str
    key: str
    path: Path
    status: str
    started: str
    seconds: float | None
    bytes: int


def run_info(path: Path) -> RunInfo:
    """Describe the run in a folder that holds ``run.json``."""
    try:
        record = read_json(path / RECORD)
    except StoreError:
        record = None
    if not isinstance(record, dict) or not {"format", "status"} <= record.keys():
        return RunInfo(path.parent.name, path.name, path, "damaged", "", None, _size(path))
    return RunInfo(
        flow=str(record.get("flow", path.parent.name)),
        key=str(record.get("key", path.name)),
        path=path,
        status=_status(record),
        started=str(record.get("started") or record.get("created") or ""),
        seconds=record.get("seconds"),
        bytes=_size(path),
    )


def _status(record: dict[str, Any]) -> str:
    status = str(record["status"])
    if status == "clearing":
        return "interrupted"
    owner = record.get("owner")
    if status == "running" and isinstance(owner, dict) and is_dead(owner):
        return "interrupted"
    return status


def _size(path: Path) -> int:
    total = 0
    for root, _, names in os.walk(path):
        for name in names:
            try:
                total += Path(root, name).lstat().st_size
            except FileNotFoundError:  # a writer renamed it meanwhile
                continue
    return total


def list_runs(out: Path) -> list[RunInfo]:
    """Every run below ``out``, the oldest first; empty when there is no such folder."""
    found = [run_info(record.parent) for record in Path(out).absolute().glob(f"*/*/{RECORD}")]
    return sorted(found, key=lambda run: (run.started, str(run.path)))


def find_run(out: Path, text: str) -> RunInfo:
    """Find one run by its folder, its key or the beginning of it, ``flow/key``, or ``last`` for the latest started.

    Raises
    ------
    SourceError -- there is none
    ParameterError -- the text fits several
    """
    folder = Path(text)
    if (folder / RECORD).is_file():
        return run_info(folder.absolute())
    runs = list_runs(out)
    if text == "last" and runs:
        return runs[-1]
    fitting = [run for run in runs if text and (run.key.startswith(text) or f"{run.flow}/{run.key}".startswith(text))]
    exact = [run for run in fitting if text in {run.key, f"{run.flow}/{run.key}"}]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    if not fitting:
        keys = [run.key for run in runs]
        near = difflib.get_close_matches(text, keys, n=3) or keys[-3:]
        there = f"there are {len(runs)}, such as {', '.join(near)}" if near else "there is none at all"
        raise SourceError(
            f"no run {text!r} in {out}: {there}; expected a key, a folder or 'last'; see headrace runs list"
        )
    names = ", ".join(f"{run.flow}/{run.key}" for run in fitting[:5])
    raise ParameterError(f"{text!r} fits {len(fitting)} runs in {out}: {names}; expected one; give more of the key")
