"""One live writer per run folder, by a lock file that names its owner.

Why a file and not ``flock``: run folders often lie on network file systems, where ``flock`` may be a no-op or local to
one node. Linking a complete temporary file to the lock's name is atomic on all of them and the lock is never seen
empty. The file names host, boot, process-id namespace, process id and start time of the process, so a lock of a process
that is gone from this machine is recognised, even when its process id was given to another one, and is broken without
asking. A lock taken on another machine cannot be judged from here and is left to the user. Breaking is serialised by
``flock`` on the run folder, which is enough because only processes of one machine ever break the same lock.
"""

import contextlib
import errno
import json
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.storage.errors import RunLockedError
from headrace.storage.files import TEMPORARY, store_error

_HALF_WRITTEN_SECONDS = 10.0  # a lock without content can only be seen where links are missing; then for an instant


def start_time(pid: int) -> str | None:
    """Start time of a live process as opaque text; None when no such process lives (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    except OSError:
        return _start_time_by_ps(pid)
    fields = text.rpartition(")")[2].split()  # the name in brackets may itself hold blanks and brackets
    return None if fields[0] in "ZXx" else fields[19]


def _start_time_by_ps(pid: int) -> str | None:
    found = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = found.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def identity() -> dict[str, Any]:
    """Who this process is: host, boot, process-id namespace, process id and start time."""
    return {
        "host": socket.gethostname(),
        "boot": _read_text("/proc/sys/kernel/random/boot_id"),
        "namespace": _namespace(),
        "pid": os.getpid(),
        "started": start_time(os.getpid()),
    }


def is_dead(owner: dict[str, Any]) -> bool:
    """Whether the process described by `identity` is known to be gone; False when that cannot be told from here."""
    if owner.get("host") != socket.gethostname():
        return False
    if owner.get("boot") != _read_text("/proc/sys/kernel/random/boot_id"):
        return True  # the machine was started anew since
    if owner.get("namespace") != _namespace():
        return False  # another container on this machine: its process ids mean nothing here
    pid = owner.get("pid")
    return not isinstance(pid, int) or start_time(pid) != owner.get("started")


def _owner(path: Path) -> dict[str, Any] | None:
    """Content of a lock file; empty when damaged, None when there is no lock."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_stale(path: Path, owner: dict[str, Any]) -> bool:
    if owner:
        return is_dead(owner)
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime > _HALF_WRITTEN_SECONDS
    return False


@contextlib.contextmanager
def _breaking(folder: Path) -> Iterator[None]:
    """Let one process of this machine at a time break locks in this folder, where the system can do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _create(path: Path, payload: bytes) -> bool:
    """Create the lock file with its content at once; False when there is one already."""
    temporary = path.with_name(f".{uuid.uuid4().hex}{TEMPORARY}")
    try:
        with temporary.open("xb") as handle:
            handle.write(payload)
            handle.flush()
            os.fsync(handle.fileno())
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES}:
                raise
            with path.open("xb") as handle:  # no links on this file system
                handle.write(payload)
    except FileExistsError:
        return False
    except OSError as error:
        raise store_error("lock", path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
    return True


class Lock:
    """Hold a folder exclusively; see the module's text. Take it by `acquire`, give it back by `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pid: int | None = None

    def acquire(self) -> None:
        """Take the lock, breaking one whose process is gone.

        Raises
        ------
        RunLockedError -- another live process, or one on another host, holds it
        StoreError -- the folder cannot be written
        """
        payload = json.dumps(identity()).encode()
        while not _create(self.path, payload):
            self._break_or_refuse()
        self._pid = os.getpid()

    def _break_or_refuse(self) -> None:
        with _breaking(self.path.parent):
            owner = _owner(self.path)
            if owner is None:
                return
            if _is_stale(self.path, owner):
                self.path.unlink(missing_ok=True)
                return
        holder = f"process {owner.get('pid', '?')} on host {owner.get('host', '?')}"
        raise RunLockedError(
            f"{self.path.parent} is in use by {holder}; expected a run that nobody is writing; "
            f"wait for it or end it; if that process is certainly gone, delete {self.path} and repeat the command"
        )

    def release(self) -> None:
        """Give the lock back; nothing happens in a forked child or when it was not held."""
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                if (_owner(self.path) or {}).get(
                    "pid"
                ) == self._pid:  # not one that replaced ours after a hand deleted it
                    self.path.unlink(missing_ok=True)
        self._pid = None
