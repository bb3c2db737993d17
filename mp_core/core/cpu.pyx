"""The machine: which instruction set the kernels use, and how many threads may run them."""

import contextvars
import math
import operator
import os
from contextlib import contextmanager
from pathlib import Path

from mp_core.core.scopes import innermost, scope

from mp_core.core.header cimport (
    MP_CPU_INTEL_AMX, MP_CPU_OTHER, MP_CPU_ZEN4, MP_CPU_ZEN5, mp_activate, mp_active, mp_allowed_cpus,
    mp_cpu_cache_bytes, mp_cpu_family_here, mp_cpu_features, mp_feature_names, mp_isas, mp_parallel_for, mp_scratch,
)

cdef extern from *:
    const char *MP_CORE_VERSION

__version__ = MP_CORE_VERSION.decode()


# ---- instruction set

def isas():
    """Return the names of all instruction sets of this build, best first."""
    cdef int row = 0
    names = []
    while mp_isas[row].name != NULL:
        names.append(mp_isas[row].name.decode())
        row += 1
    return tuple(names)


def _isas_with(own_order):
    have = mp_cpu_features()
    return tuple(
        name for row, name in enumerate(isas())
        if mp_isas[row].needs & ~have == 0 and bool(mp_isas[row].kernels.own_order) == own_order
    )


def available_isas():
    """Return the names of the instruction sets that this machine can use and that give the same bits, best first.

    Examples
    --------
    >>> available_isas()[-1]
    'scalar'
    """
    return _isas_with(False)


def own_order_isas():
    """Return the names of those that this machine can use whose products of bfloat16 are other sums.

    Examples
    --------
    >>> set(own_order_isas()) <= {"avx512_amx_bf16"}
    True
    """
    return _isas_with(True)


def cpu_features():
    """Return which of the CPU features that the kernels can use are present: name -> bool.

    Examples
    --------
    >>> "avx2+fma+f16c" in cpu_features()
    True
    """
    cdef int number = 0
    have = mp_cpu_features()
    features = {}
    while mp_feature_names[number] != NULL:
        features[mp_feature_names[number].decode()] = bool(have >> number & 1)
        number += 1
    return features


def isa():
    """Return the name of the instruction set in use.

    The best one the machine has, unless the environment variable ``MP_CORE_ISA`` or :func:`set_isa` chose another.
    """
    return mp_active().isa.decode()


def set_isa(name):
    """Use the kernels of another instruction set, for the whole process. Results keep their bits; only speed changes.

    ``avx512_amx_bf16`` is the exception and never chosen by itself: its products of bfloat16 are several times as
    fast but other sums, within a bound of their own (``docs/numerics.md``).

    Parameters
    ----------
    name : str
        One of :func:`available_isas`, or ``avx512_amx_bf16`` on a machine that has it.

    Raises
    ------
    ValueError
        `name` is unknown, or this machine cannot run it.

    Examples
    --------
    >>> best = isa()
    >>> set_isa("scalar")
    >>> isa()
    'scalar'
    >>> set_isa(best)
    """
    _use(name, "name")


def _use(name, argument):
    choices = own_order_isas() + available_isas()
    if name not in choices:
        reason = "is not supported by this machine" if name in isas() else "is unknown"
        raise ValueError(f"`{argument}` must be one of {', '.join(choices)}; received {name!r}, which {reason}")
    mp_activate(mp_isas[isas().index(name)].kernels)


_use(os.environ.get("MP_CORE_ISA") or available_isas()[0], "MP_CORE_ISA")


cdef const mp_kernels *kernels_of(isa) except NULL:
    """The kernels of an instruction set of this build by its name, for reading what there is: nothing may run here."""
    if isa not in isas():
        raise ValueError(f"`isa` must be one of {', '.join(isas())}; received {isa!r}")
    return mp_isas[isas().index(isa)].kernels


# ---- caches

include "caches.pxi"


# ---- threads

_scoped = contextvars.ContextVar("mp_core.num_threads")
_default = None  # (count, why) of set_num_threads() or the environment
_quota = None    # of this process' control group, in CPUs, read at first use


def _count(value, argument):
    """Return a number of threads."""
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if not 1 <= count <= MOST_THREADS:
        raise ValueError(f"`{argument}` must be an integer from 1 to {MOST_THREADS}; received {value!r}")
    return count


def _cgroup_quota():
    """Return the CPU time this control group may use, in CPUs (cgroup v2, then v1); infinity without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text()
            period = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return math.inf
    if quota == "max" or int(quota) <= 0:
        return math.inf
    return int(quota) / int(period)


def _decimal(text):
    """Return the integer that a text says, or None; Python reads no longer one than its limit."""
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:
        return None


def _wanted():
    """Return (count, why) of the environment, or None."""
    wanted = os.environ.get("MP_CORE_NUM_THREADS")
    if wanted:
        return _count(_decimal(wanted) or wanted, "MP_CORE_NUM_THREADS"), "MP_CORE_NUM_THREADS"
    first = _decimal(os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip())
    return (min(first, MOST_THREADS), "OMP_NUM_THREADS") if first else None


def _offered():
    """Return (count, why) of the machine: the CPUs on which this thread may run now, within the quota."""
    cdef int allowed = mp_allowed_cpus()
    count, why = (allowed, "CPU affinity") if allowed else (os.cpu_count() or 1, "CPU count")
    if _quota < count:
        count, why = max(1, int(_quota + 0.5)), "cgroup CPU quota"
    return min(count, MOST_THREADS), why


def threads_and_reason():
    """Return how many threads a large operation uses here and now, and what decided it."""
    global _default, _quota
    scoped = innermost(_scoped.get(None), None)
    if scoped is not None:
        return scoped, "num_threads() scope"
    if _quota is None:
        _default = _default or _wanted()
        _quota = _cgroup_quota()
    return _default or _offered()


def get_num_threads():
    """Return how many threads a large operation uses here and now.

    The first that is set decides: a :func:`num_threads` scope, :func:`set_num_threads`, ``MP_CORE_NUM_THREADS``,
    ``OMP_NUM_THREADS``, then the CPUs on which the calling thread may run at this moment, bounded by the quota that the
    control group of the process had at the first use.

    Examples
    --------
    >>> get_num_threads() >= 1
    True
    """
    return threads_and_reason()[0]


def set_num_threads(count):
    """Set how many threads large operations use, for the whole process.

    Parameters
    ----------
    count : int
        From 1 to 1024. The results do not depend on it.

    Raises
    ------
    ValueError
        `count` is no integer from 1 to 1024.

    Examples
    --------
    >>> before = get_num_threads()
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(before)
    """
    global _default
    _default = _count(count, "count"), "set_num_threads()"


@contextmanager
def num_threads(count):
    """Use `count` threads within a ``with`` block, in this thread or task.

    Parameters
    ----------
    count : int
        From 1 to 1024.

    Raises
    ------
    ValueError
        `count` is no integer from 1 to 1024.

    Examples
    --------
    >>> with num_threads(1):
    ...     get_num_threads()
    1
    """
    with scope(_scoped, _count(count, "count")):
        yield


cdef int threads_for(double work, double worthwhile) except -1:
    """Threads for an operation of that much work, in any unit: the caller's own below what is worthwhile."""
    return 1 if work < worthwhile else threads_and_reason()[0]


cdef void parallel_for(int threads, Py_ssize_t tasks, task run, void *context) noexcept nogil:
    """Call run(context, index) for every index below tasks, in any order, on up to that many threads."""
    mp_parallel_for(threads, tasks, run, context)


# ---- shared with the other modules

cdef const mp_kernels *kernels() noexcept nogil:
    return mp_active()


cdef void *scratch(size_t bytes) noexcept nogil:
    return mp_scratch(bytes)
