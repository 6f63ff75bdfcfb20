"""The store that ``compress`` fills: its template, and how it grows while groups are finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.arrays import consolidate, create_store, grow_time
from headrace.storage.codecs.spacetime import SpaceTimeCodec
from headrace.storage.errors import ParameterError
from headrace.storage.files import write_bytes
from headrace.tasks.insitu.stream import Layout, Stream, Watch

if TYPE_CHECKING:
    import xarray as xr

#: Chunk of the arrays along ``offered``.
OFFERED_CHUNK = 65536


def store_template(template: xr.Dataset, layouts: Mapping[str, Layout], watches: Sequence[Watch]) -> xr.Dataset:
    """Return the empty result: the source's variables along kept time, and the audit trail along ``offered``.

    Parameters
    ----------
    template : of the source
    layouts : of the variables
    watches : metrics stored for every frame offered

    Returns
    -------
    Dataset

    Raises
    ------
    ParameterError -- the source has a variable or dimension of a name that is needed here
    """
    trail = {
        "offered_time": (np.float64, {"long_name": "time of every frame offered"}),
        "offered_kept": (np.bool_, {"long_name": "whether the frame was kept"}),
        **{
            f"metric_{w.label}": (np.float64, {"long_name": f"{w.metric} of {w.variable} at every frame offered"})
            for w in watches
        },
    }
    taken = sorted({*trail, "offered"} & {*map(str, template.variables), *map(str, template.dims)})
    if taken:
        raise ParameterError(
            f"the source has {taken[0]!r}, a name the store needs for itself; rename it or leave it out"
        )
    out = template.assign({name: (("offered",), np.empty(0, dtype), attrs) for name, (dtype, attrs) in trail.items()})
    for name, layout in layouts.items():
        out[name].attrs.update(headrace_bound_mode=layout.bound.mode, headrace_bound=layout.bound.value)
    return out


def create_target(
    path: Path,
    template: xr.Dataset,
    layouts: Mapping[str, Layout],
    *,
    group_size: int,
    codecs: tuple[str, ...],
    history: str,
) -> None:
    """Create the store from ``store_template``'s template.

    Parameters
    ----------
    path : of the store, must not exist
    template : from ``store_template``
    layouts : of the variables
    group_size : frames per chunk
    codecs : lossy codecs the encoder may choose from
    history : line for the global attribute of that name

    Raises
    ------
    StoreError, ParameterError -- see ``headrace.storage.arrays.create_store``
    """
    encodings: dict[str, dict[str, Any]] = {}
    for name in map(str, template.data_vars):
        if template[name].dims == ("offered",):
            encodings[name] = {"chunks": (OFFERED_CHUNK,)}
    for name, layout in layouts.items():
        codec = SpaceTimeCodec(layout.bound.mode, layout.bound.value, codecs, layout.stream, layout.predictors)
        chunks = (group_size, *layout.block)
        encodings[name] = {"chunks": chunks, "serializer": codec, "compressors": None, "filters": None}
    earlier = str(template.attrs.get("history", ""))
    attrs = {"Conventions": "CF-1.11", "history": f"{earlier}\n{history}".strip()}
    create_store(path, template, encodings, attrs)


def publish(path: Path, stream: Stream, frames: int) -> None:
    """Let readers see the first ``frames`` kept frames, whose groups are all in place.

    Parameters
    ----------
    path : of the store
    stream : the pass that produced them
    frames : number of kept frames whose chunks are written

    Raises
    ------
    StoreError -- the store cannot be written
    """
    coords = stream.source.along_time(stream.kept_indices[:frames], stream.kept_times[:frames])
    grow_time(path, dict.fromkeys(stream.layouts, frames), coords)


def complete(path: Path, stream: Stream) -> None:
    """Publish everything: all kept frames, the audit trail of the offered ones, consolidated metadata.

    Parameters
    ----------
    path : of the store
    stream : the finished pass

    Raises
    ------
    StoreError -- the store cannot be written
    """
    publish(path, stream, len(stream.kept_times))
    grow_time(path, {}, audit_trail(stream))
    consolidate(path)


def audit_trail(stream: Stream) -> dict[str, NDArray[Any]]:
    """Return time, kept flag and metrics of every frame offered, by the names they have in the store."""
    kept = np.zeros(len(stream.offered_times), bool)
    kept[stream.kept_indices] = True
    table = np.asarray(stream.metrics, np.float64).reshape(len(kept), len(stream.watches))
    columns = {f"metric_{watch.label}": table[:, k] for k, watch in enumerate(stream.watches)}
    return {"offered_time": np.asarray(stream.offered_times), "offered_kept": kept, **columns}


def write_trail(path: Path, stream: Stream) -> None:
    """Write the audit trail as a table of comma-separated values, one row per frame offered.

    Raises
    ------
    StoreError -- the file cannot be written
    """
    columns = audit_trail(stream)
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    lines = [",".join(columns), *(",".join(str(value) for value in row) for row in rows)]
    write_bytes(path, ("\n".join(lines) + "\n").encode())
