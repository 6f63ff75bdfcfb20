"""The documentation names what exists: every parameter, every extra, every link."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from headrace.flows._base import FlowParams
from headrace.flows._catalog import FLOWS, command_name, load_flow
from headrace.storage import errors

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT) for path in DOCS.rglob("*.md") if "_build" not in path.parts)
TOP_PAGES = [Path(name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
FOLDER_PAGES = [Path(folder, "README.md") for folder in ("flows", "tasks", "gpu", "storage", "deployments")]
RECORDS = sorted(path.relative_to(ROOT) for path in (ROOT / "design").glob("*.md"))


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import flow_tables

    yield flow_tables
    sys.modules.pop("flow_tables")


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in (*PAGES, *TOP_PAGES) if "```python\n" in read(page)], ids=str)
def test_python_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "".join(re.findall(r"^```python\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL))
    exec(compile(code, str(page), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("flow", FLOWS)
def test_every_flow_has_a_page_with_all_its_parameters(flow, tables):
    page = read(Path("docs/flows", f"{command_name(flow)}.md"))
    assert page.startswith(f"# {command_name(flow)}\n")
    assert f"```{{flow-params}} {flow}\n```" in page
    table = tables.params_table(flow)
    model = load_flow(flow).Params
    assert {"out", "seed", "device"} <= set(model.model_fields)
    for name, field in model.model_fields.items():
        assert re.search(rf"^\| `{name}[`.]", table, re.MULTILINE), f"{name} is not on the page"
        assert field.description, f"{flow}: {name} has no description"


def test_no_page_describes_a_flow_that_is_not_there():
    pages = {path.stem for path in PAGES if path.parent == Path("docs/flows")} - {"index"}
    assert pages == {command_name(flow) for flow in FLOWS}


def test_parameter_table_says_range_choices_and_default(tables, monkeypatch):
    class Params(FlowParams):
        mode: Literal["abs", "rel"] = Field(default="rel", description="what the bound is relative to, a|b")
        largest_gap: int = Field(default=8, ge=2, description="largest\n  distance")

    monkeypatch.setattr(tables, "load_flow", lambda name: type("Module", (), {"Params": Params}))
    rows = tables.params_table("any").splitlines()
    assert rows[-1].startswith("| `fresh` |"), "parameters that all flows have come last"
    assert "| `mode` | what the bound is relative to, a\\|b (one of abs, rel; default rel) |" in rows
    assert "| `largest_gap` | largest distance (>= 2; default 8) |" in rows


def test_error_table_holds_every_error(tables):
    table = tables.error_table()
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)} - {"HeadraceError"}
    assert {line.split("`")[1] for line in table.splitlines()[2:]} == classes
    assert "| `StoreError` | `OSError` | 3 |" in table


def test_exit_statuses_are_explained():
    page = read(Path("docs/reference/errors.md"))
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    for status in {0, 130, *(kind.exit_status for kind in kinds)}:
        assert f"| {status} |" in page


def test_every_extra_is_explained():
    extras = tomllib.loads(read(Path("pyproject.toml")))["project"]["optional-dependencies"]
    page = read(Path("docs/installing.md"))
    assert not [name for name in extras if f"| `{name}` |" not in page]


@pytest.mark.parametrize("page", [*PAGES, *TOP_PAGES, *FOLDER_PAGES, *RECORDS], ids=str)
def test_links_between_files_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(?:#[^)]*)?\)", prose)
    broken = [target for target in targets if not (ROOT / page.parent / target).exists()]
    assert not broken, f"{page}: {broken}"


def test_every_page_is_in_a_table_of_contents():
    listed: set[Path] = {Path("docs/index.md")}
    for page in PAGES:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", read(page), re.DOTALL):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            for entry in entries:
                found = (ROOT / page.parent).glob(f"{entry}.md")
                listed |= {path.relative_to(ROOT) for path in found}
    assert set(PAGES) == listed


def test_quick_start_installs_runs_and_tests():
    text = read(Path("README.md"))
    quick = text.partition("## Quick start\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", quick, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["bash", "bash"]
    install = "pip install -c constraints.txt -e "
    assert blocks[0][1].splitlines() == [f"{install}.", "headrace run compress", "headrace report last"]
    assert blocks[1][1].splitlines() == [f'{install}".[test]"', "python -m pytest"]


def test_decision_records_are_numbered_and_complete():
    assert [int(path.name[:4]) for path in RECORDS] == list(range(1, len(RECORDS) + 1))
    assert RECORDS
    for path in RECORDS:
        text = read(path)
        for part in ("Context", "Decision", "Alternatives", "Consequences"):
            assert f"\n## {part}\n" in text, f"{path} has no part {part!r}"
