"""The machine: which instruction set the kernels use, and how many threads may run them."""

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
    mp_feature_names, mp_is_reproducible, mp_isas, mp_keep_awake, mp_left_out, mp_set_reproducible,
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
    """Return the names of the sets for which this build has no kernels: its compiler lacks them, or it was told so."""
    return tuple(mp_left_out.decode().split())


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

    It is the first of :func:`available_isas`, unless the environment variable ``MP_CORE_ISA`` or :func:`set_isa`
    chose another.
    """
    return mp_active().isa.decode()


def set_isa(name):
    """Use the kernels of another instruction set, for the whole process.

    Results keep their bits, and only speed changes. ``avx512_amx`` is the exception: products of bfloat16 and float8 by
    AMX tiles are added in another order there, unless sums are set to be reproducible (:func:`set_reproducible`).

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
if _loss := what_is_lost(available_isas()):  # this module is loaded once, before the first operation
    logging.getLogger("mp_core").warning(_loss)


cdef const mp_kernels *kernels_of(isa) except NULL:
    """The kernel tables of an instruction set of this build, to look at: this machine may not be able to run them."""
    if isa not in isas():
        raise ValueError(f"`isa` must be one of {', '.join(isas())}; received {isa!r}")
    return mp_isas[isas().index(isa)].kernels


# ---- the order of sums

include "order.pxi"


# ---- caches

include "caches.pxi"


# ---- threads

include "threads.pxi"


cdef int threads_for(double work, double worthwhile) except -1:
    """How many threads an operation uses: 1 if `work` is less than `worthwhile`, in the same unit."""
    return 1 if work < worthwhile else threads_and_reason()[0]
