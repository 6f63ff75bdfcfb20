"""Benchmarks that measure what a flow promises, each in ``benchmarks/<flow>.py`` as ``bench(size, only)``.

A figure is a dictionary ``{"name", "required", "measured", "ok", "note"}``. This module runs them, prints them side by
side and writes them as JSON; ``headrace bench FLOW`` is its command.
"""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.flows._catalog import command_name, find_flow
from headrace.flows._text import columns
from headrace.storage.errors import ParameterError, UnitError
from headrace.storage.files import write_json

Figure = Mapping[str, Any]

FIELDS = ("name", "required", "measured", "ok", "note")
SIZES = ("small", "full")


def measure(flow: str, *, size: str = "full", only: str | None = None) -> list[dict[str, Any]]:
    """Run the benchmarks of a flow.

    Parameters
    ----------
    flow
        Name of the flow.
    size : {"small", "full"}
        ``small`` runs in seconds and shows that the benchmark works; ``full`` is the evidence.
    only
        Only figures whose names contain this text.

    Returns
    -------
    list of dict
        ``name``, ``required``, ``measured``, ``ok`` and ``note`` of every figure.

    Raises
    ------
    ParameterError
        No such flow, size or figure, or a flow without benchmarks.
    """
    flow = find_flow(flow)
    if size not in SIZES:
        raise ParameterError(f"size {size!r} is unknown; expected one of: {', '.join(SIZES)}.")
    module = f"headrace.flows.benchmarks.{flow}"
    if importlib.util.find_spec(module) is None:
        raise ParameterError(f"Flow {command_name(flow)!r} has no benchmarks; expected a flow with a module {module}.")
    figures = [dict(figure) for figure in importlib.import_module(module).bench(size=size, only=only)]
    if not figures:
        raise ParameterError(f"No figure of {command_name(flow)!r} is called {only!r}; leave out --only to see all.")
    return figures


def table(figures: Sequence[Figure]) -> str:
    """Figures as lines: required and measured side by side."""
    header = ("figure", "required", "measured", "ok", "note")
    return columns(header, [[figure.get(name, "") for name in FIELDS] for figure in figures])


def write(path: Path, figures: Sequence[Figure]) -> None:
    """Write figures as a JSON list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, [{name: figure.get(name) for name in FIELDS} for figure in figures])


def check(figures: Sequence[Figure]) -> None:
    """Raise when a required figure is missed.

    Raises
    ------
    UnitError
        Names the figures.
    """
    missed = [str(figure["name"]) for figure in figures if not figure["ok"]]
    if missed:
        raise UnitError(f"{len(missed)} of {len(figures)} figures miss what is required: {', '.join(missed)}.")
