"""Set a context variable, or hold a lock or a file, during a call or a ``with`` block; always restore afterwards.

A signal handler may raise an exception between any two bytecodes. So Python code that sets a context variable and then
enters a ``try`` may leave it set forever. Here C code sets and resets, and handlers can run only inside the call. An
exception may still end a ``with`` statement right before or after its block, without ``__exit__``. The scope object is
freed then, and a freed scope counts as left. :class:`Descriptor` does the same for file descriptors.
"""

import os
from contextlib import ContextDecorator
from types import GenericAlias

from cpython.contextvars cimport PyContextVar_Reset, PyContextVar_Set, get_value_no_default
from cpython.object cimport PyObject_Call

_UNSET = object()


def called_in(variable, value, function, tuple args=(), dict kwargs=None):
    """Call the function with a context variable set; restore its old value afterwards. Return the result."""
    token = PyContextVar_Set(variable, value)
    try:
        return function(*args) if kwargs is None else PyObject_Call(function, args, kwargs)
    finally:
        PyContextVar_Reset(variable, token)


def called_under(lock, function, *args):
    """Return ``function(*args)``; this thread holds a lock meanwhile."""
    with lock:
        return function(*args)


cdef class _Block:
    """A ``with`` block that has been entered."""

    cdef readonly bint left


class Scopes(tuple):
    """The value of a context variable inside blocks: pairs (block, its value), the innermost block last."""

    __slots__ = ()


# The "block" of a value that was set without a ``with`` block; it is never left.
cdef _Block _CALL = _Block()


cdef class _Scope:
    """The compiled part of :class:`Scope`."""

    cdef readonly object variable, value, shown
    cdef object token
    cdef _Block block

    def __init__(self, variable, value, shown=None):
        self.variable, self.value, self.shown = variable, value, shown

    def __enter__(self):
        if self.block is not None:
            raise RuntimeError("a scope was entered that is entered already: make another one")
        cdef _Block block = _Block()
        held = Scopes((*_entered(self.variable), (block, self.value)))
        self.token, self.block = PyContextVar_Set(self.variable, held), block
        return self.shown

    def __exit__(self, *_):
        cdef _Block block = self.block
        if block is None:
            return
        self.block = None
        entered = _entered(self.variable)
        others = Scopes([pair for pair in entered if pair[0] is not block])
        try:
            self.variable.reset(self.token)
        except ValueError:  # the block was entered in another thread or task
            block.left = True
        else:
            if others == entered:  # a value set without a block replaced it, and a reset may bring the block back
                block.left = True
            if _entered(self.variable) != others:  # blocks were not left in reverse order
                PyContextVar_Set(self.variable, others)

    def __del__(self):
        if self.block is not None:
            self.block.left = True


class Scope(_Scope, ContextDecorator):
    """A ``with`` block in which a context variable has a value; read it with :func:`innermost`.

    Blocks may be left in any order. A block in a generator may be left by another thread or task than the one that
    entered it. Only the one that entered it can reset the variable; any other marks the block as left.

    Parameters
    ----------
    variable : ContextVar
    value : object
    shown : object, optional
        The object that ``with ... as`` binds.
    """

    __class_getitem__ = classmethod(GenericAlias)

    def _recreate_cm(self):
        return type(self)(self.variable, self.value, self.shown)


cdef class _Held:
    """The compiled part of :class:`Held`."""

    cdef readonly object enter, leave
    cdef object who
    cdef bint due

    def __init__(self, enter, leave):
        self.enter, self.leave, self.who = enter, leave, object()

    def __enter__(self):
        self.due = True
        try:
            self.enter(self.who)
        except BaseException:
            self.end()
            raise

    def __exit__(self, *_):
        self.end()

    def __del__(self):
        self.end()

    cdef end(self):
        if self.due:
            self.due = False
            try:
                self.leave(self.who)
            except BaseException:
                self.leave(self.who)
                raise


class Held(_Held, ContextDecorator):
    """A ``with`` block that calls ``enter(who)`` first and always ``leave(who)`` at the end, even if interrupted.

    Parameters
    ----------
    enter, leave : callable
        `who` is an object that is unique to the block. An interrupted `leave` is called a second time.
    """

    def _recreate_cm(self):
        return type(self)(self.enter, self.leave)


cdef class Descriptor:
    """The file descriptor of ``os.open(path, flags)``, closed by :meth:`close` or when the object is freed.

    An interrupt before a plain number is assigned to a name would leave the file open.
    """

    cdef int number

    def __cinit__(self, path, int flags):
        self.number = -1
        self.number = os.open(path, flags)

    def __del__(self):
        self.close()

    def fileno(self):
        """Return the file descriptor; -1 if it is closed."""
        return self.number

    def close(self):
        """Close the file descriptor, if it is open."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


cdef object _entered(variable):
    """Return the blocks that have been entered here and not left, with their values."""
    held = get_value_no_default(variable, _UNSET)
    if held is _UNSET:
        return Scopes()
    if type(held) is not Scopes:
        return Scopes([(_CALL, held)])
    return Scopes([pair for pair in held if not (<_Block>pair[0]).left])


def innermost(held, default):
    """Return the value of the innermost block that has not been left. `held` is the value of a context variable."""
    if type(held) is not Scopes:
        return held
    for block, value in reversed(held):
        if not (<_Block>block).left:
            return value
    return default


def nested(held):
    """Return the values of all blocks that have not been left, the innermost last; `held` as in :func:`innermost`."""
    return [value for block, value in held if not (<_Block>block).left]


def values_of(tuple variables):
    """Return the values of context variables here; a sentinel for a variable without a value."""
    return tuple([innermost(get_value_no_default(variable, _UNSET), _UNSET) for variable in variables])


def still_have(tuple variables, tuple values):
    """Return whether context variables still have the same objects as values that :func:`values_of` returned."""
    for variable, value in zip(variables, values):
        if innermost(get_value_no_default(variable, _UNSET), _UNSET) is not value:
            return False
    return True


def is_in_block(variable):
    """Return whether this thread or task is in a ``with`` block of the variable."""
    return any([block is not _CALL for block, _ in _entered(variable)])


def replace_innermost(variable, value):
    """Replace the value of the innermost block in this thread or task; return False if there is no block."""
    entered = _entered(variable)
    if entered:
        *outer, (block, _) = entered
        PyContextVar_Set(variable, Scopes((*outer, (block, value))))
    return bool(entered)
