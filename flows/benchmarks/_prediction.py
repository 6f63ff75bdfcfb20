"""Frames predicted with the flow and with the solver, against the best codec without prediction."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.flows.benchmarks._ratios import snapshots
from headrace.flows.compress import Params, run
from headrace.storage.codecs.bounds import Bound, FrameStatistics
from headrace.storage.codecs.groups import decode_group, encode_group
from headrace.storage.codecs.layout import unpack
from headrace.storage.codecs.plain import LOSSY
from headrace.storage.codecs.predictors import Predictor, PredictorSpec
from headrace.tasks.simulate.kolmogorov import KolmogorovFlow

INTERVAL = 0.025

#: (record kind, spacing in frames, frames, relative L2, least ratio, least multiple of the best codec alone).
REQUIRED: tuple[tuple[str, int, int, float, float, float], ...] = (
    ("A", 1, 16, 1e-2, 180.0, 7.0),
    ("A", 1, 16, 1e-3, 0.0, 1.6),
    ("A", 8, 3, 1e-2, 0.0, 1.8),
    ("S", 1, 16, 1e-2, 340.0, 0.0),
    ("S", 1, 16, 1e-3, 100.0, 0.0),
    ("S", 1, 16, 1e-4, 58.0, 0.0),
)
NAMES = {"A": "advected", "S": "solver"}


def prediction(size: str) -> Iterator[dict[str, Any]]:
    """Compress consecutive frames of the forced run with each predictor, and check what comes back."""
    full = size == "full"
    frames = snapshots(256, 617)[600:] if full else snapshots(64, 41)[24:]
    specs = KolmogorovFlow(frames.shape[-1]).predictors()
    for kind, spacing, count, level, least, multiple in REQUIRED:
        chosen = frames[::spacing][:count]
        name, parameters = specs[kind]
        predictor = PredictorSpec.of(kind, name, **parameters).load()
        ratio, bad = _ratio(chosen, level, spacing, {kind: predictor})
        alone = max(_intra(chosen, level, codec) for codec in LOSSY)
        wanted = [f"ratio >= {least:g}"] * bool(least) + [f">= {multiple:g} x best codec alone"] * bool(multiple)
        reached = ratio >= least and ratio >= multiple * alone
        yield {
            "name": f"{NAMES[kind]} prediction, {len(chosen)} frames {spacing * INTERVAL:g} apart, rel-L2 {level:g}",
            "required": ", ".join(wanted) + ", 0 violations" if full else "0 violations",
            "measured": round(ratio, 1),
            "ok": bad == 0 and (reached or not full),
            "note": f"best codec alone {alone:.1f}, {ratio / alone:.1f} x; {bad} violations",
        }


def pipeline(size: str) -> Iterator[dict[str, Any]]:
    """Run the whole flow with solver prediction: raw bytes offered over bytes on disk."""
    frames, grid = (600, 256) if size == "full" else (60, 48)
    with TemporaryDirectory() as folder:
        params = Params(
            out=Path(folder), frames=frames, grid=grid, bound=1e-2, bound_mode="l2", predict="solver", executor="inline"
        )
        found = run(params).metrics
    curve = found.get("metric_error.enstrophy", 0.0)
    yield {
        "name": f"whole pipeline, predict=solver, {frames} frames of {grid}x{grid}, rel-L2 1e-2",
        "required": "ratio >= 500, curve within 1e-3" if size == "full" else "curve within 1e-3",
        "measured": round(found["total_ratio"], 1),
        "ok": curve <= 1e-3 and found["violations"] == 0 and (found["total_ratio"] >= 500 or size != "full"),
        "note": f"{found['kept']:.0f} of {found['offered']:.0f} frames kept; curve within {curve:.1e}; published 435",
    }


def _ratio(
    frames: NDArray[np.float32], level: float, spacing: int, predictors: dict[str, Predictor]
) -> tuple[float, int]:
    limits = [Bound("l2", level).limit(FrameStatistics.of(frame)) for frame in frames]
    times = [INTERVAL * spacing * k for k in range(len(frames))]
    group = encode_group(frames, limits, measure="rms", times=times, predictors=predictors)
    decoded = decode_group(unpack(group.payload), predictors=predictors.get).astype(np.float64)
    errors = np.sqrt(np.mean(np.square(decoded - frames), axis=(1, 2)))
    return frames.nbytes / len(group.payload), int((errors > limits).sum())


def _intra(frames: NDArray[np.float32], level: float, codec: str) -> float:
    """Ratio of one codec on each frame alone."""
    limits = [Bound("l2", level).limit(FrameStatistics.of(frame)) for frame in frames]
    sizes = [
        len(encode_group(frame[None], [limit], measure="rms", codecs=(codec,)).payload)
        for frame, limit in zip(frames, limits, strict=True)
    ]
    return frames.nbytes / sum(sizes)
