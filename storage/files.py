"""Atomic files: after a kill at any instant a file is either the old one or the new one, never a part of it.

Every write goes to a hidden temporary file beside its target, is flushed to the disk, renamed over the target, and the
folder is flushed too. What a killed writer leaves behind ends in ``.tmp`` and is removed when the run is opened again.
"""

import contextlib
import errno
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.storage.errors import ParameterError, StoreError

TEMPORARY = ".tmp"
PARTIAL = ".partial"  # what zarr's own local store calls its temporary files

_ADVICE = {
    errno.ENOSPC: "free some space there or choose another folder, then repeat the command",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or choose another file system, then repeat the command",
    errno.EDQUOT: "free some of your quota or choose another folder, then repeat the command",
    errno.EACCES: "choose a folder you may write to, or change its permissions",
    errno.EPERM: "choose a folder you may write to, or change its permissions",
    errno.EROFS: "choose a folder on a writable file system",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOTDIR: "choose a path whose parents are all folders",
    errno.ENOENT: "check that the folder was not removed meanwhile",
}


def store_error(action: str, path: Path, error: OSError) -> StoreError:
    """Make a `StoreError` of an `OSError`: what failed where, why, and what to do.

    Parameters
    ----------
    action : what was tried, such as ``"write"``
    path : the file or folder it was tried on
    error : what the operating system said
    """
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        with contextlib.suppress(OSError):
            reason += f" ({shutil.disk_usage(path.parent).free / 1e6:.1f} MB free)"
    advice = _ADVICE.get(error.errno or 0, "check the disk and the path, then repeat the command")
    made = StoreError(f"cannot {action} {path}: {reason}; expected a writable place with room; {advice}")
    made.errno = error.errno
    return made


def sync_folder(path: Path) -> None:
    """Flush a folder's list of names to the disk, so that a rename in it survives a power cut."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # not every system opens folders
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES}:  # "cannot flush a folder here"
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``; rename it over ``path`` when the block succeeds, else remove it.

    Raises
    ------
    StoreError -- the place cannot be written or is full; ``path`` is then as it was
    """
    temporary = path.with_name(f".{uuid.uuid4().hex}{TEMPORARY}")
    try:
        yield temporary
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise store_error("write", path, error) from error
        raise


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write one file atomically and durably; ``write`` is called with the open temporary file.

    Raises
    ------
    StoreError -- the place cannot be written or is full; ``path`` is then as it was
    """
    with replacing(path) as temporary, temporary.open("xb") as handle:
        write(handle)
        handle.flush()
        os.fsync(handle.fileno())


def write_bytes(path: Path, payload: bytes) -> None:
    """Write bytes atomically and durably (`write_file`)."""
    write_file(path, lambda handle: handle.write(payload))


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it is there, without following links."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> list[Path]:
    """Remove what killed writers left anywhere below ``folder``; return what was removed."""
    found = []
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            if name.endswith(TEMPORARY) or (name.endswith(PARTIAL) and name in files):
                remove(Path(root, name))
                found.append(Path(root, name))
        folders[:] = [name for name in folders if not name.endswith(TEMPORARY)]
    return found


def plain(value: object) -> Any:
    """Turn a value into what strict JSON can hold.

    Paths, dates and enumerations become text, NumPy scalars and arrays become numbers and lists, tuples become lists,
    sets sorted lists, and numbers that JSON lacks become the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``
    (which `float` reads back).

    Raises
    ------
    ParameterError -- a value of a type that has no JSON form, such as bytes or a function
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, os.PathLike | date | datetime):
        return str(value) if isinstance(value, os.PathLike) else value.isoformat()
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist() if value.dtype.kind not in "mM" else value.astype(str).tolist())
    raise ParameterError(
        f"a value of type {type(value).__name__} has no JSON form: {value!r:.80}; pass text or numbers"
    )


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically; see `plain` for what becomes of values JSON lacks.

    Raises
    ------
    StoreError -- the place cannot be written or is full; the old file is then still there
    ParameterError -- the value has no JSON form
    """
    text = json.dumps(plain(value), indent=1, allow_nan=False, ensure_ascii=False)
    write_bytes(Path(path), (text + "\n").encode("utf-8", errors="surrogateescape"))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    StoreError -- the file is missing, unreadable or not JSON
    """
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot read {path}: {reason}; expected a JSON file; check the path") from error
    except ValueError as error:
        raise StoreError(
            f"{path} is damaged: {error}; expected JSON as headrace writes it; restore a copy or remove it"
        ) from error
