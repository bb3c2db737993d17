"""Everything compiled. Nothing above this package knows an instruction set, nothing in it knows a policy."""

import os

# Idle threads of GNU OpenMP spin for milliseconds unless told otherwise, and where another process has their CPU every
# operation then waits for a time slice. 1000 turns are some microseconds. The library reads this once, as it is loaded.
_unset = not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ)
if _unset:
    os.environ["GOMP_SPINCOUNT"] = "1000"
try:
    from mp_core.core import cpu as cpu
finally:
    if _unset:
        del os.environ["GOMP_SPINCOUNT"]
