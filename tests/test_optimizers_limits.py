"""How far the numbers of an optimizer go: what is beyond is refused, and changes nothing."""

import numpy as np
import pytest

from mp_core import optimizers
from mp_core.autocast import AutoCastVariable


@pytest.mark.parametrize("optimizer", [optimizers.Adam(0.5), optimizers.Adam(0.5, use_ema=True)], ids=["fused", "each"])
def test_a_step_beyond_what_iterations_can_count_is_refused_and_changes_nothing(optimizer):
    variable = AutoCastVariable([1.0, 2.0])
    optimizer.build([variable])
    optimizer.iterations = 2**31 - 2
    optimizer.apply([np.float32([1, 1])], [variable])
    assert optimizer.iterations == 2**31 - 1
    before = variable.numpy()
    with pytest.raises(OverflowError, match="`iterations` must be below 2147483647 before a step"):
        optimizer.apply([np.float32([1, 1])], [variable])
    assert optimizer.iterations == 2**31 - 1
    np.testing.assert_array_equal(variable.numpy(), before)
