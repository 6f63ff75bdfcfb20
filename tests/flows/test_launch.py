"""Which engine is chosen: what Prefect would use is found without importing it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.flows._launch import choose_engine, configured_api
from headrace.flows._prefect_server import check_api
from headrace.storage.errors import ParameterError, ServiceError

URL = "http://prefect.example:4200/api"
PROFILES = """
active = "lab"
[profiles.lab]
PREFECT_API_URL = "http://prefect.example:4200/api"
[profiles.home]
PREFECT_SERVER_EPHEMERAL_ENABLED = "true"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A ``PREFECT_HOME`` without profiles."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


CASES: dict[str, tuple[dict[str, str], dict[str, str], str | None]] = {
    "nothing": ({}, {}, None),
    "environment": ({"PREFECT_API_URL": URL}, {}, URL),
    "empty environment": ({"PREFECT_API_URL": ""}, {}, None),
    "env file": ({}, {"work/.env": f"PREFECT_API_URL={URL}\n"}, URL),
    "quoted env file": ({}, {"work/.env": f'# lab\nPREFECT_API_URL = "{URL}"\n'}, URL),
    "prefect.toml": ({}, {"work/prefect.toml": f'[api]\nurl = "{URL}"\n'}, URL),
    "pyproject.toml": ({}, {"work/pyproject.toml": f'[tool.prefect.api]\nurl = "{URL}"\n'}, URL),
    "profile": ({}, {"home/profiles.toml": PROFILES}, URL),
    "another profile": ({"PREFECT_PROFILE": "home"}, {"home/profiles.toml": PROFILES}, None),
    "environment over profile": ({"PREFECT_API_URL": "http://a/api"}, {"home/profiles.toml": PROFILES}, "http://a/api"),
    "file over profile": (
        {},
        {"home/profiles.toml": PROFILES, "work/prefect.toml": '[api]\nurl = "http://b/api"\n'},
        "http://b/api",
    ),
}


Case = tuple[dict[str, str], Path, str | None]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> Case:
    """Environment, working directory and the API address that Prefect finds there."""
    variables, texts, expected = CASES[request.param]
    (tmp_path / "work").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {"PREFECT_HOME": str(home), **variables}, tmp_path / "work", expected


def test_the_api_is_found(case: Case) -> None:
    variables, folder, expected = case
    assert configured_api(variables, folder) == expected


@pytest.mark.prefect
def test_prefect_itself_finds_the_same(case: Case) -> None:
    variables, folder, expected = case
    code = "from prefect.settings import PREFECT_API_URL; print(PREFECT_API_URL.value() or None)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**clean, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(expected)


@pytest.mark.parametrize(
    ("asked", "api", "engine"),
    [
        ("auto", None, "local"),
        ("auto", URL, "prefect"),
        ("local", URL, "local"),
        ("prefect", URL, "prefect"),
        ("prefect", None, "prefect"),
    ],
)
def test_engines(asked: str, api: str | None, engine: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(home))
    monkeypatch.chdir(home)
    if api is not None:
        monkeypatch.setenv("PREFECT_API_URL", api)
    assert choose_engine(asked) == (engine, api if engine == "prefect" else None)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ParameterError, match="expected one of: auto, local, prefect"):
        choose_engine("airflow")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/api", "not-an-address", "http://", "ftp://127.0.0.1/api"])
def test_an_unreachable_api_is_named_with_what_to_do(url: str) -> None:
    with pytest.raises(ServiceError, match=r"(?s)" + url + r".*expected.*--engine local"):
        check_api(url)


def test_another_web_server_is_no_prefect_api(tmp_path: Path) -> None:
    from functools import partial
    from http.server import HTTPServer, SimpleHTTPRequestHandler
    from threading import Thread

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ServiceError, match="answers with HTTP status 404; expected 200 from a Prefect API"):
            check_api(f"http://127.0.0.1:{server.server_port}/api")
        server.shutdown()
