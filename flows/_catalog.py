"""Which flows exist, found without importing any of them.

A flow is a module of this folder whose name does not start with an underscore and is none of the tools in
``NOT_FLOWS``. Its name on the command line is the module name with dashes; its one-line summary is the first
line of its docstring, read with ``ast``, so that ``headrace list`` imports no flow and none of its libraries.
"""

import ast
import importlib
from pathlib import Path
from types import ModuleType

from headrace.storage.errors import ParameterError

FOLDER = Path(__file__).parent
NOT_FLOWS = frozenset({"cli", "benchmarks"})


def _is_flow(path: Path) -> bool:
    return path.suffix == ".py" and not path.stem.startswith("_") and path.stem not in NOT_FLOWS


FLOWS: tuple[str, ...] = tuple(sorted(path.stem for path in FOLDER.iterdir() if _is_flow(path)))
"""Module names of all flows, sorted."""


def command_name(flow: str) -> str:
    """Name of a flow on the command line: ``solve_pde`` -> ``solve-pde``."""
    return flow.replace("_", "-")


def summary(flow: str) -> str:
    """First line of the flow module's docstring, without importing the module."""
    doc = ast.get_docstring(ast.parse((FOLDER / f"{flow}.py").read_text(encoding="utf-8"))) or ""
    return doc.partition("\n")[0]


def find_flow(name: str) -> str:
    """Module name of the flow a user typed, dashes or underscores.

    Raises
    ------
    ParameterError
        No such flow; names the nearest one and lists all.
    """
    flow = name.replace("-", "_")
    if flow in FLOWS:
        return flow
    from difflib import get_close_matches

    known = [command_name(each) for each in FLOWS]
    near = get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "`headrace list` describes them."
    raise ParameterError(f"There is no flow {name!r}; expected one of: {', '.join(known)}. {hint}")


def load_flow(name: str) -> ModuleType:
    """Import the module of a flow: it has ``Params``, ``plan``, ``run`` and the flow itself.

    Raises
    ------
    ParameterError
        No such flow.
    """
    return importlib.import_module(f"headrace.flows.{find_flow(name)}")
