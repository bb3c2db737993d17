"""Register mp_core with threadpoolctl, which limits the threads of all libraries in a process."""

from functools import cache

from mp_core.core import cpu
from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.threads"):
    import threadpoolctl

__all__ = ["register"]


class _Controller(threadpoolctl.LibController):
    """How threadpoolctl reads and limits the number of threads.

    threadpoolctl finds the library by the symbol ``mp_run_steps``. Only the library that mp_core's Python modules use
    exports it. The ``libmp_core`` for C programs does not: its calls take the number of threads as an argument.
    """

    user_api = internal_api = "mp_core"
    filename_prefixes = ("libmp_core",)
    check_symbols = ("mp_run_steps",)

    def get_num_threads(self) -> int:
        return cpu.get_num_threads()

    def set_num_threads(self, num_threads: int) -> None:
        cpu.limit_num_threads(num_threads)

    def get_version(self) -> str:
        return cpu.__version__


def register() -> None:
    """Let threadpoolctl see and limit the threads of mp_core. Further calls do nothing.

    Then ``threadpool_limits`` limits mp_core in the calling thread or task, like :func:`mp_core.config.num_threads`,
    and ``threadpool_info`` lists it as ``"mp_core"``.

    >>> from threadpoolctl import threadpool_limits
    >>> register()
    >>> with threadpool_limits(1):
    ...     cpu.get_num_threads()
    1
    """
    _register()


@cache
def _register() -> None:
    threadpoolctl.register(_Controller)
