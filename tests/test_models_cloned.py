"""Clones of models: new layers and weights, and the same outputs with the same weights. Formulas are Keras'."""

import numpy as np
import pytest
from users_models import make_classes

import mp_core as mp
from mp_core import layers
from mp_core.models import clone_model

rng = np.random.default_rng(0)
X = rng.standard_normal((4, 4)).astype(np.float32)
CLASSES = make_classes(mp)


def _functional(shared=False):
    x = mp.Input((4,))
    h = layers.Dense(4, "relu")(x)
    if shared:
        layer = layers.Dense(4, name="shared")
        h = layer(layer(h))
    return mp.Model(x, layers.Dense(2)(h * 2.0 + 1.0))


def _nested():
    x = mp.Input((4,))
    return mp.Model(x, layers.Dense(3)(_functional()(layers.Dense(4)(x))))


MODELS = {
    "functional": _functional,
    "shared": lambda: _functional(shared=True),
    "nested": _nested,
    "stack": lambda: mp.Sequential([mp.Input((4,)), layers.Dense(3), layers.Dense(2)]),
    "unbuilt": lambda: mp.Sequential([layers.Dense(3), mp.Sequential([layers.Dense(3)]), layers.Dense(2)]),
    "users": lambda: CLASSES["Plain"](units=5),
    "with config": lambda: CLASSES["Configured"](layers.Dense(2)),
    "users graph": lambda: CLASSES["GraphOfUnits"](units=3),
    "users stack": lambda: CLASSES["Stack"]([CLASSES["Scaled"](3), layers.Dense(2)]),
}


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_clone_has_layers_of_its_own_and_the_same_outputs(name, recursive):
    model = MODELS[name]()
    clone = clone_model(model, recursive=recursive)
    for each in (model, clone):
        each(X)
    assert clone is not model and clone.name == model.name
    assert not {id(v) for v in clone.weights} & {id(v) for v in model.weights}
    if name not in ("users", "with config", "users graph"):  # whose constructors make the layers
        assert [layer.name for layer in clone.layers] == [layer.name for layer in model.layers]
    clone.set_weights(model.get_weights())
    assert clone(X).tobytes() == model(X).tobytes()


@pytest.mark.parametrize("name", ["functional", "stack"])
def test_a_function_says_what_comes_in_the_place_of_a_layer(name):
    def renamed(layer):
        return type(layer).from_config(layer.get_config() | {"name": f"{layer.name}_own"})

    model = MODELS[name]()
    clone = clone_model(model, clone_function=renamed)
    for one, other in zip(model.layers, clone.layers, strict=True):
        assert isinstance(one, layers.InputLayer) or other.name == f"{one.name}_own"


@pytest.mark.parametrize("recursive", [False, True])
def test_a_function_says_how_layers_are_called(recursive):
    def dropped(layer, *args, **kwargs):
        outputs = layer(*args, **kwargs)
        return layers.Dropout(0.5)(outputs) if isinstance(layer, layers.Dense) else outputs

    model = _nested()
    clone = clone_model(model, clone_function=lambda layer: layer, call_function=dropped, recursive=recursive)
    added = sum(isinstance(layer, layers.Dropout) for layer in clone.flatten())
    assert added == (4 if recursive else 2)
    assert clone(X).tobytes() == model(X).tobytes()  # the same layers, without training


def test_inputs_can_be_given_and_keep_their_arrangement():
    a, b = mp.Input((4,), name="a"), mp.Input((4,), name="b")
    model = mp.Model({"x": a, "y": b}, {"sum": layers.Dense(2)(a + b), "a": a * 1.0})
    for given in (None, {"x": mp.Input((4,)), "y": mp.Input((4,))}):
        clone = clone_model(model, input_tensors=given)
        clone.set_weights(model.get_weights())
        found, want = (each({"x": X, "y": X}) for each in (clone, model))
        assert sorted(found) == ["a", "sum"] and all(found[key].tobytes() == want[key].tobytes() for key in want)
    with pytest.raises(ValueError, match="`input_tensors` must be arranged as"):
        clone_model(model, input_tensors=[a, b])
    with pytest.raises(ValueError, match="`input_tensors` must be one KerasTensor"):
        clone_model(MODELS["stack"](), input_tensors=[a, b])


def test_what_does_not_go_with_a_model_is_refused():
    for arguments in ({"clone_function": lambda layer: layer}, {"call_function": lambda *args: args}):
        with pytest.raises(ValueError, match="needs a functional model"):
            clone_model(CLASSES["Plain"](), **arguments)
    with pytest.raises(ValueError, match="`call_function` needs a functional"):
        clone_model(MODELS["stack"](), call_function=lambda *args: args)
    with pytest.raises(TypeError, match="`model` must be a model"):
        clone_model(layers.Dense(2))


@pytest.mark.parametrize("name", ["functional", "users", "stack"])
def test_a_clone_is_compiled_with_an_optimizer_and_metrics_of_its_own(name):
    model = MODELS[name]()
    model.compile(mp.optimizers.Adam(0.125), "mse", metrics=["mae"])
    model.fit(X, X[:, :2], epochs=2, verbose=0)
    clone = clone_model(model)
    assert float(clone.optimizer.learning_rate) == 0.125 and int(clone.optimizer.iterations) == 0
    before = [weight.copy() for weight in model.get_weights()]
    clone.fit(X, X[:, :2], epochs=1, verbose=0)
    assert all(one.tobytes() == other.tobytes() for one, other in zip(before, model.get_weights(), strict=True))
    assert len(clone.evaluate(X, X[:, :2], verbose=0)) == 2


def test_adapted_and_quantized_layers_are_cloned_as_such():
    model = MODELS["stack"]()
    model.quantize("int8")
    model.layers[0].enable_lora(2)
    clone = clone_model(model)
    assert [layer.quantization_mode for layer in clone.layers] == ["int8", "int8"]
    assert clone.layers[0].lora_enabled and not clone.layers[1].lora_enabled
