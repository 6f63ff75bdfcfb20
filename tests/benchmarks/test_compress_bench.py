"""Every section of the benchmark runs once, in its small size, so that it cannot rot.

What a section says of speed and memory is not asserted here; what it says of bytes and bounds is. The sections on
kills and equal bytes have tests of their own.
"""

import pytest

from headrace.flows.benchmarks import FIELDS, measure
from headrace.flows.benchmarks.compress import SECTIONS

TIMED = ("CPU", "peak memory")


@pytest.mark.parametrize("section", [name for name in SECTIONS if name not in {"SIGKILL", "store from"}])
def test_section_runs_and_holds(section: str) -> None:
    figures = measure("compress", size="small", only=section)
    assert figures
    for figure in figures:
        assert tuple(figure) == FIELDS
        if not figure["name"].startswith(TIMED):
            assert figure["ok"], figure


def test_sections_have_distinct_names_that_find_their_figures() -> None:
    names = list(SECTIONS)
    assert len({name for name in names if sum(name in other for other in names) == 1}) == len(names)
