"""ops.resize equals ONNX's reference and torch, for all coordinates and interpolations; gradients, plans, types."""

import itertools

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import ops

COORDINATES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def of_onnx(x, sizes=None, scales=None, mode="linear", roi=None, **options):
    """The result of ONNX's reference for axes 1 and 2."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    names = ["x", "roi" if roi is not None else "", "scales" if scales is not None else "",
             "sizes" if sizes is not None else ""]  # fmt: skip
    node = onnx.helper.make_node("Resize", names, ["y"], mode=mode, axes=[1, 2], **options)
    kinds = {"x": onnx.TensorProto.DOUBLE, "roi": onnx.TensorProto.DOUBLE, "scales": onnx.TensorProto.FLOAT,
             "sizes": onnx.TensorProto.INT64}  # fmt: skip
    given = {"x": x, "roi": roi, "scales": None if scales is None else np.float32(scales),
             "sizes": None if sizes is None else np.int64(sizes)}  # fmt: skip
    inputs = [onnx.helper.make_tensor_value_info(name, kinds[name], None) for name in names if name]
    graph = onnx.helper.make_graph([node], "g", inputs, [onnx.helper.make_tensor_value_info("y", 11, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
    return ReferenceEvaluator(model).run(None, {name: given[name] for name in names if name})[0]


@pytest.mark.parametrize("sizes", [(7, 8), (2, 3), (1, 1), (6, 2)])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_results_are_those_of_onnx(coordinates, sizes, rng):
    x = rng.standard_normal((2, 3, 4, 2))
    for mode, antialias, outside in itertools.product(("linear", "cubic"), (False, True), (False, True)):
        expected = of_onnx(x, sizes, mode=mode, coordinate_transformation_mode=coordinates, antialias=int(antialias),
                           exclude_outside=int(outside))  # fmt: skip
        found = ops.resize(x, sizes, (1, 2), mode, coordinates=coordinates, antialias=antialias,
                           exclude_outside=outside)  # fmt: skip
        error = 1e-12 if mode == "linear" else 4e-6  # the reference computes cubic weights in float32
        np.testing.assert_allclose(found, expected, rtol=error, atol=error)
        narrow = ops.resize(x.astype(np.float32), sizes, (1, 2), mode, coordinates=coordinates, antialias=antialias,
                            exclude_outside=outside)  # fmt: skip
        np.testing.assert_allclose(narrow, expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("nearest", NEAREST)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_elements_are_those_of_onnx(coordinates, nearest, rng):
    x = rng.standard_normal((2, 3, 4, 2))
    for sizes in ((6, 8), (2, 2), (9, 3)):
        expected = of_onnx(x, sizes, mode="nearest", coordinate_transformation_mode=coordinates, nearest_mode=nearest)
        assert_same_bits(ops.resize(x, sizes, (1, 2), "nearest", coordinates=coordinates, nearest=nearest), expected)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_that_are_no_quotients_of_lengths_are_those_of_onnx(mode, rng):
    x, scales = rng.standard_normal((1, 5, 6, 2)), (0.75, 1.25)
    for coordinates in COORDINATES:
        expected = of_onnx(x, scales=scales, mode=mode, coordinate_transformation_mode=coordinates)
        found = ops.resize(x, expected.shape[1:3], (1, 2), mode, scales=scales, coordinates=coordinates)
        np.testing.assert_allclose(found, expected, rtol=4e-6, atol=4e-6)


def test_crops_are_those_of_onnx(rng):
    x, roi = rng.standard_normal((1, 4, 5, 2)), np.array([0.4, -0.2, 0.9, 0.7])
    expected = of_onnx(x, (3, 4), roi=roi, coordinate_transformation_mode="tf_crop_and_resize",
                       extrapolation_value=10.0)  # fmt: skip
    found = ops.resize(x, (3, 4), (1, 2), crop=[(0.4, 0.9), (-0.2, 0.7)], extrapolation=10.0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_results_and_gradients_are_those_of_torch(rng):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 5, 6, 3)).astype(np.float32)
    for mode, aligned, antialias in (
        ("bilinear", False, False), ("bilinear", True, False), ("bicubic", False, False), ("bilinear", False, True),
        ("bicubic", False, True), ("nearest", None, False), ("nearest-exact", None, False),
    ):  # fmt: skip
        given = torch.tensor(np.moveaxis(x, -1, 1), requires_grad=True)
        sizes = (3, 9)
        result = torch.nn.functional.interpolate(given, sizes, mode=mode, align_corners=aligned, antialias=antialias)
        d = rng.standard_normal(tuple(result.shape)).astype(np.float32)
        (result * torch.tensor(d)).sum().backward()
        kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, "nearest")
        options = {
            "coordinates": "align_corners" if aligned else "asymmetric" if mode == "nearest" else "half_pixel",
            "nearest": "floor" if mode == "nearest" else "round_prefer_ceil", "antialias": antialias,
            "exclude_outside": antialias, "cubic_coefficient": -0.5 if antialias else -0.75,
        }  # fmt: skip
        variable = mp.AutoCastVariable(x, autocast=False, name="x")

        def resized(d, variable=variable, kind=kind, options=options):
            return ops.multiply(ops.resize(variable.numpy(), (3, 9), (1, 2), kind, **options), d)

        found = ops.resize(x, sizes, (1, 2), kind, **options)
        expected = np.moveaxis(result.detach().numpy(), 1, -1)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-6, err_msg=mode)
        step = mp.value_and_grad(lambda d, resized=resized: mp.sum(resized(d)), [variable])
        np.testing.assert_allclose(
            step(np.moveaxis(d, 1, -1))[1][0], np.moveaxis(given.grad.numpy(), 1, -1), rtol=1e-5, atol=3e-6
        )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_plans_give_the_bits_of_calls_on_every_set(isa, mode, dtype, rng):
    x = mp.cast(rng.standard_normal((2, 5, 6, 3)), dtype)
    for axes in ((1, 2), (2, 3), (3,), (0, 1)):
        sizes = (4, 7)[: len(axes)]
        found = ops.resize(x, sizes, axes, mode)
        plan = mp.compile(lambda x, sizes=sizes, axes=axes: ops.resize(x, sizes, axes, mode), np.ones_like(x))
        assert_same_bits(plan(x), found)
        assert found.dtype == x.dtype
        if len(axes) == 1:
            assert_same_bits(found, mp.cast(ops.resize(x.astype(np.float32), sizes, axes, mode), dtype))


def test_infinities_reach_their_neighbours_only():
    x = np.float32([1, 2, np.inf, 4, 5, 6])
    np.testing.assert_array_equal(np.isfinite(ops.resize(x, 12, 0)), [*[True] * 3, *[False] * 4, *[True] * 5])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 0), {}, "`sizes` must be a positive integer"),
        (((2, 3), 0), {}, "`sizes` must be one for each of 1 axes"),
        ((2, (0, 0)), {}, "`axes` must name axes with elements, each once"),
        ((2, 1), {}, "`axes` must name axes with elements"),
        ((2, 0, "area"), {}, "`interpolation` must be one of 'linear', 'cubic', 'nearest'"),
        ((2, 0), {"coordinates": "pixel"}, "`coordinates` must be one of 'half_pixel'"),
        ((2, 0, "nearest"), {"nearest": "up"}, "`nearest` must be one of"),
        ((2, 0), {"scales": -1.0}, "`scales` must be"),
        ((2, 0), {"antialias": 1}, "`antialias` must be"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ops.resize(np.zeros((3, 0, 2), np.float32), *arguments, **options)
