"""Processes for tests: they receive signals that a shell may have ignored, and none outlives its time limit."""

import os
import signal
import subprocess
import threading
from contextlib import contextmanager, suppress

import pytest

from mp_core.utilities.system import ENDING

LIMIT, LONG = 600, 3600
"""Seconds that a process has; and one that compiles the package, or that many tests share."""


@contextmanager
def _heard():
    """Let processes that are started here begin with no signal ignored.

    A shell without job control ignores SIGINT for what it runs in the background, nohup ignores SIGHUP, and children
    inherit that. They do not inherit a handler, so this process, which keeps ignoring the signal, gets one meanwhile.
    """
    in_main = threading.current_thread() is threading.main_thread()
    ignored = [number for number in ENDING if in_main and signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def run(command, *, timeout=LIMIT, **options):
    """Run a process to its end: `subprocess.run`, which raises TimeoutExpired after so many seconds."""
    with _heard():
        return subprocess.run(command, timeout=timeout, **options)


@contextmanager
def cluster_client(workers):
    """Yield a client of so many worker processes of Dask, or skip the test without it."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50, memory_limit=0
    )
    try:
        with distributed.Client(cluster) as client:
            yield client
    finally:
        with suppress(KeyError):  # of a worker that the cluster forgets twice, if it ends while the cluster closes
            cluster.close()


@contextmanager
def largest_file(size):
    """Let no file become larger, as on a disk that is full then: the call that writes more of it fails."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Process(subprocess.Popen):
    """A process beside the test: `subprocess.Popen`, killed after so many seconds or if the ``with`` block fails."""

    def __init__(self, command, *, limit=LIMIT, start_new_session=False, **options):
        with _heard():
            super().__init__(command, start_new_session=start_new_session, **options)
        self._leads = start_new_session
        self._timer = threading.Timer(limit, self.kill)
        self._timer.daemon = True
        self._timer.start()

    def kill(self):
        """Kill the process, and those that it has started if it leads a session."""
        if self._leads and self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        else:
            super().kill()

    def wait(self, timeout=None):
        """Wait for the end, and return the exit code."""
        code = super().wait(timeout)
        self._timer.cancel()
        return code

    def __exit__(self, kind, *rest):
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)
