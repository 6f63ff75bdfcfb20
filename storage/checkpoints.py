"""State of a run between two steps, as one atomic file: arrays and their description, read back bit for bit."""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from headrace.storage.errors import ParameterError, StoreError
from headrace.storage.files import write_file

_META = "meta.json"
_FOLDER = "arrays/"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same state gives the same bytes


def _number(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise ParameterError(
        f"checkpoint meta holds {value!r:.80} of type {type(value).__name__}; expected plain JSON values"
    )


def write_checkpoint(path: Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write arrays of any shape and numeric or text dtype, and a JSON-like ``meta``, atomically.

    ``meta`` may hold integers of any size and non-finite numbers (they come back exactly); tuples come back as lists.

    Raises
    ------
    ParameterError -- an array holds Python objects, or ``meta`` something that is no JSON value
    StoreError -- the place cannot be written or is full
    """
    text = json.dumps(dict(meta), default=_number)
    converted = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in converted.items():
        if array.dtype.hasobject:
            raise ParameterError(
                f"checkpoint array {name!r} holds Python objects; expected numbers or fixed-length text"
            )

    def write(handle: IO[bytes]) -> None:
        with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(_META, _EPOCH), text)
            for name, array in converted.items():
                with archive.open(zipfile.ZipInfo(f"{_FOLDER}{name}.npy", _EPOCH), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write_file(path, write)


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_checkpoint` wrote.

    Raises
    ------
    StoreError -- missing or damaged (every byte is covered by a checksum)
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            meta = json.loads(archive.read(_META))
            for name in archive.namelist():
                if name != _META:
                    member = io.BytesIO(archive.read(name))
                    arrays[name[len(_FOLDER) : -len(".npy")]] = np.lib.format.read_array(member, allow_pickle=False)
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise StoreError(
            f"checkpoint {path} is damaged: {error}; expected a whole one; remove it to use an older one"
        ) from error
    return arrays, meta


def is_whole(path: Path) -> bool:
    """Whether a checkpoint can be read."""
    try:
        read_checkpoint(path)
    except StoreError:
        return False
    return True
