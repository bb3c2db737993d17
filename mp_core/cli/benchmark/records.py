"""The format of all comparisons with peers: a report has one record per contender, shape and type.

`mp-core bench --json` and `asv_bench/studies/peers.py --json` write it; `mp_core.benchmark.plot` and the figures of
docs/ draw it. A file is one JSON object with `source`, `cpu`, `isa`, `date` and `versions`, which apply to all records,
and `records`.
"""

import datetime
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mp_core.files.checkpoint.output import new_file
from mp_core.files.checkpoint.reading import read_file
from mp_core.policies import config
from mp_core.utilities.arguments import path_of

__all__ = ["Record", "Report", "library", "records_of"]

_LIBRARIES = {
    "numpy": "NumPy", "torch": "PyTorch", "compiled": "PyTorch", "x86": "PyTorch", "onednn": "PyTorch",
    "zentorch": "zentorch", "numkong": "NumKong", "ort": "ONNX Runtime", "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO", "roofline": "roofline",
}  # fmt: skip
_DISTRIBUTIONS = {
    "mp_core": "mp-core", "NumPy": "numpy", "PyTorch": "torch", "zentorch": "zentorch", "NumKong": "numkong",
    "ONNX Runtime": "onnxruntime", "OpenVINO": "openvino",
}  # fmt: skip


def library(contender: str) -> str:
    """Return the library of a contender, such as "PyTorch" for "torch kn"; "mp_core" unless it is a known peer's.

    >>> library("torch kn"), library("int8 per row")
    ('PyTorch', 'mp_core')
    """
    return _LIBRARIES.get(contender.lower().partition(" ")[0], "mp_core")


@dataclass(frozen=True, slots=True)
class Record:
    """The rate of one contender for one shape and type.

    Attributes
    ----------
    operation, shape, dtype : str
        The operation and its arguments; if an operation has variants, `dtype` also has the variant, such as "softmax"
        or "per row".
    contender : str
        The implementation; :func:`library` returns its library.
    threads : int
        The number of threads.
    rate : float
        The rate of the fastest round, in `unit`.
    limit : float or None
        The rate of the roofline in the same rounds, in `unit`.
    details : dict
        Other results: median ratios to others, cosines, megabytes, `"wrong": true`.

    Examples
    --------
    >>> record = Record("matmul", "512x512x512", "float32", 1, "mp_core", 90.0, "GFLOP/s", limit=100.0)
    >>> record.rate / record.limit  # share of the roofline
    0.9
    """

    operation: str
    shape: str
    dtype: str
    threads: int
    contender: str
    rate: float
    unit: str
    limit: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """Records that were measured on one machine in one run.

    Attributes
    ----------
    source : str
        The command that measured them, or the document from which they were copied.
    cpu, isa, date : str
        The CPU, the instruction set of mp_core, the day (ISO 8601).
    versions : dict of str to str
        Library -> version.
    records : list of Record
        The records in the order of measurement.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> report = Report.here("my script", cpu="my CPU")
    >>> report.add(Record("matmul", "512x512x512", "float32", 1, "mp_core", 90.0, "GFLOP/s"))
    >>> with TemporaryDirectory() as folder:
    ...     report.save(Path(folder, "report.json"))
    ...     again = Report.load(Path(folder, "report.json"))
    >>> again == report, next(again.rows())["cpu"]
    (True, 'my CPU')
    """

    source: str
    cpu: str
    isa: str
    date: str
    versions: dict[str, str]
    records: list[Record] = field(default_factory=list)

    @classmethod
    def here(cls, source: str, contenders: Iterable[str] = (), cpu: str | None = None) -> "Report":
        """Start a report of this machine, today. `cpu` replaces the name of the CPU that the system reports."""
        report = cls(source, cpu or _cpu(), config.isa(), datetime.date.today().isoformat(), {})
        report._add_versions(("mp_core", *contenders))
        return report

    def add(self, record: Record) -> None:
        """Append a record; add the version of its library if it is missing."""
        self.records.append(record)
        self._add_versions((record.contender,))

    def _add_versions(self, contenders: Iterable[str]) -> None:
        for name in map(library, contenders):
            if name in _DISTRIBUTIONS and name not in self.versions:
                try:
                    self.versions[name] = version(_DISTRIBUTIONS[name])
                except PackageNotFoundError:
                    continue

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def load(cls, path: str | Path) -> "Report":
        """Read a report from a JSON file."""
        found = json.loads(read_file(path_of(path, "path")))
        return cls(**{**found, "records": [Record(**record) for record in found["records"]]})

    def save(self, path: str | Path) -> None:
        """Write a JSON file with one record per line."""
        head = self.as_dict()
        lines = ",\n".join("  " + json.dumps(record) for record in head.pop("records"))
        text = json.dumps({**head, "records": []}, indent=1).removesuffix("[]\n}")
        with new_file(path_of(path, "path"), force=True) as stream:
            stream.write(f"{text}[\n{lines}\n ]\n}}\n".encode())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each record as a flat, self-contained dict: with CPU, instruction set, date, library and version."""
        about = {"cpu": self.cpu, "isa": self.isa, "date": self.date}
        for record in self.records:
            owner = library(record.contender)
            row = asdict(record)
            details = row.pop("details")
            yield {**details, **row, **about, "library": owner, "version": self.versions.get(owner, "")}


def records_of(rows: Iterable[Mapping[str, Any]], threads: int) -> Iterator[Record]:
    """Convert the results of :func:`~mp_core.benchmark.run` or :func:`~mp_core.benchmark.limits` to records.

    Parameters
    ----------
    rows : iterable of dict
    threads : int
        The number of threads of the contenders in `run`.

    Examples
    --------
    >>> rows = [{"operation": "matmul", "shape": "float32 64x64x64", "unit": "GFLOP/s", "speedup": 1.5,
    ...          "rates": {"mp_core": 60.0, "NumPy": 40.0}}]
    >>> [(record.contender, record.dtype, record.shape, record.rate) for record in records_of(rows, threads=1)]
    [('mp_core', 'float32', '64x64x64', 60.0), ('NumPy', 'float32', '64x64x64', 40.0)]
    """
    for row in rows:
        for name, rate in row["rates"].items():
            if "limit" in row:
                yield Record("limits", row["limit"], "", int(name), "roofline", rate, row["unit"])
                continue
            kind, _, shape = row["shape"].rpartition(" ")
            details = {"speedup": row["speedup"]} if name == "mp_core" and row["speedup"] is not None else {}
            yield Record(row["operation"], shape, kind, threads, name, rate, row["unit"], details=details)


def _cpu() -> str:
    """Return the name of the CPU; on Linux with family and model, because clouds hide parts of the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in known:
        return platform.processor() or platform.machine()
    return f"{known['model name']} (family {known.get('cpu family', '?')}, model {known.get('model', '?')})"
