"""Autocast scopes: the dtype in which variables read."""

import asyncio
import threading

import ml_dtypes
import numpy as np
import pytest

from mp_core.autocast import AutoCastVariable, autocast_scope, enable_auto_cast_variables

BF16 = np.dtype(ml_dtypes.bfloat16)


def _variable(value=(1.0, 2.0, 3.0), **kwargs):
    return AutoCastVariable(np.array(value, np.float32), **kwargs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", np.float16, BF16])
def test_variable_reads_in_the_dtype_of_the_scope(dtype):
    variable = _variable()
    with autocast_scope(dtype):
        assert variable.dtype == variable.value().dtype == variable.read_value().dtype == np.dtype(dtype)
        assert variable.true_dtype == variable.numpy().dtype == np.float32
    assert variable.dtype == variable.value().dtype == np.float32


def test_scopes_nest_and_restore_on_error():
    variable = _variable()
    with pytest.raises(RuntimeError), autocast_scope("float16"):
        with autocast_scope(None):
            assert variable.dtype == np.float32
        with autocast_scope("bfloat16"):
            assert variable.dtype == BF16
        assert variable.dtype == np.float16
        raise RuntimeError
    assert variable.dtype == np.float32


@pytest.mark.parametrize("dtype", ["int32", np.int8, "bool"])
def test_scope_dtype_must_be_floating_point(dtype):
    with pytest.raises(ValueError, match="can only be used with a floating-point target dtype"), autocast_scope(dtype):
        pass
    with enable_auto_cast_variables(dtype):  # tf.keras: no cast
        assert _variable().dtype == np.float32


@pytest.mark.parametrize(("dtype", "expected"), [("float16", "float16"), (None, "float32"), ("float32", "float32")])
def test_enable_auto_cast_variables(dtype, expected):
    with enable_auto_cast_variables(dtype):
        assert _variable().value().dtype == expected


def test_integer_and_opted_out_variables_never_cast():
    with autocast_scope("float16"):
        assert AutoCastVariable(np.arange(3)).value().dtype == np.int64
        assert _variable(autocast=False).value().dtype == np.float32


def test_scopes_do_not_leak_into_threads_and_tasks():
    variable = _variable()
    seen = []
    with autocast_scope("float16"):
        thread = threading.Thread(target=lambda: seen.append(variable.dtype.name))
        thread.start()
        thread.join()
    assert seen == ["float32"]

    async def task(dtype):
        with autocast_scope(dtype):
            await asyncio.sleep(0)
            return variable.value().dtype.name

    async def main():
        return await asyncio.gather(task("float16"), task("bfloat16"))

    assert asyncio.run(main()) == ["float16", "bfloat16"]
