"""Detect and undo changes of variables, policies and layers, on which recordings depend.

A signal handler may raise an exception between any two bytecodes. So this C code changes and counts the change, or
fails and undoes the change, without a bytecode in between.
"""

cimport cython
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject

_last = object()


def changed():
    """Count a change. Call it after the change; several threads may call it concurrently."""
    global _last
    _last = object()


def count():
    """Return an object that is replaced by another one after every change; compare it by identity."""
    return _last


def counted(function, *args):
    """Return ``function(*args)``, and count a change afterwards, even if the function fails."""
    try:
        return function(*args)
    finally:
        changed()


def set_counted(str name, list pairs):
    """Set an attribute for all pairs (object, value), and count a change. An interrupt comes before or after all."""
    if not pairs:
        return
    try:
        for owner, value in pairs:
            setattr(owner, name, value)
    finally:
        changed()


@cython.critical_section
def replace_if_same(owner, str name, before, after):
    """Set an attribute of an object if it is still `before`, without counting a change."""
    if getattr(owner, name) is before:
        setattr(owner, name, after)


def undone_if_it_fails(Contents contents not None, function, *args):
    """Return ``function(*args)``; if it fails, restore the containers of `contents`."""
    try:
        return function(*args)
    except BaseException:
        contents.restore()
        raise


cdef class Contents:
    """A snapshot of the contents of lists, dictionaries and sets.

    Parameters
    ----------
    containers : iterable of list, dict and set
    """

    cdef list pairs

    def __init__(self, containers=()):
        self.pairs = [(container, _copied(container)) for container in containers]

    def add(self, containers):
        """Add containers to the snapshot."""
        self.pairs += [(container, _copied(container)) for container in containers]

    def same(self):
        """Return whether all containers have the same objects in the same order as in the snapshot."""
        cdef tuple pair
        for pair in self.pairs:
            if not _same(pair[0], pair[1]):
                return False
        return True

    def restore(self):
        """Restore all containers, and count a change."""
        try:
            for now, before in self.pairs:
                _give(now, before)
        finally:
            changed()


cdef object _copied(container):
    """Return a copy as a plain dict, list or set."""
    for kind in (dict, list):
        if isinstance(container, kind):
            return kind(container)
    return set(container)


cdef bint _same(now, before) except -1:
    if type(before) is dict:
        return _same_entries(now if type(now) is dict else dict(now), before)
    if type(before) is list:
        return _same_items(now if type(now) is list else list(now), before)
    return now == before


@cython.critical_section
cdef bint _same_items(list now, list before):
    cdef Py_ssize_t index
    if PyList_GET_SIZE(now) != PyList_GET_SIZE(before):
        return False
    for index in range(PyList_GET_SIZE(before)):
        if PyList_GET_ITEM(now, index) != PyList_GET_ITEM(before, index):
            return False
    return True


@cython.critical_section
cdef bint _same_entries(dict now, dict before):
    cdef Py_ssize_t here = 0, there = 0
    cdef PyObject *key
    cdef PyObject *value
    cdef PyObject *old_key
    cdef PyObject *old_value
    if PyDict_Size(now) != PyDict_Size(before):
        return False
    while PyDict_Next(now, &here, &key, &value) and PyDict_Next(before, &there, &old_key, &old_value):
        if key != old_key or value != old_value:
            return False
    return True


cdef int _give(now, before) except -1:
    if type(before) is list:
        now[:] = before
    elif type(before) is dict:
        now.update(before)
        for key in [key for key in now if key not in before]:
            del now[key]
    else:
        now.clear()
        now.update(before)
    return 0
