"""Run the parts of a job on a dask cluster: a few at a time, with retries, recording each result."""

import sys
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Any

from mp_core.interop.manifest import Manifest, OutputPart
from mp_core.utilities.extras import needed_by
from mp_core.utilities.progress import progress

with needed_by("mp_core.interop.dask"):
    from distributed import CancelledError, as_completed

__all__ = ["PartError", "run"]


class PartError(RuntimeError):
    """Some parts of a job failed. All others are done: call again to run only the failed parts.

    Attributes
    ----------
    failed : dict of str to Exception
        Name of the file of a part -> the error.

    Examples
    --------
    >>> error = PartError({"part-3.npy": OSError("disk full")}, total=8)
    >>> str(error)
    '1 of 8 parts failed, the others are done; part-3.npy: OSError: disk full'
    """

    def __init__(self, failed: dict[str, BaseException], total: int) -> None:
        shown = [f"{name}: {type(error).__name__}: {error}" for name, error in [*failed.items()][:5]]
        super().__init__(f"{len(failed)} of {total} parts failed, the others are done; {'; '.join(shown)}")
        self.failed = failed


def run(client: Any, manifest: Manifest, parts: Sequence[OutputPart], retries: int, show_progress: bool | None) -> int:
    """Run the parts that are not done; return their number, or raise PartError."""
    todo = manifest.begin(parts)
    failed: dict[str, BaseException] = {}
    show = sys.stderr.isatty() if show_progress is None else show_progress
    with closing(_results(client, manifest.folder, todo, retries)) as results:
        for part, result in progress(results, show=show, total=len(todo), unit="part"):
            if isinstance(result, BaseException):
                failed[part.name] = result
            else:
                manifest.add(part, result)
    if failed:
        raise PartError(failed, len(parts))
    return len(todo)


def _results(
    client: Any, folder: Path, parts: Sequence[OutputPart], retries: int
) -> Generator[tuple[OutputPart, dict[str, Any] | BaseException], None, None]:
    """Yield each part with its result or its last error. At most 2 parts per thread of the cluster are submitted."""
    waiting, tries = deque(parts), Counter[str]()
    running: dict[Any, OutputPart] = {}
    completed: Any = as_completed(loop=client.loop)
    try:
        while waiting or running:
            while waiting and len(running) < 2 * max(1, sum(client.nthreads().values())):
                part = waiting.popleft()
                task, *arguments = part.arguments
                key = f"mp_core-{part.name}-{token_hex(4)}"
                future = client.submit(task, str(folder / part.name), *arguments, key=key, pure=False)
                running[future] = part
                completed.add(future)
            future = next(completed)
            part = running.pop(future)
            result = _result(future)
            tries[part.name] += 1
            again = isinstance(result, BaseException) and not isinstance(result, ValueError | TypeError)
            if again and tries[part.name] <= retries:
                waiting.append(part)
            else:
                yield part, result
    finally:
        client.cancel(list(running))


def _result(future: Any) -> dict[str, Any] | BaseException:
    try:
        found: dict[str, Any] = future.result()
    except (Exception, CancelledError) as error:
        return error
    return found
