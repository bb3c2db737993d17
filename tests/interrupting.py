"""Raise interrupts anywhere in Python code: shared by test_interrupts.py and fuzz/interrupts.py.

A tracer raises an exception, or a signal, when a line or a bytecode is reached for the first time. Afterwards the state
of the thread and of the process must be as before, with the same files open.
"""

import gc
import sys

from fuzz.held import opened

from mp_core import autocast, config, dtype_policies, plans, saving
from mp_core.arrays import holding
from mp_core.core import scopes
from mp_core.layers.base import building, losses
from mp_core.layers.base.call import _build_locks
from mp_core.layers.plans import arena, plan

__all__ = ["ENTERED", "Interrupt", "Tracer", "are_free", "interrupt_everywhere", "run", "state"]


class Interrupt(BaseException):
    """What the handler raises: nobody catches it by the way."""


# ---- what must be as before

VARIABLES = (
    autocast.scope_dtype, building.enclosing_path, building.inherited_training, building.configured_forms,
    losses.in_layer_call, holding._holder, plans.scopes._eager, plan._recording,
)  # fmt: skip


ENTERED = set()


def state():
    """What holds here, and must hold again."""
    known = saving.get_registered_object("Known")
    return (
        scopes.values_of(VARIABLES), config.get_num_threads(), config.is_reproducible(),
        dtype_policies.dtype_policy().name, plans.is_eager(), known, len(ENTERED),
    )  # fmt: skip


def are_free():
    """Whether another thread can take all locks."""
    taken = [lock for lock in (_build_locks[0], plan._locks[0], arena.ARENAS._lock) if lock.acquire(timeout=5)]
    for lock in taken:
        lock.release()
    return len(taken) == 3


# ---- interrupts by tracing


def interrupt():
    """Raise as the handler of a signal does."""
    raise Interrupt


class Tracer:
    """Interrupts when a place is reached for the first time: a bytecode of a code object, or a line of one."""

    def __init__(self, unit, place=None, ring=interrupt):
        self.unit, self.place, self.ring, self.seen = unit, place, ring, {}

    def __call__(self, frame, event, argument):
        if frame.f_code is RUN:
            return None
        frame.f_trace_opcodes = self.unit == "opcode"
        if event == self.unit:
            place = frame.f_code, frame.f_lasti if event == "opcode" else frame.f_lineno
            if place == self.place:
                self.place = None
                self.ring()
            self.seen[place] = None
        return self


def run(tracer, action):
    """Run an action, traced; return the interrupt, which holds all frames that it passed, as a debugger would.

    No garbage is collected meanwhile: callbacks and finalizers of other packages are no places of the action.
    """
    before = sys.gettrace()
    gc.disable()
    sys.settrace(tracer)
    try:
        action()
    except (Interrupt, KeyboardInterrupt) as error:
        return error
    finally:
        sys.settrace(before)
        gc.enable()
    return None


RUN = run.__code__


def interrupt_everywhere(other, unit, prepare, act, check, within="", every=1, ring=interrupt, drop=False):
    """Interrupt ``act(thing)`` at every place that it passes, each time on a new `prepare()`; `check` what is left.

    Of all places in files whose paths begin with `within`, every so-many-th one. Returns how many there were.
    With `drop`, nobody holds the frames any more when `check` is called: a ``with`` block whose end was broken off in
    Python code ends then.
    """
    act(prepare())  # what is done once in a process
    tracer = Tracer(unit)
    thing = prepare()
    gc.collect()
    before, files = state(), opened()
    assert run(tracer, lambda: act(thing)) is None
    places = [place for place in tracer.seen if place[0].co_filename.startswith(within)][::every]
    assert len(tracer.seen) > 3
    for place in places:
        thing = prepare()
        error = run(Tracer(unit, place, ring), lambda: act(thing))  # noqa: B023
        where = f"{place[0].co_qualname} of {place[0].co_filename}, {unit} {place[1]}"
        assert state() == before, where
        assert other.submit(are_free).result(), where
        error = None if drop else error
        try:
            check(thing)
        except Exception as wrong:
            wrong.add_note(where)
            raise
        del error  # and the frames, which hold what was opened in them
        assert opened() <= files or (gc.collect(), opened())[1] <= files, where
    return len(places)
