"""Conversion that rounds for inputs whose moments are known."""

import numpy as np
import pytest
from safetensors.numpy import save_file

import mp_core as mp
from mp_core.checkpoint import POLICIES, RequestError, convert, open_tensors


@pytest.fixture
def rounded_for(rng, tmp_path):
    """A file with a kernel of 300 lines in several boxes, inputs that hang together, and their moments."""
    x = rng.standard_normal((2000, 640)) @ (np.eye(640) + rng.standard_normal((640, 640)) / 25) + 0.5
    kernel = rng.standard_normal((300, 640), np.float32)
    save_file({"kernel": kernel, "bias": kernel[0]}, tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors", kernel.astype(np.float64), x, {"kernel": x.T @ x}


@pytest.mark.parametrize("granularity", [None, "channel", "tensor", "group:32"])
@pytest.mark.parametrize("policy", [policy for policy, (_, default) in POLICIES.items() if default])
def test_moments_make_products_closer_with_the_same_scales(rounded_for, target, policy, granularity):
    source, kernel, x, moments = rounded_for
    opened = []
    for given in (None, moments):
        convert(source, target, policy, granularity=granularity, moments=given, force=True)
        opened.append(open_tensors(target)["kernel"])
    nearest, rounded = (np.sqrt(((x @ (mp.dequantize(q) - kernel).T) ** 2).mean()) for q in opened)
    assert rounded < 0.75 * nearest
    np.testing.assert_array_equal(opened[0].scale, opened[1].scale)


def test_moments_give_the_same_file_with_any_number_of_threads_and_instruction_set(isa, rounded_for, target):
    source, _, _, moments = rounded_for
    written = set()
    for threads in (1, 3):
        convert(source, target, "int4", moments=moments, threads=threads, force=True)
        written.add(target.read_bytes())
    with mp.config.num_threads(1):
        before = mp.config.isa()
        mp.config.set_isa("scalar")
        try:
            convert(source, target, "int4", moments=moments, force=True)
        finally:
            mp.config.set_isa(before)
    assert written == {target.read_bytes()}


def test_infinity_and_nan_are_refused(rounded_for, target):
    source, kernel, _, moments = rounded_for
    kernel = kernel.astype(np.float32)
    for number in (-np.inf, np.nan):
        plain = dict(zip(("kernel", "bias"), (kernel.copy(), kernel[0]), strict=True))
        plain["kernel"][3, 7] = number
        save_file(plain, source)
        with pytest.raises(
            ValueError, match=rf"'kernel' must be finite to be quantized; received {number} at \(3, 7\)"
        ):
            convert(source, target, "int8", moments=moments)


@pytest.mark.parametrize(
    ("moments", "message"),
    [
        ({"other": np.eye(640)}, "the moments of 'other' belong to no tensor"),
        ({"bias": np.eye(640)}, "no tensor that has some would be quantized"),
        ({"kernel": np.eye(3)}, r"'kernel' must be finite floats of shape \(640, 640\); received float64 of shape"),
        ({"kernel": np.eye(640, dtype=int)}, "received int64"),
        ({"kernel": np.full((640, 640), np.nan)}, "must be finite floats"),
    ],
)
def test_moments_that_do_not_fit(rounded_for, target, moments, message):
    with pytest.raises(RequestError, match=message):
        convert(rounded_for[0], target, "int8", moments=moments)
    assert not target.exists()


def test_masked_moments_are_refused(rounded_for, target):
    with pytest.raises(TypeError, match=r"`moments\['kernel'\]` must not be a masked array: its mask would be lost"):
        convert(rounded_for[0], target, "int8", moments={"kernel": np.ma.masked_array(np.eye(640), np.eye(640))})
    assert not target.exists()


def test_moments_of_nothing_round_to_nearest(rounded_for, target):
    source = rounded_for[0]
    convert(source, target, "int8")
    expected = target.read_bytes()
    convert(source, target, "int8", moments={"kernel": np.zeros((640, 640))}, force=True)
    assert target.read_bytes() == expected
