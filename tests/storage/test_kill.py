"""SIGKILL before every single change of the file system leaves a run that resumes to the same bytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_run_killed_before_any_change_of_the_disk_resumes_to_the_same_bytes(tmp_path):
    job = Path(__file__).with_name("killed_job.py")
    done = subprocess.run([sys.executable, job, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] > 60
    assert not found["wrong"], found
    assert found["wanted"]["status"] == "complete"
    assert not [name for name in found["wanted"]["files"] if name.endswith((".tmp", ".partial", "lock"))]
