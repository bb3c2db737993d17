# How many threads a large operation uses, and for how long helpers wait for the next. Included by cpu.pyx.

_scoped = contextvars.ContextVar("mp_core.num_threads")  # (count, why)
_unlimited = contextvars.ContextVar("mp_core.unlimited_threads", default=None)  # the count before limit_num_threads()
_default = None  # (count, why) of set_num_threads() or the environment
_quota = None    # what the control groups of this process may use, in CPUs; read at the first use


def _count(value, argument):
    """Return a number of threads; raise ValueError for anything else, True included."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if not 1 <= count <= MP_MOST_THREADS:
        raise ValueError(f"`{argument}` must be an integer from 1 to {MP_MOST_THREADS}; received {value!r}")
    return count


def _decimal(text):
    """Return the integer that a text says, or None; None too if it has more digits than Python converts."""
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
    return (min(first, MP_MOST_THREADS), "OMP_NUM_THREADS") if first else None


def _offered():
    """Return (count, why) of the machine: the CPUs on which this thread may run now, within the quota."""
    cdef int allowed = mp_allowed_cpus()
    count, why = (allowed, "CPU affinity") if allowed else (os.cpu_count() or 1, "CPU count")
    if _quota < count:
        count, why = max(1, int(_quota + 0.5)), "cgroup CPU quota"
    return min(count, MP_MOST_THREADS), why


def threads_and_reason():
    """Return how many threads a large operation uses here and now, and what decided it."""
    return innermost(_scoped.get(None), None) or _unscoped()


def _unscoped():
    """Return (count, why) outside all scopes."""
    global _default, _quota
    if _quota is None:
        _default = _default or _wanted()
        _quota = cpu_quota()
    return _default or _offered()


def get_num_threads():
    """Return how many threads a large operation uses here and now.

    The first that is set decides: a :func:`num_threads` scope, :func:`set_num_threads`, ``MP_CORE_NUM_THREADS``,
    ``OMP_NUM_THREADS``, then the CPUs on which the calling thread may run at this moment, bounded by the least quota
    that the control group of the process, or one above it, had at the first use.

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
    return Scope(_scoped, (_count(count, "count"), "num_threads() scope"))


def limit_num_threads(count):
    """Use `count` threads from here on, in this thread or task: what ``threadpool_limits`` of threadpoolctl calls.

    It holds to the end of the innermost :func:`num_threads` scope, if there is one. Outside of such scopes it holds
    until a call with the number that was in use before the first call: from there on :func:`set_num_threads` and the
    affinity of the thread decide again.

    Parameters
    ----------
    count : int
        From 1 on. 1024 stand for every larger number.

    Raises
    ------
    ValueError
        `count` is no integer of at least 1.

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


def awake():
    """Let the helpers wait awake for the operations that follow each other within a ``with`` block.

    Otherwise they sleep after 10 to 50 microseconds, and waking one takes as long as a small product. Time of MiniLM
    for 1 x 32 tokens on two threads, as a share of that on one: float32 0.79 by sleepers and 0.69 by helpers that are
    awake, bfloat16 0.84 and 0.75, int8 0.93 and 0.76 (medians of 360 interleaved calls, Zen 4, November 2026). Each
    wait ends after about a millisecond.
    """
    return _Awake()


cdef class _Awake:
    cdef bint entered

    def __enter__(self):
        if not self.entered:
            mp_keep_awake(1)
            self.entered = True

    def __exit__(self, *_):
        if self.entered:
            self.entered = False
            mp_keep_awake(-1)

    def __dealloc__(self):  # of a `with` statement that was broken off beside its block
        if self.entered:
            mp_keep_awake(-1)
