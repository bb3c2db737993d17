"""Values that hold during a call or inside a ``with`` block, in the thread or task that entered it, and end with it.

A signal handler may raise between any two bytecodes: Python code that sets a context variable and then enters a ``try``
may leave it set for ever. So C code sets and resets here, and no handler runs between the two but inside the call. A
``with`` statement may still be broken off right before or after its block: it drops its scope then, and a scope that
nobody holds any more counts as left. :class:`Descriptor` is the same for what ``os.open`` gives.
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
    """Return ``function(*args)``, during which this thread holds a lock."""
    with lock:
        return function(*args)


cdef class _Block:
    """One entered ``with`` block."""

    cdef readonly bint left


class Scopes(tuple):
    """What a context variable holds inside blocks: pairs of a block and its value, the innermost block last."""

    __slots__ = ()


# Stands for the block of a value that was set without a ``with`` block: it holds until it is set again.
cdef _Block _CALL = _Block()


cdef class _Scope:
    """The part of :class:`Scope` that C code runs."""

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
            if others == entered:  # a value without a block has replaced it: should it come back, it has been left
                block.left = True
            if _entered(self.variable) != others:  # blocks were left in another order than entered
                PyContextVar_Set(self.variable, others)

    def __del__(self):
        if self.block is not None:
            self.block.left = True


class Scope(_Scope, ContextDecorator):
    """A ``with`` block that gives a context variable a value, which :func:`innermost` reads, until it is left.

    Blocks may be left in any order. If a generator holds a block, another thread or task than the one that entered it
    may leave it. Only the thread or task that entered can reset the variable; any other marks the block as left.

    Parameters
    ----------
    variable : ContextVar
    value : object
    shown : object, optional
        What ``with ... as`` gives.
    """

    __class_getitem__ = classmethod(GenericAlias)

    def _recreate_cm(self):
        return type(self)(self.variable, self.value, self.shown)


cdef class _Held:
    """The part of :class:`Held` that C code runs."""

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
    """A ``with`` block that begins with ``enter(who)``; however it ends, or is broken off, ``leave(who)`` is called.

    Parameters
    ----------
    enter, leave : callable
        `who` is an object of the block alone. An interrupted `leave` is called once more.
    """

    def _recreate_cm(self):
        return type(self)(self.enter, self.leave)


cdef class Descriptor:
    """What ``os.open(path, flags)`` gives, open until it is closed or nobody holds this any more.

    The number alone would be lost, and what it is of stay open, if an interrupt came before it has a name.
    """

    cdef int number

    def __cinit__(self, path, int flags):
        self.number = -1
        self.number = os.open(path, flags)

    def __del__(self):
        self.close()

    def fileno(self):
        """Return the number; -1 once it is closed."""
        return self.number

    def close(self):
        """Close it, unless it is closed."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


cdef object _entered(variable):
    """Return the blocks that are entered here and not left, each with its value."""
    held = get_value_no_default(variable, _UNSET)
    if held is _UNSET:
        return Scopes()
    if type(held) is not Scopes:
        return Scopes([(_CALL, held)])
    return Scopes([pair for pair in held if not (<_Block>pair[0]).left])


def innermost(held, default):
    """Return the value of the innermost block that is not left; `held` is what a context variable holds."""
    if type(held) is not Scopes:
        return held
    for block, value in reversed(held):
        if not (<_Block>block).left:
            return value
    return default


def nested(held):
    """Return the values of all blocks that are not left, the innermost last; a context variable holds `held`."""
    return [value for block, value in held if not (<_Block>block).left]


def values_of(tuple variables):
    """Return what context variables have here, an object of its own for those without a value."""
    return tuple([innermost(get_value_no_default(variable, _UNSET), _UNSET) for variable in variables])


def still_have(tuple variables, tuple values):
    """Whether context variables have the very values here that :func:`values_of` returned."""
    for variable, value in zip(variables, values):
        if innermost(get_value_no_default(variable, _UNSET), _UNSET) is not value:
            return False
    return True


def is_in_block(variable):
    """Return whether this thread or task is in a block of the variable, whatever was set without one."""
    return any([block is not _CALL for block, _ in _entered(variable)])


def replace_innermost(variable, value):
    """Give the innermost block another value, in this thread or task; return whether there is one."""
    entered = _entered(variable)
    if entered:
        *outer, (block, _) = entered
        PyContextVar_Set(variable, Scopes((*outer, (block, value))))
    return bool(entered)
