"""Zarr v3 stores that many processes fill, one whole chunk at a time, and that grow along time.

Every file is written atomically and durably, and the bytes of a store depend on its final content only: not on the
order of writing, nor on how often it grew or was interrupted.
"""

import hashlib
import os
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.storage.errors import ParameterError, RunExistsError, ShapeError, SourceError, StoreError
from headrace.storage.files import PARTIAL, TEMPORARY, read_json, remove, store_error, sync_folder, write_bytes
from headrace.storage.layout import METADATA, holds_text, open_text, write_metadata, write_template

if TYPE_CHECKING:
    import xarray as xr
    import zarr


def create_store(
    path: Path, template: "xr.Dataset", encodings: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]
) -> None:
    """Create a Zarr v3 group from a template; it appears whole or not at all.

    Variables named in ``encodings`` are created empty, with shape, dtype, dimension names and attributes of the
    template; their values are never read. Everything else (coordinates, bounds, grid mappings) is written with its
    values. The metadata are consolidated from the start. What shares the first dimension of an empty variable is laid
    out so that `grow_time` can extend it.

    Parameters
    ----------
    path : where the store goes; must not exist
    template : Dataset; lazily shaped variables are fine
    encodings : per variable to be created empty: ``chunks``, ``shards``, ``serializer``, ``filters``, ``compressors``,
        ``fill_value`` as `zarr.create_array` takes them; may be ``{}``: chunks of whole frames, NaN to fill with
    attrs : attributes of the group, added to the template's

    Raises
    ------
    RunExistsError -- ``path`` exists
    ParameterError -- ``encodings`` names a variable that the template lacks, or zarr refuses an encoding
    StoreError -- the place cannot be written or is full; nothing is left behind
    """
    path = Path(path)
    if path.exists():
        raise RunExistsError(f"{path} exists; expected a free place for a new store; remove it or choose another path")
    unknown = sorted(set(encodings) - set(template.data_vars))
    if unknown:
        raise ParameterError(
            f"encodings name {', '.join(map(repr, unknown))}; expected variables of the template "
            f"({', '.join(map(str, template.data_vars))}); correct the names"
        )
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    try:
        store = write_template(temporary, template, encodings, attrs)
        consolidate(store)
        sync_tree(store)
        store.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise error if isinstance(error, StoreError) else store_error("create", path, error) from error
    finally:
        remove(temporary)


def sync_tree(path: Path) -> None:
    """Flush every file and folder below ``path`` to the disk."""
    for root, _, names in os.walk(path):
        for name in names:
            with Path(root, name).open("rb") as handle:
                os.fsync(handle.fileno())
        sync_folder(Path(root))


def grow_time(path: Path, lengths: Mapping[str, int], coords: Mapping[str, np.ndarray]) -> None:
    """Extend arrays along their first dimension, and write the coordinates that go with it.

    New values are on the disk before the new lengths, and all lengths change at once for readers of the consolidated
    metadata. Nothing ever shrinks: an array that is already longer (an interrupted run got further) is left alone. The
    bytes do not depend on the number of calls.

    Parameters
    ----------
    path : a store made by `create_store`
    lengths : new length by array
    coords : all values, old and new, of coordinates (or bounds) by name, not CF-encoded; dates in any form xarray takes

    Raises
    ------
    SourceError -- the store lacks an array
    ShapeError -- a coordinate differs from the stored one in another dimension than the first, or something else along
        the same dimension would keep another length
    StoreError -- the place cannot be written or is full
    """
    path = Path(path)
    stored = {name: _metadata(path, name) for name in sorted({*lengths, *coords})}
    shapes = {name: (int(length), *stored[name]["shape"][1:]) for name, length in lengths.items()}
    for name, values in coords.items():
        shapes[name] = np.shape(values)
        if len(shapes[name]) != len(stored[name]["shape"]) or list(shapes[name][1:]) != stored[name]["shape"][1:]:
            raise ShapeError(
                f"values of {name!r} have shape {shapes[name]}; expected (n, *{tuple(stored[name]['shape'][1:])}); "
                "only the first dimension can grow"
            )
    fitting = {name: values for name, values in coords.items() if len(values) >= stored[name]["shape"][0]}
    grown = {name: {**document, "shape": list(shapes[name])} for name, document in stored.items()}
    grown = {name: document for name, document in grown.items() if document["shape"][0] > stored[name]["shape"][0]}
    _check_lengths(path, stored, shapes)
    _write_coordinates(path, fitting, stored)
    for name, document in grown.items():
        write_metadata(path / name, document)
    _update_consolidated(path, stored | grown)


def _check_lengths(path: Path, stored: Mapping[str, dict[str, Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse to leave arrays along one dimension with different lengths: such a store opens nowhere."""
    gathered = (read_json(path / METADATA).get("consolidated_metadata") or {}).get("metadata") or {}
    asked: dict[str, tuple[str, int]] = {}
    for name, document in {**stored, **gathered}.items():
        dim = next(iter(document.get("dimension_names") or []), None)
        if dim is None:
            continue
        if name in shapes:
            other, length = asked.setdefault(dim, (name, shapes[name][0]))
            wrong = shapes[name][0] != length
        else:  # it may have more, when an interrupted run got further
            other, length = asked.get(dim, (name, 0))
            wrong = document["shape"][0] < length
        if wrong:
            found = shapes.get(name, document["shape"])[0]
            raise ShapeError(
                f"{other!r} would have {length} values along {dim!r} and {name!r} {found}; expected one length; "
                "grow everything along a dimension in one call"
            )


def _metadata(path: Path, name: str) -> dict[str, Any]:
    if not (path / name / METADATA).is_file():
        raise SourceError(f"no array {name!r} in {path}; expected one made by create_store; check the name")
    document = read_json(path / name / METADATA)
    if not (isinstance(document, dict) and document.get("node_type") == "array" and "shape" in document):
        raise StoreError(
            f"{path / name / METADATA} describes no array; expected Zarr v3 metadata; restore it from a copy"
        )
    return document


def _write_coordinates(path: Path, coords: Mapping[str, np.ndarray], stored: Mapping[str, dict[str, Any]]) -> None:
    """Encode the chunks that changed in memory, exactly as xarray encodes whole arrays, and copy them in."""
    import xarray as xr
    import zarr
    from zarr.storage import MemoryStore

    changed, first = {}, {}
    for name, given in coords.items():
        values = np.asarray(given)
        array = zarr.open_array(path / name, mode="r")
        first[name] = stored[name]["shape"][0] // array.chunks[0]  # whole chunks never change
        encoding = {
            key: getattr(array, key) for key in ("chunks", "compressors", "filters", "serializer", "fill_value")
        }
        if holds_text(values):
            values = open_text(values)
        else:
            encoding["dtype"] = array.dtype
        if values.dtype.kind in "mMO":
            encoding.update({key: array.attrs[key] for key in ("units", "calendar") if key in array.attrs})
        dims = (f"{name}_rows", *(f"{name}_{axis}" for axis in range(1, values.ndim)))
        rows = values[first[name] * array.chunks[0] :]
        changed[name] = xr.Variable(dims, rows, encoding={"_FillValue": None, **encoding})
    memory: dict[str, Any] = {}
    xr.Dataset(changed).to_zarr(MemoryStore(memory), mode="w-", zarr_format=3, consolidated=False)
    for key, payload in sorted(memory.items()):
        name, _, index = key.partition("/c/")
        if index:
            row, *others = map(int, index.split("/"))
            write_chunk(path, name, (row + first[name], *others), payload.to_bytes())


def _update_consolidated(path: Path, documents: Mapping[str, dict[str, Any]]) -> None:
    root = read_json(path / METADATA)
    gathered = (root.get("consolidated_metadata") or {}).get("metadata")
    if gathered is None:
        consolidate(path)
    elif any(gathered.get(name) != document for name, document in documents.items()):
        gathered.update(documents)
        write_metadata(path, root)


def consolidate(path: Path) -> None:
    """Gather all metadata in the root document, so that xarray opens the store in one read and without a warning."""
    import zarr

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata is currently not part")
        zarr.consolidate_metadata(str(path), zarr_format=3)
    root = read_json(Path(path) / METADATA)
    gathered = root["consolidated_metadata"]["metadata"]
    root["consolidated_metadata"]["metadata"] = dict(sorted(gathered.items()))  # not in the order of the folder
    write_metadata(Path(path), root)


def write_region(array: "zarr.Array[Any]", region: tuple[slice, ...], data: np.ndarray) -> None:
    """Write one region that covers whole chunks (whole shards, where there are any), so that writers never meet.

    Parameters
    ----------
    array : open Zarr array
    region : one slice per dimension, step 1; its ends lie on chunk borders or on the end of the array
    data : values, of the shape of the region

    Raises
    ------
    ShapeError -- the region is not whole chunks, leaves the array, or differs from the data in shape
    StoreError -- the place cannot be written or is full
    """
    unit = array.shards or array.chunks
    if len(region) != array.ndim:
        raise ShapeError(
            f"region has {len(region)} slices; expected {array.ndim} for {array.name!r}; give one per dimension"
        )
    shape = []
    for axis, (part, size, step) in enumerate(zip(region, array.shape, unit, strict=True)):
        start = 0 if part.start is None else part.start
        stop = size if part.stop is None else part.stop
        whole = start % step == 0 and (stop % step == 0 or stop == size)
        if not (part.step in {None, 1} and 0 <= start < stop <= size and whole):
            raise ShapeError(
                f"region {start}:{stop} of axis {axis} of {array.name!r} is not whole chunks of {step} in 0:{size}; "
                f"expected ends at multiples of {step} or at {size}; write whole chunks"
            )
        shape.append(stop - start)
    if np.shape(data) != tuple(shape):
        raise ShapeError(f"data of shape {np.shape(data)} for a region of shape {tuple(shape)}; expected equal shapes")
    try:
        array[region] = data
    except OSError as error:
        raise store_error("write", Path(str(array.store_path)), error) from error


def _chunk_path(store: Path, array: str, index: tuple[int, ...]) -> Path:
    return Path(store, array, "c", *map(str, index))


def write_chunk(store: Path, array: str, index: tuple[int, ...], payload: bytes) -> None:
    """Put the bytes of one chunk (or shard), already encoded, in place, atomically and durably.

    Raises
    ------
    StoreError -- the place cannot be written or is full; the old chunk is then still there
    """
    path = _chunk_path(store, array, index)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error("create", path.parent, error) from error
    write_bytes(path, payload)


def missing_chunks(store: Path, array: str) -> list[tuple[int, ...]]:
    """Indices of chunks that an array compressed by ``headrace.spacetime`` should have and has not; [] for others."""
    document = _metadata(Path(store), array)
    if not any(codec.get("name") == "headrace.spacetime" for codec in document.get("codecs", ())):
        return []
    sizes = document["chunk_grid"]["configuration"]["chunk_shape"]
    counts = (-(-n // size) for n, size in zip(document["shape"], sizes, strict=True))
    return [index for index in np.ndindex(*counts) if chunk_size(store, array, index) is None]


def chunk_size(store: Path, array: str, index: tuple[int, ...]) -> int | None:
    """Encoded bytes of one chunk, by its file; None when it is not there."""
    try:
        return _chunk_path(store, array, index).stat().st_size
    except OSError:
        return None


def read_chunk(store: Path, array: str, index: tuple[int, ...]) -> bytes | None:
    """Encoded bytes of one chunk; None when it was not written."""
    path = _chunk_path(store, array, index)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise store_error("read", path, error) from error


def store_digest(path: Path) -> str:
    """SHA-256 (hex) over names and contents of all files but temporary ones: equal stores, equal text."""
    digest = hashlib.sha256()
    files = [file for file in Path(path).rglob("*") if file.is_file() and not file.name.endswith((TEMPORARY, PARTIAL))]
    for name, file in sorted((file.relative_to(path).as_posix(), file) for file in files):
        content = file.read_bytes()
        digest.update(f"{len(name.encode())} {name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
