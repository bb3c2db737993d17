"""Settings of the machine: instruction set, order of sums, number of threads."""

import contextvars
import logging
import operator
import os

from mp_core.core.cgroups import cpu_quota
from mp_core.core.instructions import what_is_lost
from mp_core.core.scopes import Scope, innermost, is_in_block, replace_innermost

from mp_core.core.header cimport (
    MP_CPU_INTEL_AMX, MP_CPU_ZEN4, MP_MOST_THREADS, MP_PAIRS,
    mp_activate, mp_active, mp_allowed_cpus, mp_cpu_cache_bytes, mp_cpu_family_here, mp_cpu_features,
    mp_feature_names, mp_is_reproducible, mp_isas, mp_left_out, mp_set_reproducible,
)

cdef extern from "include/mp_core.h":
    const char *mp_core_version()

cdef extern from "commit.h":  # .ci/commit.py writes it
    const char *MP_CORE_COMMIT

__version__ = mp_core_version().decode()
__commit__ = MP_CORE_COMMIT.decode()


# ---- instruction set

def isas():
    """Return the names of all instruction sets of this build, best first."""
    cdef int row = 0
    names = []
    while mp_isas[row].name != NULL:
        names.append(mp_isas[row].name.decode())
        row += 1
    return tuple(names)


def available_isas():
    """Return the names of the instruction sets that this machine can use, best first.

    Examples
    --------
    >>> available_isas()[-1]
    'scalar'
    """
    have = mp_cpu_features()
    return tuple(name for row, name in enumerate(isas()) if mp_isas[row].needs & ~have == 0)


def left_out_isas():
    """Return the instruction sets that this build lacks, because of its compiler or an option."""
    return tuple(mp_left_out.decode().split())


def cpu_features():
    """Return for each CPU feature that kernels can use whether this CPU has it: name -> bool.

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

    It is the first of :func:`available_isas`, unless the environment variable ``MP_CORE_ISA`` or :func:`set_isa` chose
    another one.
    """
    return mp_active().isa.decode()


def set_isa(name):
    """Use the kernels of another instruction set, for the whole process.

    Only the speed changes, not the bits, with one exception: with ``avx512_amx``, AMX tiles add products of bfloat16
    and float8 in another order, unless sums are set to be reproducible (:func:`set_reproducible`).

    Parameters
    ----------
    name : str
        One of :func:`available_isas`.

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
    choices = available_isas()
    if name not in choices:
        reason = "is not supported by this machine" if name in isas() else "is unknown"
        raise ValueError(f"`{argument}` must be one of {', '.join(choices)}; received {name!r}, which {reason}")
    mp_activate(mp_isas[isas().index(name)].kernels)


_use(os.environ.get("MP_CORE_ISA") or available_isas()[0], "MP_CORE_ISA")
if _loss := what_is_lost(available_isas()):  # warn once, when this module is imported
    logging.getLogger("mp_core").warning(_loss)


cdef const mp_kernels *kernels_of(isa) except NULL:
    """Return the kernel tables of an instruction set of this build, for inspection; this CPU may lack the set."""
    if isa not in isas():
        raise ValueError(f"`isa` must be one of {', '.join(isas())}; received {isa!r}")
    return mp_isas[isas().index(isa)].kernels


# ---- the order of sums

_order_scoped = contextvars.ContextVar("mp_core.reproducible")  # (value, reason)
_order_set = False, "default"  # (value, reason); the library has another value if C code has set it
cdef bint _order_scopes = False  # whether a scope was ever made in this process; if not, products skip the look-up


def _checked_order(value):
    if not isinstance(value, bool):
        raise ValueError(f"`reproducible` must be True or False; received {value!r}")
    return value


def _order_of_environment():
    """Apply the environment variable MP_CORE_REPRODUCIBLE."""
    global _order_set
    wanted = os.environ.get("MP_CORE_REPRODUCIBLE")
    if wanted:
        if wanted not in ("0", "1"):
            raise ValueError(f"`MP_CORE_REPRODUCIBLE` must be one of 0, 1; received {wanted!r}")
        _order_set = wanted == "1", "MP_CORE_REPRODUCIBLE"
    mp_set_reproducible(wanted == "1")


_order_of_environment()


cdef bint reproducible_here() except -1:
    """Return what :func:`is_reproducible` returns. Entry points call it once for each operation."""
    if not _order_scopes:
        return mp_is_reproducible()
    return _order_here()[0]


def _order_here():
    """Return (whether sums are reproducible here and now, reason)."""
    scoped, here = innermost(_order_scoped.get(None), None), bool(mp_is_reproducible())
    return scoped or (_order_set if here == _order_set[0] else (here, "mp_core_set_reproducible()"))


def order_and_reason():
    """Return the order of sums of bfloat16 and float8 products, "reproducible" or "AMX tiles", and the reason.

    Examples
    --------
    >>> with reproducible():
    ...     order_and_reason()[0]
    'reproducible'
    """
    wanted, why = _order_here()
    if mp_active().tiles.gemm[<int>MP_PAIRS] == NULL:
        return "reproducible", f"{isa()} has no AMX tiles"
    return "reproducible" if wanted else "AMX tiles", why


def is_reproducible():
    """Return whether sums are set to the reproducible order, here and now.

    The first of these that is set decides: a :func:`reproducible` scope, :func:`set_reproducible`,
    ``MP_CORE_REPRODUCIBLE``. Default: False.

    Examples
    --------
    >>> with reproducible():
    ...     is_reproducible()
    True
    """
    return bool(reproducible_here())


def set_reproducible(reproducible):
    """Set the order in which products of bfloat16 and float8 are added, for the whole process.

    It matters only on Intel CPUs with AMX. By default they use AMX tiles, which are several times faster, but add in an
    order that no other instructions can compute fast. With ``set_reproducible(True)`` they use the order of all other
    CPUs, and so give the same bits. In both orders, results do not depend on threads, batch size, packing and strides;
    ``docs/numerics.md`` states both.

    Each operation, and each run of a plan, uses the setting at its start. The setting at the recording of a plan does
    not matter. Packed matrices can be used in both orders.

    Parameters
    ----------
    reproducible : bool

    Raises
    ------
    ValueError
        `reproducible` is neither True nor False.

    Examples
    --------
    >>> before = is_reproducible()
    >>> set_reproducible(True)
    >>> is_reproducible()
    True
    >>> set_reproducible(before)
    """
    global _order_set
    mp_set_reproducible(_checked_order(reproducible))
    _order_set = reproducible, "set_reproducible()"


def reproducible(reproducible=True):
    """Use the reproducible order of sums within a ``with`` block, in this thread or task; see :func:`set_reproducible`.

    The library's threads that work for its operations use it too. Threads started in the block have the setting of the
    process.

    Parameters
    ----------
    reproducible : bool
        False: use the order of AMX tiles, on CPUs that have them.

    Raises
    ------
    ValueError
        `reproducible` is neither True nor False.

    Examples
    --------
    >>> with reproducible():
    ...     is_reproducible()
    True
    """
    global _order_scopes
    made = Scope(_order_scoped, (_checked_order(reproducible), "reproducible() scope"))
    _order_scopes = True
    return made


# ---- caches

CPU_FAMILIES = {"zen4": MP_CPU_ZEN4, "intel_amx": MP_CPU_INTEL_AMX}


def cpu_family():
    """Return the key of `CPU_FAMILIES` whose tuned constants are used on this CPU (library/tuning.h)."""
    return list(CPU_FAMILIES)[<int>mp_cpu_family_here()]


def cache_bytes():
    """Return the bytes of the L1, L2 and L3 data caches of this CPU.

    They are read from CPUID, or else from Linux (sysfs). If both fail, they are 32 KiB, 512 KiB and 8 MiB.
    """
    return mp_cpu_cache_bytes(1), mp_cpu_cache_bytes(2), mp_cpu_cache_bytes(3)


# ---- threads

_scoped = contextvars.ContextVar("mp_core.num_threads")  # (count, reason)
_unlimited = contextvars.ContextVar("mp_core.unlimited_threads", default=None)  # the count before limit_num_threads()
_default = None  # (count, reason) of set_num_threads() or the environment
_quota = None    # the quota of this process' control groups, in CPUs; read at the first use


def _count(value, argument):
    """Return a number of threads as an int; raise ValueError for anything else, including True."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if not 1 <= count <= MP_MOST_THREADS:
        raise ValueError(f"`{argument}` must be an integer from 1 to {MP_MOST_THREADS}; received {value!r}")
    return count


def _decimal(text):
    """Return the integer in a string; None if there is none, or it has more digits than Python converts."""
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:
        return None


def _wanted():
    """Return (count, reason) from the environment, or None."""
    wanted = os.environ.get("MP_CORE_NUM_THREADS")
    if wanted:
        return _count(_decimal(wanted) or wanted, "MP_CORE_NUM_THREADS"), "MP_CORE_NUM_THREADS"
    first = _decimal(os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip())
    return (min(first, MP_MOST_THREADS), "OMP_NUM_THREADS") if first else None


def _offered():
    """Return (count, reason) from the machine: the CPUs on which this thread may run now, limited by the quota."""
    cdef int allowed = mp_allowed_cpus()
    count, why = (allowed, "CPU affinity") if allowed else (os.cpu_count() or 1, "CPU count")
    if _quota < count:
        count, why = max(1, int(_quota + 0.5)), "cgroup CPU quota"
    return min(count, MP_MOST_THREADS), why


def threads_and_reason():
    """Return (number of threads of a large operation here and now, reason)."""
    return innermost(_scoped.get(None), None) or _unscoped()


def _unscoped():
    """Return (count, reason) without scopes."""
    global _default, _quota
    if _quota is None:
        _default = _default or _wanted()
        _quota = cpu_quota()
    return _default or _offered()


def get_num_threads():
    """Return the number of threads that a large operation uses, here and now.

    The first of these that is set decides: a :func:`num_threads` scope, :func:`set_num_threads`,
    ``MP_CORE_NUM_THREADS``, ``OMP_NUM_THREADS``. Otherwise it is the number of CPUs on which the calling thread may run
    at this moment, limited by the smallest CPU quota of the process' control group and its parents (read at the first
    use).

    Examples
    --------
    >>> get_num_threads() >= 1
    True
    """
    return threads_and_reason()[0]


def set_num_threads(count):
    """Set the number of threads of large operations, for the whole process.

    Parameters
    ----------
    count : int
        From 1 to 1024. Results do not depend on it.

    Raises
    ------
    ValueError
        `count` is not an integer from 1 to 1024.

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


def num_threads(count):
    """Use `count` threads within a ``with`` block, in this thread or task.

    Parameters
    ----------
    count : int
        From 1 to 1024.

    Raises
    ------
    ValueError
        `count` is not an integer from 1 to 1024.

    Examples
    --------
    >>> with num_threads(1):
    ...     get_num_threads()
    1
    """
    return Scope(_scoped, (_count(count, "count"), "num_threads() scope"))


def limit_num_threads(count):
    """Use `count` threads from now on, in this thread or task; ``threadpool_limits`` of threadpoolctl calls it.

    Inside a :func:`num_threads` scope, it holds until the end of the innermost one. Outside, it holds until a call with
    the number that was in use before the first call; then :func:`set_num_threads` and the thread's affinity decide
    again.

    Parameters
    ----------
    count : int
        At least 1. Numbers above 1024 mean 1024.

    Raises
    ------
    ValueError
        `count` is not an integer of at least 1.

    Examples
    --------
    >>> before = get_num_threads()
    >>> limit_num_threads(1)
    >>> get_num_threads()
    1
    >>> limit_num_threads(before)
    """
    if type(count) is int and count > MP_MOST_THREADS:
        count = MP_MOST_THREADS
    held = _count(count, "count"), "threadpool_limits()"
    if is_in_block(_scoped):
        replace_innermost(_scoped, held)
        return
    before = _unlimited.get() or _unscoped()[0]
    ends = held[0] == before
    _unlimited.set(None if ends else before)
    _scoped.set(None if ends else held)


cdef int threads_for(double work, double worthwhile) except -1:
    """Return the number of threads for an operation: 1 if `work` is less than `worthwhile`, in the same unit."""
    return 1 if work < worthwhile else threads_and_reason()[0]
