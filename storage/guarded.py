"""A file for libraries that do not survive a full disk.

When the HDF5 library cannot write, it leaves its file open inside, and a later call ends the process with a
segmentation fault. Behind this file object it never learns: from the first failed write on, bytes are kept in memory,
so that the library can close in order, and ``failure`` says that the file on the disk is worthless.
"""

import io
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class GuardedFile(io.FileIO):
    """A new file, for reading and writing; see the module's text."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+b")
        self.failure: OSError | None = None
        self._kept: list[tuple[int, bytes]] = []

    def check(self, block: T) -> T:
        """Return ``block``, or raise the failure: called with every block, it ends a long copy early."""
        if self.failure is not None:
            raise OSError(*self.failure.args) from self.failure
        return block

    def write(self, data: object) -> int:
        """Write everything, to the disk or, after a failure, to memory."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        start, done = self.tell(), 0
        try:
            while self.failure is None and done < len(view):
                done += super().write(view[done:])
        except OSError as error:
            self.failure = error
        if self.failure is not None:
            self._kept.append((start, bytes(view)))
            self.seek(start + len(view))
        return len(view)

    def readinto(self, buffer: object) -> int:
        """Read what was written, wherever it went."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        start = self.tell()
        count = super().readinto(view) or 0
        if self.failure is None:
            return count
        view[count:] = bytes(len(view) - count)
        for at, part in self._kept:
            low, high = max(at, start), min(at + len(part), start + len(view))
            if low < high:
                view[low - start : high - start] = part[low - at : high - at]
        self.seek(start + len(view))
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the length, as far as the disk allows."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return self.tell() if size is None else size
