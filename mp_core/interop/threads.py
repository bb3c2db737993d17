"""mp_core under threadpoolctl, which limits the threads of all libraries of a process at once."""

from functools import cache

from mp_core.core import cpu
from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.threads"):
    import threadpoolctl

__all__ = ["register"]


class _Controller(threadpoolctl.LibController):
    """What threadpoolctl asks and sets.

    By the symbol it finds the library with which the modules of mp_core are linked. The ``libmp_core`` that C programs
    use does not export it: that one takes the number of threads in each call.
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
    """Let threadpoolctl see and limit the threads of mp_core. To call it again changes nothing.

    ``threadpool_limits`` then limits mp_core in the thread or task that calls it, as :func:`mp_core.config.num_threads`
    does, and ``threadpool_info`` lists it as ``"mp_core"``.

    Examples
    --------
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
