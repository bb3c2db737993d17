"""Counters, gauges and histograms in the text format of Prometheus."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from mp_core.core.cpu import __version__, isa

__all__ = ["Counter", "Gauge", "Histogram", "Metrics", "text"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = tuple(4.0**power for power in range(8))  # 1 to 16384


class Counter:
    """A number that only grows, for each combination of values of its labels."""

    kind = "counter"

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self.help, self._labels = name, help, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *values: str) -> None:
        """Add to the number for these label values."""
        self._values[values] = self._values.get(values, 0.0) + amount

    def samples(self) -> Iterator[str]:
        """Yield a line for each combination of label values."""
        for values, number in self._values.items():
            yield _sample(self.name, self._labels, values, number)


class Gauge:
    """A number that the function `read` returns at each scrape."""

    kind = "gauge"

    def __init__(self, name: str, help: str, read: Callable[[], float]) -> None:
        self.name, self.help, self._read = name, help, read

    def samples(self) -> Iterator[str]:
        """Yield its line."""
        yield _sample(self.name, (), (), self._read())


class Histogram:
    """The number of values up to each of the ascending bounds and infinity, for each combination of label values."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float], *labels: str) -> None:
        self.name, self.help, self._bounds, self._labels = name, help, bounds, labels
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def add(self, number: float, *values: str) -> None:
        """Add a value."""
        counts = self._counts.setdefault(values, [0] * (len(self._bounds) + 1))
        counts[bisect_left(self._bounds, number)] += 1
        self._sums[values] = self._sums.get(values, 0.0) + number

    def samples(self) -> Iterator[str]:
        """Yield the lines for bounds, sum and count of each combination of label values."""
        for values, counts in self._counts.items():
            total = 0
            for bound, count in zip((*map(_number, self._bounds), "+Inf"), counts, strict=True):
                total += count
                yield _sample(f"{self.name}_bucket", (*self._labels, "le"), (*values, bound), total)
            yield _sample(f"{self.name}_sum", self._labels, values, self._sums[values])
            yield _sample(f"{self.name}_count", self._labels, values, total)


Metric = Counter | Gauge | Histogram


class Metrics:
    """The metrics of a server; `gauges` are further ones."""

    def __init__(self, *gauges: Gauge) -> None:
        by_model = "model"
        self.requests = Counter("mp_core_requests_total", "Requests, by route and status.", "route", "status")
        self.latency = Histogram("mp_core_request_seconds", "From request to answer.", _SECONDS, "route")
        self.texts = Counter("mp_core_texts_total", "Texts or pairs that were computed.", by_model)
        self.tokens = Counter("mp_core_tokens_total", "Tokens that were computed.", by_model)
        self.truncated = Counter("mp_core_truncated_texts_total", "Texts that were truncated.", by_model)
        self.queued = Histogram("mp_core_queue_seconds", "From the queue to the first batch.", _SECONDS, by_model)
        self.batch_seconds = Histogram("mp_core_batch_seconds", "Duration of batches.", _SECONDS, by_model)
        self.batch_texts = Histogram("mp_core_batch_texts", "Texts of batches.", _SIZES, by_model)
        self.batch_tokens = Histogram("mp_core_batch_tokens", "Tokens of batches.", _SIZES, by_model)
        self.generated = Counter("mp_core_generated_tokens_total", "Tokens that were generated.", by_model)
        self.first_token = Histogram("mp_core_first_token_seconds", "From request to first token.", _SECONDS, by_model)
        info = Counter("mp_core_info", "The version, and the instruction set in use.", "version", "isa")
        info.kind = "gauge"
        info.add(1, __version__, isa())
        started = time.time()
        start = Gauge("process_start_time_seconds", "When the server started, in Unix time.", lambda: started)
        self._all = [*(metric for metric in vars(self).values() if not isinstance(metric, str)), info, start, *gauges]

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return text(self._all)


def text(metrics: Sequence[Metric]) -> str:
    r"""Return metrics in the text format of Prometheus.

    >>> requests = Counter("requests_total", "Requests.", "route")
    >>> requests.add(2, '/"embed"')
    >>> print(text([requests]), end="")
    # HELP requests_total Requests.
    # TYPE requests_total counter
    requests_total{route="/\"embed\""} 2
    """
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.samples()]
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Sequence[str], values: Sequence[str], number: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{name}{'{' if pairs else ''}{pairs}{'}' if pairs else ''} {_number(number)}"


def _number(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(float(number))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
