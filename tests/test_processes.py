"""The processes of the tests: under nohup, in the background of a shell, and with a time limit."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Process, run

from mp_core.utilities.system import ENDING

HANDLERS = """
import signal
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(*(signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)))
"""


@pytest.mark.parametrize("ignored", ENDING)
def test_a_signal_that_the_shell_ignores_is_heard(ignored):
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        command = [sys.executable, "-c", HANDLERS]
        with Process(command, stdout=subprocess.PIPE) as process:
            found = process.stdout.read(), run(command, capture_output=True, check=True).stdout
        assert found == (b"True\nHandlers.SIG_DFL Handlers.SIG_DFL\n",) * 2 or found == (b"True\n0 0\n",) * 2
        assert signal.getsignal(ignored) is signal.SIG_IGN
    finally:
        signal.signal(ignored, before)


def test_a_process_has_an_end():
    with pytest.raises(subprocess.TimeoutExpired):
        run(["sleep", "60"], timeout=0.1)
    with Process(["sleep", "60"], limit=0.1) as process:
        assert process.wait() == -signal.SIGKILL
    with Process(["sh", "-c", "sleep 60; true"], limit=0.1, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout.read() == b""  # sleep, which holds the pipe, is killed too


def test_a_test_that_fails_kills_its_process():
    with pytest.raises(ZeroDivisionError), Process(["sleep", "60"]) as process:
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL


def test_no_test_starts_a_process_in_another_way():
    starts = re.compile(
        r"subprocess\.(run|Popen|call|check_call|check_output|getoutput)\(|os\.(system|popen|spawn\w*)\("
    )
    files = [
        path for path in Path(__file__).parent.glob("*.py") if path.name not in ("processes.py", "test_processes.py")
    ]
    assert files and not [path.name for path in files if starts.search(path.read_text())]
