"""House rules that no linter knows: sizes, words, documentation of public functions."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("flows", "tasks", "gpu", "storage", "deployments")
MODULES = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef

FOREIGN_WORDS = {
    "an absolute path of somebody's machine": r"(?<![\w.:/])/(?:home/(?!headrace\b)\w|Users/\w|root/|work/)",
    "a package index by name (the installer's choice)": r"pypi\.(?:org|io)|pythonhosted\.org",
    "a left-over mark": r"\b(?:FIXME|XXX)\b|^(?:<{7}|>{7}) ",
}


def tracked_files() -> list[Path]:
    """Files of the checkout that git would take, less links; empty outside a checkout."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def functions(path: Path) -> list[Function]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def foreign(path: Path) -> Iterator[str]:
    """What in a text file makes sense on one machine only; nothing for a binary file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path.relative_to(ROOT)}:{number}"
        for what, pattern in FOREIGN_WORDS.items():
            yield from (f"{where}: {what}: {match[0]!r}" for match in re.finditer(pattern, line))
        for match in re.finditer(r"(?:\.\./)+[\w.-]+", line):
            if not (path.parent / match[0]).resolve().is_relative_to(ROOT):
                yield f"{where}: a path that leaves the repository: {match[0]!r}"


def test_no_file_depends_on_the_machine_it_was_written_on():
    files = tracked_files()
    if not files:
        pytest.skip("not a git checkout")
    found = [each for path in files if path != Path(__file__) for each in foreign(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] != "flows"], ids=str)
def test_only_flows_print(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"]
    assert not [f"{path}:{node.lineno}" for node in calls]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_files_and_functions_stay_readable(path):
    lines = (ROOT / path).read_text(encoding="utf-8").count("\n")
    assert lines <= 400, f"{path} has {lines} lines; split it"
    for node in functions(path):
        body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
        length = (node.end_lineno or 0) - body[0].lineno + 1
        assert length <= 80, f"{path}:{node.lineno} {node.name} has {length} lines; split it"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_introduces_itself_in_forty_lines(folder):
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 40
    for heading in ("Entry points", "Invariants", "Pitfalls"):
        assert f"## {heading}" in text, f"{folder}/README.md has no part {heading!r}"
