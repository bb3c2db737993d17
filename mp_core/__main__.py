"""``python -m mp_core`` is ``mp-core``."""

import sys

from mp_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
