"""Frames in, closed groups out: cutting, sampling, saving and going on."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from headrace.storage.codecs.bounds import Bound
from headrace.storage.errors import ParameterError, ShapeError
from headrace.tasks.insitu.encode import blocks_of
from headrace.tasks.insitu.gates import Gate, KeepAll, SwingingDoor
from headrace.tasks.insitu.sources import SimulationSource, Snapshot
from headrace.tasks.insitu.stream import (
    SAMPLES,
    Layout,
    Stream,
    choose_block,
    choose_group_size,
    choose_watches,
    make_gate,
    sample_stride,
)


def make_stream(folder: Path, frames: int = 50, *, gate: Gate | None = None, group_size: int = 4) -> Stream:
    source = SimulationSource("kolmogorov-forced", frames=frames, grid=32)
    layout = Layout((32, 32), (16, 32), Bound("abs", 0.1), 1)
    watches = choose_watches(["enstrophy"], source.variables)
    return Stream(folder, source, gate or KeepAll(), watches, {"vorticity": layout}, group_size, ("sz3",))


def test_groups_hold_all_kept_frames_in_order(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, frames=11)
    originals = [s.fields["vorticity"] for s in SimulationSource("kolmogorov-forced", frames=11, grid=32).snapshots()]
    groups = list(stream.closed_groups())
    assert [(g.number, g.first, g.frames) for g in groups] == [(0, 0, 4), (1, 4, 4), (2, 8, 3)]
    spooled = np.concatenate([np.load(path) for g in groups for path in g.spooled])
    np.testing.assert_array_equal(spooled, np.stack(originals))
    assert [job.unit for job in groups[1].jobs] == ["vorticity.1.0.0", "vorticity.1.1.0"]
    assert [job.region for job in groups[1].jobs] == [((0, 16), (0, 32)), ((16, 32), (0, 32))]
    assert all(job.limits == (0.1,) * 4 for job in groups[1].jobs)


def test_memory_holds_one_group(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, frames=40)
    for group in stream.closed_groups():
        assert len(stream._open) == 0
        group.drop_spool()
        assert not list((tmp_path / "spool").iterdir())


@pytest.mark.parametrize("stop", [1, 2, 4])
@pytest.mark.parametrize("kind", ["all", "swinging-door"])
def test_a_restored_stream_goes_on_bit_for_bit(tmp_path: Path, stop: int, kind: str) -> None:
    def gate() -> Gate:
        return make_gate(kind, choose_watches(["enstrophy"], ["vorticity"]), 0.01, 8, 0.5)

    def content(groups: Iterator[Any]) -> list[tuple[Any, ...]]:
        return [(g.number, g.first, g.frames, [np.load(p).tobytes() for p in g.spooled]) for g in groups]

    whole = make_stream(tmp_path / "a", gate=gate())
    whole.run.mkdir()
    expected = content(whole.closed_groups())
    first = make_stream(tmp_path / "b", gate=gate())
    first.run.mkdir()
    for _ in islice(first.closed_groups(), stop):
        saved = first.state()
    second = make_stream(tmp_path / "b", gate=gate())
    second.restore(*saved)
    assert content(second.closed_groups()) == expected[stop:]
    assert second.kept_times == whole.kept_times
    assert second.metrics == whole.metrics
    assert second.offered_times == whole.offered_times


@pytest.mark.parametrize("number", [0, 1, 7, 8, 100, 1023])
def test_samples_are_few_and_evenly_spaced(number: int) -> None:
    kept: set[int] = set()
    for k in range(number + 1):
        stride = sample_stride(k)
        if k % stride == 0:
            kept.add(k)
        kept = {each for each in kept if each % stride == 0}
    assert len(kept) <= SAMPLES
    assert len(kept) >= min(number + 1, SAMPLES // 2)
    assert len(set(np.diff(sorted(kept)))) <= 1


def test_sample_files_follow(tmp_path: Path) -> None:
    list(make_stream(tmp_path, frames=20).closed_groups())
    numbers = sorted(int(path.name.split(".")[-2]) for path in (tmp_path / "samples").iterdir())
    assert numbers == [0, 4, 8, 12, 16]


class Scripted:
    """A source that yields what it is given."""

    name, variables, time_dim, frames, seconds = "scripted", ("u",), "time", 3, 0.0

    def __init__(self, fields: Sequence[np.ndarray], times: Sequence[float]) -> None:
        self.fields, self.times = fields, times
        self.inputs: dict[str, str] = {}
        self.template = xr.Dataset({"u": (("time", "x"), np.empty((0, 5), np.float32))})

    def snapshots(self, state: Mapping[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
        del state
        for k, (field, time) in enumerate(zip(self.fields, self.times, strict=True)):
            yield Snapshot(k, time, {"u": field})

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def along_time(self, kept: Sequence[int], times: Sequence[float]) -> dict[str, np.ndarray]:
        raise NotImplementedError


def scripted(folder: Path, fields: Sequence[np.ndarray], times: Sequence[float]) -> Stream:
    layouts = {"u": Layout((5,), (5,), Bound("abs", 0.1), 1)}
    return Stream(folder, Scripted(fields, times), KeepAll(), (), layouts, 2, ("sz3",))


def test_changed_grid_is_refused(tmp_path: Path) -> None:
    stream = scripted(tmp_path, [np.zeros(5, "f4"), np.zeros(6, "f4")], [0.0, 1.0])
    with pytest.raises(ShapeError, match=r"'u' has shape \(6,\) and dtype float32 at t=1; expected \(5,\)"):
        list(stream.closed_groups())


def test_rewound_time_is_refused(tmp_path: Path) -> None:
    stream = scripted(tmp_path, [np.zeros(5, "f4")] * 2, [1.0, 1.0])
    with pytest.raises(ParameterError, match="increasing times"):
        list(stream.closed_groups())


@pytest.mark.parametrize(
    ("shape", "largest", "block"),
    [
        ((256, 256), None, (256, 256)),
        ((4096, 4096), None, (2048, 2048)),
        ((300, 2000, 2000), None, (150, 125, 200)),
        ((100, 30), 64, (64, 30)),
        ((), None, ()),
    ],
)
def test_blocks(shape: tuple[int, ...], largest: int | None, block: tuple[int, ...]) -> None:
    chosen = choose_block(shape, largest)
    if len(shape) < 3:
        assert chosen == block
    assert np.prod(chosen, dtype=int) <= 2**22
    cover = np.zeros(shape, int)
    for _, region in blocks_of(shape, chosen) if np.prod(shape, dtype=int) < 1e7 else []:
        cover[tuple(slice(a, b) for a, b in region)] += 1
    assert np.prod(shape, dtype=int) >= 1e7 or (cover == 1).all()


def test_small_frames_make_long_groups() -> None:
    assert choose_group_size(256 * 256) == 16
    assert choose_group_size(512) == 128
    assert choose_group_size(1) == 65536


def test_gates_and_metrics_by_name() -> None:
    watches = choose_watches(["mean", "rms"], ["u", "v"])
    assert [w.label for w in watches] == ["mean_u", "rms_u", "mean_v", "rms_v"]
    assert isinstance(make_gate("swinging-door", watches, 0.1, 8, None), SwingingDoor)
    with pytest.raises(ParameterError, match="metric 'entropy' is unknown"):
        choose_watches(["entropy"], ["u"])
    with pytest.raises(ParameterError, match="gate 'door' is unknown"):
        make_gate("door", watches, 0.1, 8, None)
    with pytest.raises(ParameterError, match="no metric to watch"):
        make_gate("swinging-door", (), 0.1, 8, None)
