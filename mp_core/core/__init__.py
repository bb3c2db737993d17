"""Everything compiled. Nothing above this package knows an instruction set, nothing in it knows a policy."""

from mp_core.core import cpu as cpu
