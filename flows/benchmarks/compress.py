"""What ``compress`` promises, measured: ratios, the bound, damage, equal bytes, kills, CPU and memory.

``headrace bench compress`` runs everything in about ten minutes on two cores; ``--only TEXT`` runs the sections whose
name contains the text.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.flows.benchmarks import _guarantee, _prediction, _process, _ratios

Section = Callable[[str], Iterator[dict[str, Any]]]

SECTIONS: Mapping[str, Section] = {
    "codec table": _ratios.codec_table,
    "default stream": _ratios.stream_against_single,
    "prediction": _prediction.prediction,
    "whole pipeline": _prediction.pipeline,
    "violations": _guarantee.violations,
    "damaged chunks": _guarantee.mutants,
    "store from": _process.identical,
    "SIGKILL": _process.killed,
    "CPU": _process.costs,
    "memory": _process.memory,
}


def bench(size: str = "full", only: str | None = None) -> Iterator[dict[str, Any]]:
    """Measure the figures, section by section.

    Parameters
    ----------
    size : {"small", "full"}
        ``small`` takes half a minute and shows that the benchmark works.
    only
        Only sections whose name contains this text.

    Yields
    ------
    dict
        ``name``, ``required``, ``measured``, ``ok``, ``note``.
    """
    for name, section in SECTIONS.items():
        if only is None or only in name:
            yield from section(size)
