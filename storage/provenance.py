"""Where a result came from: versions, commit, host, and fingerprints of the inputs."""

import contextlib
import hashlib
import os
import platform
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headrace.storage.errors import SourceError
from headrace.storage.files import PARTIAL, TEMPORARY, store_error

PACKAGES = (
    "headrace",
    "numpy",
    "zarr",
    "numcodecs",
    "xarray",
    "h5py",
    "hdf5plugin",
    "pcodec",
    "dask",
    "prefect",
    "cupy-cuda13x",
)
METADATA_NAMES = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})
_BLOCK = 1 << 20
_ENDS = 1 << 16


def versions() -> dict[str, str]:
    """Version of Python and of every package that shapes a result and is installed, without importing any."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(root: Path, *arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        found = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def commit() -> dict[str, Any]:
    """Commit and dirty flag of the checkout this code runs from; ``{"commit": None}`` for an installed copy."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return {"commit": None}
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"commit": _git(root, "rev-parse", "HEAD"), "dirty": None if changed is None else bool(changed)}


def peak_memory() -> int:
    """Largest resident memory of this process so far [bytes].

    On Linux from ``/proc``: what ``getrusage`` says there includes the memory of the process that started this one.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(own if sys.platform == "darwin" else own * 1024)


def collect() -> dict[str, Any]:
    """Versions, commit, host and machine of the present process, as plain JSON values."""
    machine = {"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count()}
    return {"versions": versions(), "git": commit(), "host": socket.gethostname(), "machine": machine}


def fingerprint(path: Path, hash_content: bool = False) -> str:
    """Short text that changes when an input changes.

    By default from sizes, modification times [ns], the content of Zarr metadata files and the first and last 64 KiB of
    a single file: cheap, and enough unless a file is edited in place with its time put back. With ``hash_content``
    every byte counts and times do not, so that copies of the same data agree.

    Parameters
    ----------
    path : a file, or a folder such as a Zarr store
    hash_content : read all content

    Returns
    -------
    ``"stat:<32 hex digits>"`` or ``"sha256:<64 hex digits>"``

    Raises
    ------
    SourceError -- nothing is there
    StoreError -- it cannot be read
    """
    path = Path(path)
    if not path.exists():
        raise SourceError(f"no input at {path}; expected a file or a Zarr folder; check the path")
    digest = hashlib.sha256()
    try:
        for name, file in _files(path):
            encoded = name.encode("utf-8", errors="surrogateescape")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
            if hash_content:
                _add_content(digest, file)
            else:
                _add_state(digest, file, whole=file.name in METADATA_NAMES, ends=path.is_file())
    except OSError as error:
        raise store_error("read", path, error) from error
    return f"sha256:{digest.hexdigest()}" if hash_content else f"stat:{digest.hexdigest()[:32]}"


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Every file with its relative name, in an order that depends on the names only."""
    if path.is_file():
        yield "", path
        return
    for root, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            if not name.endswith((TEMPORARY, PARTIAL)):
                file = Path(root, name)
                yield file.relative_to(path).as_posix(), file


def _add_content(digest: "hashlib._Hash", file: Path) -> None:
    digest.update(file.stat().st_size.to_bytes(8, "little"))
    with file.open("rb") as handle:
        while block := handle.read(_BLOCK):
            digest.update(block)


def _add_state(digest: "hashlib._Hash", file: Path, *, whole: bool, ends: bool) -> None:
    if whole:
        _add_content(digest, file)
        return
    state = file.stat()
    digest.update(state.st_size.to_bytes(8, "little") + state.st_mtime_ns.to_bytes(8, "little", signed=True))
    if ends:
        with file.open("rb") as handle:
            digest.update(handle.read(_ENDS))
            handle.seek(max(0, state.st_size - _ENDS))
            digest.update(handle.read(_ENDS))
