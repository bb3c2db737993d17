# The order in which products of bfloat16 and float8 are added where there are AMX tiles for them. Included by cpu.pyx.

_order_scoped = contextvars.ContextVar("mp_core.reproducible")  # (whether, why)
_order_set = False, "default"  # the setting of the process as Python made it, and what did
cdef bint _order_scopes = False  # a scope has been made in this process: until then, no product looks for one


def _checked_order(value):
    if not isinstance(value, bool):
        raise ValueError(f"`reproducible` must be True or False; received {value!r}")
    return value


def _order_of_environment():
    """Make the setting that MP_CORE_REPRODUCIBLE names."""
    global _order_set
    wanted = os.environ.get("MP_CORE_REPRODUCIBLE")
    if wanted:
        if wanted not in ("0", "1"):
            raise ValueError(f"`MP_CORE_REPRODUCIBLE` must be one of 0, 1; received {wanted!r}")
        _order_set = wanted == "1", "MP_CORE_REPRODUCIBLE"
    mp_set_reproducible(wanted == "1")


_order_of_environment()


cdef bint reproducible_here() except -1:
    """What :func:`is_reproducible` returns. Entry points read it once for each operation."""
    if not _order_scopes:
        return mp_is_reproducible()
    return _order_here()[0]


def _order_here():
    """Return (whether sums are reproducible here and now, what decided it)."""
    scoped, here = innermost(_order_scoped.get(None), None), bool(mp_is_reproducible())
    return scoped or (_order_set if here == _order_set[0] else (here, "mp_core_set_reproducible()"))


def order_and_reason():
    """Return the order of products of bfloat16 and float8 here and now, "reproducible" or "AMX tiles", and why.

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
    """Return whether the order of sums is set to the reproducible one here and now.

    The first that is set decides: a :func:`reproducible` scope, :func:`set_reproducible`, ``MP_CORE_REPRODUCIBLE``. If
    none is, it is False.

    Examples
    --------
    >>> with reproducible():
    ...     is_reproducible()
    True
    """
    return bool(reproducible_here())


def set_reproducible(reproducible):
    """Set the order in which products of bfloat16 and float8 are added, for the whole process.

    On CPUs with Intel AMX they go by AMX tiles, unless this is set: several times as fast, but in an order that no
    other instructions can compute at speed. ``set_reproducible(True)`` gives the order, and so the bits, of all other
    CPUs there too. Everywhere else the setting changes nothing. In both orders a result does not depend on threads,
    batch, packing and strides; ``docs/numerics.md`` states both.

    Every operation has the setting that it finds when it begins, plans too, whatever it was when they were recorded.
    Packed matrices serve both orders.

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
    """Add products of bfloat16 and float8 in the reproducible order within a ``with`` block, in this thread or task.

    The threads of the library that share its operations follow; threads that the block starts have the setting of the
    process.

    Parameters
    ----------
    reproducible : bool
        False: in the order of AMX tiles, on CPUs that have them.

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
