"""What the tests of the `mp-core` command share."""

import pytest

from mp_core import cli


def usage_error(capsys, *arguments):
    """Run a command that is wrong usage, exit code 2, and return its one line on standard error."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
    return err
