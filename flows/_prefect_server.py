"""Reach a Prefect API, or start one of our own, before Prefect is imported.

A server started here is shared by the flow and everything it starts; without it Prefect would start a temporary one
in every process that asks. It keeps its database where Prefect keeps it, so its runs show up in the next
``prefect server start``.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Self
from urllib.parse import urlsplit

from headrace.flows._executors import no_interrupts
from headrace.storage.errors import ServiceError

ANSWER_SECONDS = 4.0
START_SECONDS = 120.0

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "headrace",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLI_PROMPT": "false",
}
"""What keeps Prefect's log out of the terminal; the API still gets all of it."""

OWN_SERVER = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}
"""A server that lives as long as one flow run schedules nothing, shows nothing and reports to nobody."""


def check_api(url: str) -> None:
    """Raise unless a Prefect API answers at ``url``, within seconds.

    Raises
    ------
    ServiceError
        Nothing answers, or something that is no Prefect API does.
    """
    parts = urlsplit(url)
    what_to_do = "Start it (prefect server start), correct PREFECT_API_URL, or run without it: --engine local"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ServiceError(f"The Prefect API address {url!r} is malformed; expected http://HOST:4200/api. {what_to_do}")
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServiceError(
            f"No Prefect API answers at {url} ({reason}); expected a running server. {what_to_do}"
        ) from error
    if status not in {HTTPStatus.OK, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise ServiceError(
            f"{url}/health answers with HTTP status {status}; expected 200 from a Prefect API, whose address ends in "
            f"/api. {what_to_do}"
        )


def free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OwnServer:
    """A Prefect server for one flow run: a context manager that starts it and stops it.

    It does not see Ctrl-C, so that an interrupted run can still report its state.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "error"]
        internal = {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1", "PYTHONSAFEPATH": "1"}
        environment = {**os.environ, **QUIET, **OWN_SERVER, **internal}
        environment.pop("PREFECT_API_URL", None)
        self.log = tempfile.TemporaryFile("w+")
        with no_interrupts():
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT
            )
        return self

    def wait_ready(self) -> None:
        """Wait until the server answers.

        Raises
        ------
        ServiceError
            It ended, or did not answer in time; gives its last words.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                check_api(self.url)
            except ServiceError:
                time.sleep(0.1)
            else:
                return
        self.log.seek(0)
        words = self.log.read().strip().splitlines() or ["no output"]
        status = self.process.poll()
        found = f"did not answer within {START_SECONDS:.0f} s" if status is None else f"ended with status {status}"
        raise ServiceError(
            f"The Prefect server started for this run at {self.url} {found} ({words[-1]}); expected it to answer. "
            "Start one yourself (prefect server start) and set PREFECT_API_URL, or run without it: --engine local"
        )

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        finally:
            self.log.close()
