"""``mp-core`` and ``python -m mp_core``: what fails while the rest is imported is one line too."""

import signal
import sys
import threading
from collections.abc import Callable

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code."""
    came: list[int] = []
    try:
        run = _imported(came)
        return 130 if came else run()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if came:
            return 130
        if not isinstance(error, ImportError | ValueError):  # a package that is missing, or a wrong MP_CORE_ISA
            raise
        print(f"mp-core: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 3 if isinstance(error, ImportError) else 2


def _imported(came: list[int]) -> Callable[[], int]:
    """Return the command line; note an interrupt, which modules turn into other errors while they are imported."""

    def interrupt(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    usual = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, interrupt)
    try:
        import numpy as np  # noqa: F401, first: its errors are those of a package that is broken

        from mp_core.cli import main as run  # after NumPy, for the same reason

        return run
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
