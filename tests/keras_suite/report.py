"""The verdict on each of Keras' tests: it passes, differs for a documented reason, is out of scope, or fails."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from keras_suite import missing, modules
from keras_suite.differences import reason_of

__all__ = ["Report"]


SECONDS = 60
"""How long a test may take."""


def _too_long(*_: Any) -> NoReturn:
    raise TimeoutError(f"the test takes more than {SECONDS} s")


class Report:
    """A plugin of pytest that collects verdicts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passed, self.skipped = 0, 0
        self.names: Counter[str] = Counter()  # names of Keras that mp_core does not have -> tests that use them
        self.reasons: Counter[str] = Counter()  # documented differences -> tests
        self.failed: list[tuple[str, str]] = []
        self.reports: list[tuple[str, str]] = []

    def pytest_sessionstart(self) -> None:
        """Import Keras from mp_core: before pytest's own importer is asked."""
        modules.install(self.folder)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        """Say that a test runs, and end it after some time."""
        missing.running = True
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(SECONDS)
        yield
        signal.alarm(0)
        missing.running = False

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        """Note the verdict on a test."""
        outcome: Any = yield
        report = outcome.get_result()
        if report.passed:
            self.passed += report.when == "call"
        elif report.skipped:
            self.skipped += 1
        else:
            self._judge(item.nodeid, call.excinfo)

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be read."""
        if report.failed:
            self.failed.append((report.nodeid, str(report.longrepr)[-400:]))

    def _judge(self, test: str, raised: Any) -> None:
        text = f"{raised.typename}: {raised.value}"
        cause: BaseException | None = raised.value
        while cause is not None and not isinstance(cause, missing.NotHere):
            cause = cause.__cause__ or cause.__context__
        shown = missing.SHOWN.search(text)
        reason = reason_of(test, text)
        if cause is not None or shown is not None:
            self.names[str(cause) if shown is None else shown[1]] += 1
        elif reason is not None:
            self.reasons[reason] += 1
        else:
            self.failed.append((test, text))

    def print(self) -> int:
        """Print the verdicts, and return the exit status."""
        out, documented = sum(self.names.values()), sum(self.reasons.values())
        print("\nNames that mp_core does not have, and tests that use them:")
        for name, count in self.names.most_common():
            print(f"{count:5} {name}")
        print("\nDocumented differences:")
        for reason, count in self.reasons.most_common():
            print(f"{count:5} {reason}")
        print("\nFailed:")
        for test, text in self.failed:
            print(f"{test}\n      {' '.join(text.split())[:300]}")
        counts = {"passed": self.passed, "documented": documented, "out of scope": out,
                  "skipped by Keras": self.skipped, "failed": len(self.failed)}  # fmt: skip
        print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        return 1 if self.failed else 0
