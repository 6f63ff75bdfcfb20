"""Decode a compressed store, or a part of it, into NetCDF, HDF5 or Zarr.

One unit of work: the store is read chunk by chunk and written block by block, so memory does not grow with it, and the
target appears whole or not at all.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from headrace.flows._base import (
    COMMAND,
    FlowParams,
    Notify,
    Plan,
    Progress,
    Report,
    Submit,
    Table,
    UnitResults,
    ignore,
    inline,
    lazy_flow,
)
from headrace.storage.errors import HeadraceError, ParameterError, SourceError
from headrace.storage.provenance import fingerprint
from headrace.storage.runs import Run, find_run, list_runs
from headrace.tasks.insitu.restore import Part, RestoreJob, RestoreResult, choose
from headrace.tasks.insitu.restore import restore as restore_store

#: Raised when the bytes of a result change.
VERSION = 1
#: Name of a run that is made on the spot, by ``compress --smoke``.
SMOKE_RUN = "smoke"
UNIT = "restore"


class Params(FlowParams):
    """Parameters of ``restore``."""

    VOLATILE: ClassVar[frozenset[str]] = FlowParams.VOLATILE | {"overwrite"}

    run: str = Field(
        default="last",
        description="what to restore: key of a compress run or the beginning of it, its folder, the path of a store, "
        "last (the latest compress run below out), or smoke (a small one made on the spot)",
    )
    to: Path | None = Field(
        default=None,
        description="target file; its ending chooses the format: .nc, .h5, .hdf5 or .zarr; default: restored.nc in the "
        "run folder of this restore",
    )
    format: Literal["nc", "h5", "zarr"] = Field(default="nc", description="format of the default target")
    variables: tuple[str, ...] | None = Field(default=None, description="variables to restore; default: all compressed")
    time: str | None = Field(
        default=None,
        description="part of the time axis: whole numbers are positions (5, 0:10, ::4; the end is left out), all else "
        "values of the coordinate (0.5:2.0, 2001-01:2002-06; both ends belong to it); default: all",
    )
    select: dict[str, str] = Field(
        default_factory=dict, description="parts of other dimensions, each as DIM=PART, read like the part of time"
    )
    overwrite: bool = Field(default=False, description="replace the target if it is there")

    @classmethod
    def smoke(cls) -> Self:
        """Return parameters that make a small store and restore the first frames of it."""
        return cls(run=SMOKE_RUN, time="0:4")


def plan(params: Params) -> Plan:
    """Say what a run would do, from metadata only."""
    if params.run == SMOKE_RUN:
        return Plan("restore", 1, 0, None, 0, "cpu", {"source": "a small compress run, made first"})
    store = _find_store(params)
    part = choose(_job(params, store, params.to or Path(f"restored.{params.format}")))
    sizes = {name: part.dataset[name].nbytes for name in part.variables}
    chunks = {name: part.dataset[name].data.chunksize for name in part.variables if part.dataset[name].chunks}
    return Plan(
        flow="restore",
        units=1,
        bytes_in=sum(file.stat().st_size for file in store.rglob("*") if file.is_file()),
        bytes_out=sum(sizes.values()),
        peak_memory=int(2e8) + 4 * max(_block_bytes(part, name) for name in part.variables),
        device="cpu",
        details={
            "store": str(store),
            "target": str(params.to or f"restored.{params.format} in the run folder"),
            "variables": ", ".join(f"{name} {part.dataset[name].shape}" for name in part.variables),
            "blocks": ", ".join(f"{name} {chunk}" for name, chunk in chunks.items()) or "whole",
            **{f"part of {dim}": text for dim, text in part.ranges.items()},
        },
        template=str(part.dataset),
    )


def run(params: Params, submit: Submit = inline, notify: Notify = ignore) -> Report:
    """Restore, and report what was written.

    Raises
    ------
    HeadraceError -- what is wrong with the run, the part asked for or the target
    UnitError -- a chunk is damaged or the target cannot be written
    """
    store = _smoke_store(params, submit, notify) if params.run == SMOKE_RUN else _find_store(params)
    choose(_job(params, store, params.to or Path(f"restored.{params.format}")))  # errors come before the run folder
    fields = params.model_dump(mode="json") | {"to": params.to and str(params.to.absolute()), "run": str(store)}
    with Run.open(
        params.out,
        "restore",
        fields,
        inputs={"store": fingerprint(store)},
        version=VERSION,
        volatile=params.VOLATILE,
        fresh=params.fresh,
        command=COMMAND.get(),
        seed=params.seed,
    ) as out:
        target = (params.to or out.path / f"restored.{params.format}").absolute()
        _check_target(target, store)
        if out.complete and target.exists() and out.record.get("target_state") == fingerprint(target):
            return _report(out.read_report(), out)
        notify(Progress(0, 1, "stores"))
        try:
            result = _restore(params, store, target, submit, out)
        except HeadraceError as error:
            if error.exit_status == HeadraceError.exit_status and not out.resumed:
                out.discard()  # the target was wrong from the start: leave nothing behind
            raise
        notify(Progress(1, 1, "stores"))
        content = _content(result, store, target)
        out.write_report(content)
        out.update(target_state=fingerprint(target), target_was_free=False)
        out.finish()
        return _report(content, out)


def _check_target(target: Path, store: Path) -> None:
    """Refuse to write over or into the store that is read, or the run it belongs to."""
    real, source = target.resolve(), store.resolve()
    run = source.parent if (source.parent / "run.json").is_file() else source
    if real == run or run in real.parents or real in source.parents:
        raise ParameterError(f"the target {target} lies in or around what is restored, {run}; choose another place")


def _restore(params: Params, store: Path, target: Path, submit: Submit, out: Run) -> RestoreResult:
    """Run the one unit. A target that a killed session of this run may have left is ours to replace."""
    written = out.record.get("target_state")
    ours = bool(out.record.get("target_was_free")) or (target.exists() and written == fingerprint(target))
    if not ours and not target.exists():
        out.update(target_was_free=True)
        ours = True
    results = UnitResults()
    job = _job(params, store, target, overwrite=params.overwrite or ours)
    result = results.take(UNIT, submit(restore_store, job))
    results.check()
    assert result is not None  # noqa: S101 - check() raised otherwise
    return result


def _job(params: Params, store: Path, target: Path, *, overwrite: bool = False) -> RestoreJob:
    return RestoreJob(str(store), str(target), params.variables, params.time, params.select, overwrite)


def _find_store(params: Params) -> Path:
    """Path of the store that ``run`` names.

    Raises
    ------
    SourceError -- no such run or store
    """
    path = Path(params.run)
    if (path / "zarr.json").is_file() or path.is_file():
        return path.absolute()
    if params.run == "last":
        runs = [run for run in list_runs(params.out) if run.flow == "compress"]
        if not runs:
            raise SourceError(
                f"no compress run in {params.out}; expected one to restore; name a run or a store with --run"
            )
        return runs[-1].path / "data.zarr"
    store = find_run(params.out, params.run).path / "data.zarr"
    if not store.exists():
        raise SourceError(f"run {store.parent} has no data yet; expected {store}; finish that run first")
    return store


def _smoke_store(params: Params, submit: Submit, notify: Notify) -> Path:
    from headrace.flows import compress

    small = compress.Params.smoke().model_copy(update={"out": params.out, "executor": params.executor})
    return compress.run(small, submit, notify).path.absolute() / "data.zarr"


def _block_bytes(part: Part, name: str) -> int:
    variable = part.dataset[name]
    points = 1
    for size in variable.data.chunksize if variable.chunks else variable.shape:
        points *= size
    return int(points * variable.dtype.itemsize)


def _content(result: RestoreResult, store: Path, target: Path) -> dict[str, Any]:
    """Build the content of ``report.json``."""
    size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
    rows = [[dim, text] for dim, text in result.ranges.items()]
    parts = Table(
        "Parts", ("dimension", "taken"), rows, "Dimensions that were cut; of all others everything was taken."
    )
    return {
        "title": f"{', '.join(result.variables)} restored to {target.name}",
        "metrics": {
            "frames": float(result.frames),
            "variables": float(len(result.variables)),
            "bytes_store": float(size),
            "bytes_target": float(result.bytes),
        },
        "tables": [asdict(parts)] if rows else [],
        "provenance": {"store": str(store), "target": str(target)},
    }


def _report(content: Mapping[str, Any], out: Run) -> Report:
    tables = [Table(**{**table, "columns": tuple(table["columns"])}) for table in content["tables"]]
    return Report(content["title"], dict(content["metrics"]), tables, [], dict(content["provenance"]), out.path)


__getattr__ = lazy_flow(__name__)
