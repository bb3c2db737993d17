"""The table of rules."""

import pytest

from mp_core import ops
from mp_core.ops.gradients.registry import RULES, UngradedError, gradient_of, rule_of


def test_rule_is_found_under_the_operation_as_it_is_called_and_as_recordings_know_it():
    def rule(d, out, x):
        return {"x": d}

    def operation(x):
        return x

    try:
        gradient_of(operation)(rule)
        assert rule_of(operation) is rule
    finally:
        del RULES[operation]


def test_operation_without_a_rule_is_named():
    def frobnicated(x):
        return x

    with pytest.raises(UngradedError, match="frobnicated has no gradient"):
        rule_of(frobnicated)
    assert frobnicated not in RULES and ops.add is not ops.add.__wrapped__
