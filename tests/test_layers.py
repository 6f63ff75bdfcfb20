"""The layers of the house: who may import whom, and how modules may be called."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "storage": {"storage"},
    "gpu": {"gpu"},
    "tasks": {"tasks", "gpu", "storage"},
    "flows": {"flows", "tasks", "gpu", "storage"},
}
ERRORS = "headrace.storage.errors"  # the error tree imports nothing, so the gpu layer may raise from it too
ENGINES = {"prefect", "prefect_dask", "dask_cuda", "dask_jobqueue", "distributed"}
ENGINE_HOMES = {
    "flows/_prefect.py": {"prefect", "prefect_dask"},
    "flows/_dask.py": {"distributed", "dask_cuda", "dask_jobqueue"},
}
FILES = sorted(path.relative_to(ROOT) for layer in ALLOWED for path in (ROOT / layer).rglob("*.py"))
STDLIB_NAME_KEPT = {Path("storage/codecs")}  # named after `zarr.codecs`, whose interface it implements


def imports(path: Path, *, at_import_time: bool = False) -> Iterator[str]:
    """Absolute names a file imports, also by ``import_module("...")``; a leading dot marks a relative import."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    nodes = _import_time_nodes(tree) if at_import_time else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {
            "import_module",
            "__import__",
        }:
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _import_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs when a module is imported: no function bodies, no ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _import_time_nodes(node)


def test_there_are_files_in_every_layer():
    assert {path.parts[0] for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_are_absolute_and_point_downwards(path):
    layer = path.parts[0]
    for name in imports(path):
        assert not name.startswith("."), f"{path} imports {name}: use an absolute import"
        top, _, rest = name.partition(".")
        if top == "headrace" and not (layer == "gpu" and name.startswith(ERRORS)):
            assert rest.partition(".")[0] in ALLOWED[layer], f"{path}: {layer} may not import {name}"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_engines_have_one_home_each(path):
    found = {name.partition(".")[0] for name in imports(path)} & ENGINES
    assert found <= ENGINE_HOMES.get(str(path), set()), f"{path} imports {found}"


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] != "flows"], ids=str)
def test_dask_is_imported_inside_functions_only(path):
    assert "dask" not in {name.partition(".")[0] for name in imports(path, at_import_time=True)}


def test_the_error_tree_imports_nothing_of_ours():
    assert not [name for name in imports(Path("storage/errors.py")) if name.startswith("headrace")]
    assert not list(imports(Path("storage/__init__.py"))), "the gpu layer imports this on its way to the errors"


@pytest.mark.parametrize(
    ("layer", "absent"),
    [
        ("storage", {"prefect", "distributed", "torch", "cupy", "matplotlib"}),
        ("gpu", {"prefect", "distributed", "dask", "torch", "cupy", "zarr"}),
        ("tasks", {"prefect", "distributed", "torch", "cupy", "matplotlib"}),
        ("flows", {"prefect", "torch", "cupy"}),
    ],
)
def test_importing_a_whole_layer_loads_no_engine(layer, absent, tmp_path):
    modules = [".".join(("headrace", *path.with_suffix("").parts)) for path in FILES if path.parts[0] == layer]
    kept = [name for name in modules if not name.endswith(("__main__", "_prefect"))]
    code = f"import sys, importlib; [importlib.import_module(n) for n in {kept}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not absent & {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_the_in_situ_tasks_loads_no_engine(tmp_path):
    code = "import headrace.tasks.insitu, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not {"prefect", "distributed", "dask", "torch"} & set(done.stdout.split())


def dependency_names() -> set[str]:
    """Import names of everything headrace depends on, extras included, as far as it is installed."""
    seen: set[str] = set()
    queue = ["headrace"]
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        wanted = requires if name == "headrace" else [each for each in requires if "extra ==" not in each]
        queue += [re.match(r"[\w.-]+", each)[0] for each in wanted]
    tops = metadata.packages_distributions()
    normal = {top: {re.sub(r"[-_.]+", "-", dist).lower() for dist in dists} for top, dists in tops.items()}
    return {top for top, dists in normal.items() if dists & (seen - {"headrace"})}


def test_no_module_is_named_after_another_module():
    taken = set(sys.stdlib_module_names) | dependency_names()
    assert {"numpy", "yaml", "prefect", "zarr", "queue", "pytest"} <= taken
    packages = {path.parent for path in FILES} - {Path(layer) for layer in ALLOWED} - STDLIB_NAME_KEPT
    names = {path: path.stem for path in (*FILES, *packages) if not path.stem.startswith("__")}
    assert not {str(path): name for path, name in names.items() if name in taken}


@pytest.mark.skipif(os.name != "posix", reason="links need POSIX")
@pytest.mark.parametrize("layer", ALLOWED)
def test_type_checkers_see_every_layer(layer):
    link = ROOT / "tests/typings/headrace" / layer
    assert link.is_symlink()
    assert link.resolve() == (ROOT / layer).resolve()
    assert (ROOT / layer / "py.typed").is_file()
