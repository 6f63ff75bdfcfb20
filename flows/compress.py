"""Stream a simulation or a file into an error-bounded compressed Zarr store.

Frames pass a gate that drops those a straight line can replace. Kept frames collect in groups; a full group of one
block of one variable is one unit of work, encoded anywhere, and one chunk of the store. However long the source, no
more than a few groups are in memory or on the way.
"""

import logging
import math
import time
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator

from headrace.flows._base import (
    COMMAND,
    Figure,
    FlowParams,
    Notify,
    Plan,
    Progress,
    Report,
    Submit,
    Table,
    ignore,
    inline,
    lazy_flow,
)
from headrace.flows._flight import IN_FLIGHT, Flight, check_complete, finished_units, totals
from headrace.flows._report import load_report, save_report
from headrace.gpu.backend import parse_device
from headrace.storage.codecs.bounds import Bound
from headrace.storage.codecs.plain import LOSSY
from headrace.storage.codecs.predictors import PredictorSpec
from headrace.storage.errors import HeadraceError, ParameterError, StoreError
from headrace.storage.files import remove
from headrace.storage.runs import Run, run_identity, run_key
from headrace.tasks.insitu.sources import DEFAULT_METRICS, FILE_METRICS, FileSource, SimulationSource, open_source
from headrace.tasks.insitu.stream import (
    Layout,
    Stream,
    Watch,
    choose_block,
    choose_group_size,
    choose_watches,
    make_gate,
    stream_number,
)
from headrace.tasks.insitu.summary import METRIC_NAMES, summarise
from headrace.tasks.insitu.target import complete, create_target, store_template, write_trail
from headrace.tasks.simulate import SIMULATIONS

logger = logging.getLogger(__name__)

#: Raised when the bytes of a result change.
VERSION = 1


class Params(FlowParams):
    """Parameters of ``compress``."""

    source: str = Field(
        default="kolmogorov-forced",
        description=f"what to compress: a built-in simulation ({', '.join(SIMULATIONS)}) or the path of a Zarr store, "
        "NetCDF or HDF5 file",
    )
    variables: tuple[str, ...] | None = Field(
        default=None, description="variables to compress; default: every numeric variable with a time axis"
    )
    time_dim: str | None = Field(default=None, description="name of a file's time dimension; default: found by itself")
    group: str | None = Field(default=None, description="group inside a Zarr store or HDF5 file; default: the root")
    frames: int | None = Field(
        default=None, ge=1, description="most frames to offer; default: 600 of a simulation, all of a file"
    )
    grid: int | None = Field(
        default=None, ge=16, le=8192, description="grid points per side of a simulation; default: 256, KdV 512"
    )
    interval: float | None = Field(
        default=None, gt=0, description="time between frames of a simulation [s]; default: 0.025, KdV 0.05"
    )
    bound: float = Field(
        default=1e-3,
        gt=0,
        allow_inf_nan=False,
        description="largest error allowed, in the sense of bound_mode; default: a thousandth of the range",
    )
    bound_mode: Literal["abs", "rel", "l2"] = Field(
        default="rel",
        description="abs: every value within bound, in the field's unit; rel: within bound times the range of its "
        "whole frame; l2: root mean square error of each frame within bound times its root mean square",
    )
    field_bounds: tuple[str, ...] = Field(
        default=(), description="exceptions from bound for single variables, each as NAME=MODE:VALUE"
    )
    codecs: tuple[str, ...] = Field(
        default=LOSSY, min_length=1, description="lossy codecs to choose the smallest from, group by group"
    )
    predict: Literal["difference", "advected", "solver"] = Field(
        default="difference",
        description="what a frame may be predicted from, the strongest allowed: the frame before (difference), that "
        "frame moved with the flow (advected), or that frame advanced by the simulation itself (solver); readers "
        "compute the latter two again, within one group",
    )
    group_size: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="kept frames per group, which is a chunk, so the most that reading one frame decodes; default: 16, "
        "more where frames have fewer than 4096 values",
    )
    block: int | None = Field(
        default=None,
        ge=1,
        description="largest extent of a block along each axis [points]; default: whole frames up to 4 million values",
    )
    gate: Literal["auto", "all", "swinging-door"] = Field(
        default="auto",
        description="which frames to keep: all; those that straight lines through the metrics cannot replace "
        "(swinging-door); auto: swinging-door for simulations, all for files",
    )
    metrics: tuple[str, ...] | None = Field(
        default=None,
        description="metrics watched by the gate and stored for every frame offered (enstrophy, max_abs, mean, rms, "
        "roughness); default: enstrophy for Kolmogorov flow, roughness for KdV, rms for files",
    )
    gate_tolerance: float = Field(
        default=1e-3,
        gt=0,
        allow_inf_nan=False,
        description="largest error of a metric between kept frames, relative to its value",
    )
    max_gap: int = Field(default=64, ge=1, description="largest distance between kept frames [frames offered]")
    min_pearson: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="keep a frame when its correlation with the last kept one falls below this; default: do not look",
    )

    @classmethod
    def smoke(cls) -> Self:
        """Return parameters of a run of a second: coarse turbulence, one group."""
        return cls(grid=48, frames=32, interval=0.05)

    @field_validator("field_bounds")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            parse_bound(text)
        return value

    @field_validator("codecs")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in value if name not in LOSSY]
        if unknown:
            raise ParameterError(f"codec {unknown[0]!r} is unknown; expected some of {', '.join(LOSSY)}; correct it")
        return value


def parse_bound(text: str) -> tuple[str, Bound]:
    """Read ``NAME=MODE:VALUE``.

    Raises
    ------
    ParameterError -- not of that form, or no bound
    """
    name, equals, rest = text.partition("=")
    mode, colon, value = rest.partition(":")
    try:
        number = float(value)
    except ValueError:
        colon = ""
    if not (name and equals and colon):
        raise ParameterError(f"bound {text!r} is not readable; expected NAME=MODE:VALUE, such as vorticity=abs:0.1")
    return name, Bound(mode, number)  # type: ignore[arg-type]


def plan(params: Params) -> Plan:
    """Say what a run would do, from metadata only."""
    parse_device(params.device)
    source = _open(params)
    _watches(params, source)
    layouts = _layouts(params, source, "")
    group_size = _group_size(params, layouts)
    groups = -(-source.frames // group_size)
    blocks = sum(len(layout.blocks) for layout in layouts.values())
    frame_bytes = sum(
        int(source.template[name].dtype.itemsize * _points(layout.shape)) for name, layout in layouts.items()
    )
    kind = _gate_kind(params, source)
    first = next(iter(layouts.values()))
    return Plan(
        flow="compress",
        units=groups * blocks,
        bytes_in=source.frames * frame_bytes,
        bytes_out=None,
        peak_memory=int(2e8) + (IN_FLIGHT + 8) * group_size * frame_bytes,
        device="cpu",
        details={
            "source": source.name,
            "variables": ", ".join(f"{name} {layout.shape}" for name, layout in layouts.items()),
            "frames offered": str(source.frames),
            "gate": kind if kind == "all" else f"{kind}, tolerance {params.gate_tolerance:g} (units: an upper limit)",
            "bounds": ", ".join(f"{name}: {lay.bound.mode} {lay.bound.value:g}" for name, lay in layouts.items()),
            "chunk": f"{group_size} frames x {first.block}",
            "left out": ", ".join(source.left_out) or "nothing",
        },
        template=str(source.template),
        key=run_key(
            run_identity(
                "compress",
                _recorded(params, source),
                inputs=source.inputs,
                version=VERSION,
                volatile=params.VOLATILE,
            )
        ),
    )


def run(params: Params, submit: Submit = inline, notify: Notify = ignore) -> Report:
    """Stream, encode, store, and report.

    Raises
    ------
    HeadraceError -- what is wrong with the source, the parameters or the place to write to
    UnitError -- units failed; the run can be resumed
    """
    parse_device(params.device)  # encoding runs on the CPU; a device that is not there is refused all the same
    source = _open(params)
    watches = _watches(params, source)
    _layouts(params, source, "")  # bad bounds are found before anything is written
    with Run.open(
        params.out,
        "compress",
        _recorded(params, source),
        inputs=source.inputs,
        version=VERSION,
        volatile=params.VOLATILE,
        fresh=params.fresh,
        command=COMMAND.get(),
        seed=params.seed,
    ) as out:
        if out.complete:
            check_complete(out)
            return load_report(out)
        try:
            stream = _stream(params, source, watches, out)
            begin = time.perf_counter()
            _work(stream, out, submit, notify)
        except HeadraceError as error:
            if error.exit_status == HeadraceError.exit_status and not out.resumed and not out.markers():
                out.discard()  # the input was wrong from the start: leave nothing behind
            raise
        out.update(seconds_solver=source.seconds, seconds_work=time.perf_counter() - begin, **totals(out))
        notify(Progress(source.frames, source.frames, "frames", "writing the report"))
        write_trail(out.path / "metrics.csv", stream)
        report = _report(params, source, out)
        save_report(out, report, METRIC_NAMES)
        if report.metrics["violations"]:
            raise StoreError(
                f"{report.metrics['violations']:.0f} values of {out.data} are beyond the bound or not what was stored; "
                "expected 0; the disk may be faulty: start over with --fresh"
            )
        remove(out.path / "samples")  # raw frames that only the report needed
        out.finish()
        return report


def _work(stream: Stream, out: Run, submit: Submit, notify: Notify) -> None:
    """Drive the stream, keep at most ``IN_FLIGHT`` groups under way, publish in order."""
    flight = Flight(stream, out)
    total = stream.source.frames
    stream.seen = lambda offered, kept: notify(Progress(offered, total, "frames", f"{kept} kept"))
    for group in stream.closed_groups():
        flight.start(group, submit)
        while flight.waiting(IN_FLIGHT):
            flight.land()
    while flight.waiting(0):
        notify(Progress(total, total, "frames", f"finishing {flight.units} units"))
        flight.land()
    flight.results.check()
    complete(out.data, stream)
    out.drop_checkpoints(keep=())
    remove(out.path / "spool")


def _report(params: Params, source: SimulationSource | FileSource, out: Run) -> Report:
    try:
        summary = summarise(out.path)
    except (ValueError, ArithmeticError) as error:  # values that cannot be drawn must not fail a good run
        logger.warning("the report has no figures: %s", error)
        summary = summarise(out.path, pictures=False)
    record = out.record
    return Report(
        title=f"{Path(source.name).name} compressed at {params.bound_mode} {params.bound:g}",
        metrics=summary.metrics,
        tables=[Table(*table) for table in summary.tables],
        figures=[Figure(*figure) for figure in summary.figures],
        provenance={name: record.get(name) for name in ("key", "params", "versions", "git", "host", "seed", "started")},
        path=out.path,
    )


def _open(params: Params) -> SimulationSource | FileSource:
    return open_source(
        params.source,
        variables=params.variables,
        frames=params.frames,
        grid=params.grid,
        interval=params.interval,
        seed=params.seed,
        time_dim=params.time_dim,
        group=params.group,
    )


def _recorded(params: Params, source: SimulationSource | FileSource) -> dict[str, object]:
    """Parameters as the run records them: a path in full, whatever the working directory was."""
    return {**params.model_dump(mode="json"), "source": source.name}


def _stream(params: Params, source: SimulationSource | FileSource, watches: tuple[Watch, ...], out: Run) -> Stream:
    """Set up the pass over the source: create the store, or go on from the newest usable checkpoint."""
    layouts = _layouts(params, source, out.key)
    group_size = _group_size(params, layouts)
    if not out.data.exists():
        history = f"headrace run compress, run {out.key}"
        template = store_template(source.template, layouts, watches)
        create_target(out.data, template, layouts, group_size=group_size, codecs=params.codecs, history=history)
    remove(out.path / "spool")
    gate = make_gate(_gate_kind(params, source), watches, params.gate_tolerance, params.max_gap, params.min_pearson)
    stream = Stream(out.path, source, gate, watches, layouts, group_size, params.codecs)
    done = finished_units(out)
    for number in reversed(out.checkpoints()):
        units = {
            ".".join([name, *map(str, (group, *block))])
            for group in range(number)
            for name, layout in layouts.items()
            for block, _ in layout.blocks
        }
        if units <= done:
            stream.restore(*out.load_checkpoint(number))
            break
    return stream


def _layouts(params: Params, source: SimulationSource | FileSource, key: str) -> dict[str, Layout]:
    exceptions = dict(parse_bound(text) for text in params.field_bounds)
    unknown = sorted(set(exceptions) - set(source.variables))
    if unknown:
        raise ParameterError(
            f"field_bounds names {unknown[0]!r}; expected one of {', '.join(source.variables)}; correct the name"
        )
    layouts = {}
    for name in source.variables:
        shape = tuple(int(n) for n in source.template[name].shape[1:])
        bound = exceptions.get(name, Bound(params.bound_mode, params.bound))
        block = choose_block(shape, params.block)
        specs = _predictors(params, source) if block == shape else ()
        layouts[name] = Layout(shape, block, bound, stream_number(key, name), specs)
    return layouts


def _predictors(params: Params, source: SimulationSource | FileSource) -> tuple[PredictorSpec, ...]:
    allowed = {"advected": "A", "solver": "AS"}.get(params.predict, "")
    specs = tuple(spec for spec in source.predictors() if spec.kind in allowed)
    if allowed and not specs:
        raise ParameterError(
            f"predict={params.predict!r} found no way to predict frames of {source.name}; expected a built-in "
            "simulation that has one; choose difference"
        )
    return specs


def _group_size(params: Params, layouts: dict[str, Layout]) -> int:
    if params.group_size is not None:
        return params.group_size
    return choose_group_size(min(_points(layout.shape) for layout in layouts.values()))


def _watches(params: Params, source: SimulationSource | FileSource) -> tuple[Watch, ...]:
    default = DEFAULT_METRICS.get(source.name, FILE_METRICS)
    return choose_watches(default if params.metrics is None else params.metrics, source.variables)


def _gate_kind(params: Params, source: SimulationSource | FileSource) -> str:
    if params.gate != "auto":
        return params.gate
    return "swinging-door" if isinstance(source, SimulationSource) else "all"


def _points(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


__getattr__ = lazy_flow(__name__)
