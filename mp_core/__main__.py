"""``mp-core`` and ``python -m mp_core``: what fails while the rest is imported is one line too."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        import numpy as np  # noqa: F401, first: extension modules turn an interrupt while it is imported into an error

        from mp_core.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130
    except (ImportError, ValueError) as error:  # a package that is missing, or a wrong MP_CORE_ISA
        print(f"mp-core: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 3 if isinstance(error, ImportError) else 2


if __name__ == "__main__":
    sys.exit(main())
