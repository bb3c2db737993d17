"""The entry point of ``mp-core`` and ``python -m mp_core``: errors of imports are one line too."""

import signal
import sys
import threading
from collections.abc import Callable

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code."""
    interrupts: list[int] = []
    try:
        run = _import_command(interrupts)
        return 130 if interrupts else run()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if interrupts:
            return 130
        if not isinstance(error, ImportError | ValueError):  # a missing package, or an invalid MP_CORE_ISA
            raise
        print(f"mp-core: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 3 if isinstance(error, ImportError) else 2


def _import_command(interrupts: list[int]) -> Callable[[], int]:
    """Import the command line. Record interrupts, because modules may turn KeyboardInterrupt into other errors."""

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    is_default = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, interrupt)
    try:
        import numpy as np  # noqa: F401, first, so that a broken NumPy raises its own error

        from mp_core.cli import main as run  # after NumPy, for the same reason

        return run
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
