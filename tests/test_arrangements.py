"""Arrangements of inputs, outputs and targets: dicts have names, and lists stand for them only in sorted order."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import mp_core as mp
from mp_core.training.batches import concatenated
from mp_core.utilities.tree import map_leaves

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

B, A = np.full((4, 3), 10, np.float32), np.full((4, 3), 1, np.float32)
GIVEN = {
    "list": lambda first, second: [first, second],
    "tuple": lambda first, second: (first, second),
    "dict": lambda first, second: {"b": first, "a": second},
    "dict in another order": lambda first, second: {"a": second, "b": first},
}
INPUTS = {
    "unsorted dict": lambda b, a: {"b": b, "a": a},
    "sorted dict": lambda b, a: {"a": a, "b": b},
    "list": lambda b, a: [b, a],
    "tuple": lambda b, a: (b, a),
}


def _model(k, arrange):
    """Return a model that computes 2 b + a."""
    b, a = k.Input((3,), name="b"), k.Input((3,), name="a")
    same = k.layers.Dense(3, kernel_initializer="identity", name="same")
    return k.Model(arrange(b, a), same(k.layers.Add(name="sum")([k.layers.Rescaling(2.0, name="twice")(b), a])))


def _computed(call):
    """Return the first element, or None for inputs that are refused."""
    try:
        return float(np.asarray(call()).flat[0])
    except ValueError:
        return None


@pytest.mark.filterwarnings("ignore:Exception encountered:UserWarning", "ignore:The structure:UserWarning")  # Keras'
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("arrange", INPUTS.values(), ids=INPUTS)
def test_every_way_into_a_model_takes_and_refuses_what_keras_does(arrange, given, tmp_path):
    x, model = given(B, A), _model(mp, arrange)
    want = _computed(lambda: keras.ops.convert_to_numpy(_model(keras, arrange)(x)))
    model.compile(mp.optimizers.SGD(0.0), "mse")
    loss = None if want is None else want**2
    zeros = np.zeros_like(A)
    model.save(tmp_path / "m.keras")
    loaded = mp.load_model(tmp_path / "m.keras")
    for each in (model, loaded, mp.models.model_from_json(model.to_json())):
        assert [_computed(lambda way=way: way(x)) for way in (each, each.predict_on_batch, each.predict)] == [want] * 3
        assert _computed(lambda each=each: mp.compile(each, x)(x)) == want
    for each in (model, loaded):
        assert _computed(lambda each=each: each.evaluate(x, zeros, verbose=0)) == loss
        assert _computed(lambda each=each: each.test_on_batch(x, zeros)) == loss
        assert _computed(lambda each=each: each.train_on_batch(x, zeros)) == loss
        fitted = _computed(lambda each=each: each.fit(x, zeros, verbose=0).history["loss"][0])
        assert fitted == loss


def test_the_error_says_which_arrangement_is_wanted_and_why_a_list_is_none():
    message = (
        r"arranged as \{'b': 'b', 'a': 'a'\}, by their keys: .*not sorted.*received \['array of \(4, 3\)', 'array of"
    )
    with pytest.raises(ValueError, match=message):
        _model(mp, INPUTS["unsorted dict"]).predict([B, A], verbose=0)
    with pytest.raises(ValueError, match=r"arranged as \['b', 'a'\]; received \{'b': 'array of \(4, 3\)'\}"):
        _model(mp, INPUTS["list"])({"b": B})


def test_a_nested_dict_with_unsorted_keys_takes_no_list_either():
    for arrange in (lambda b, a: [{"b": b, "a": a}], lambda b, a: {"q": {"b": b, "a": a}}):
        model = _model(mp, arrange)
        assert model(arrange(B, A))[0, 0] == 21
        with pytest.raises(ValueError, match="not sorted"):
            model([[B, A]] if isinstance(arrange(B, A), list) else {"q": [B, A]})


def test_one_named_input_comes_as_a_dict_of_one():
    x = mp.Input((3,), name="x")
    for inputs in (x, [x], {"x": x}):
        model = mp.Model(inputs, mp.layers.Dense(3, kernel_initializer="identity")(x + x))
        model.compile("sgd", "mse")
        assert (model.predict({"x": A}, verbose=0) == 2).all()
        assert model.evaluate({"x": A}, 0 * A, verbose=0) == 4
        assert model.train_on_batch({"x": A}, 0 * A) == 4
    with pytest.raises(ValueError, match=r"arranged as x; received \{'y': 'array of \(4, 3\)'\}"):
        mp.Model(x, mp.layers.Rescaling(2.0)(x)).predict({"y": A}, verbose=0)


def _nested(k):
    """Return a model around one whose outputs are a dict with unsorted keys: it computes 10 x - x."""
    i, x = k.Input((3,), name="i"), k.Input((3,), name="x")
    outputs = {"b": k.layers.Rescaling(10.0, name="tenfold")(i), "a": k.layers.Rescaling(1.0, name="same")(i)}
    found = k.Model(i, outputs, name="inner")(x)
    return k.Model(x, k.layers.Subtract(name="difference")([found["b"], found["a"]]), name="outer")


def test_outputs_of_a_layer_that_are_a_dict_are_counted_as_in_keras_files(tmp_path):
    ours, theirs = _nested(mp), _nested(keras)
    ours.save(tmp_path / "ours.keras")
    theirs.save(tmp_path / "theirs.keras")
    assert ours(A)[0, 0] == 9
    assert mp.load_model(tmp_path / "ours.keras")(A)[0, 0] == 9
    assert mp.load_model(tmp_path / "theirs.keras")(A)[0, 0] == 9
    assert mp.models.model_from_json(theirs.to_json())(A)[0, 0] == 9
    assert keras.ops.convert_to_numpy(keras.models.load_model(tmp_path / "ours.keras")(A))[0, 0] == 9


def _layered(k):
    class First(k.layers.Layer):
        def call(self, inputs):
            return inputs["q"]

        def compute_output_shape(self, shapes):
            return shapes["q"]

    x, y = k.Input((3,), name="x"), k.Input((3,), name="a")
    made = {name: k.layers.Dense(3, name=name)(of) for name, of in (("q", x), ("p", y), ("r", x))}
    return k.Model({"x": x, "a": y}, {"z": First(name="f")({"q": made["q"], "p": made["p"]}), "b": made["r"]})


def test_layers_between_dicts_come_in_keras_order_so_that_lists_of_weights_are_those_of_the_same_layers():
    ours, theirs = _layered(mp), _layered(keras)
    assert [layer.name for layer in ours.layers] == [layer.name for layer in theirs.layers]
    assert [w.path for w in ours.weights] == [w.path for w in theirs.weights]


@pytest.mark.parametrize("arrange", [lambda y: y, lambda y: [y], lambda y: (y,), lambda y: {"o": y}, lambda y: [[y]]])
def test_one_output_in_a_list_comes_without_it_as_in_keras(arrange, tmp_path):
    def model(k):
        x = k.Input((3,), name="x")
        return k.Model(x, arrange(k.layers.Dense(2, kernel_initializer="ones", name="o")(x)))

    def shapes(outputs):
        return map_leaves(np.shape, outputs)

    ours, theirs = model(mp), model(keras)
    theirs.save(tmp_path / "k.keras")
    ours.save(tmp_path / "m.keras")
    want = shapes(theirs.predict(A, verbose=0))
    for each in (ours, mp.load_model(tmp_path / "m.keras"), mp.load_model(tmp_path / "k.keras")):
        for call in (each, each.predict_on_batch, each.predict, mp.compile(each, A)):
            assert shapes(call(A)) == want
        each.compile("sgd", "mse")
        assert each.evaluate(A, 0 * A[:, :2], verbose=0) == 9
    for k, each in ((mp, ours), (keras, theirs)):  # symbolic outputs keep their list
        assert map_leaves(lambda x: x.shape, each(k.Input((3,)))) == arrange((None, 2))


def test_the_mask_of_one_output_in_a_list_goes_on():
    i = mp.Input((4,), dtype="int32")
    inner = mp.Model(i, [mp.layers.Embedding(5, 2, mask_zero=True)(i)])
    model = mp.Sequential([inner, mp.layers.GlobalAveragePooling1D()])
    ids = np.array([[3, 1, 0, 0]])
    np.testing.assert_allclose(model(ids), inner(ids)[:, :2].mean(1), rtol=1e-6)


def _two_outputs(keys):
    x = mp.Input((3,), name="x")
    outputs = {"b": mp.layers.Rescaling(10.0, name="tenfold")(x), "a": mp.layers.Rescaling(1.0, name="same")(x)}
    return mp.Model(x, {key: outputs[key] for key in keys})


@pytest.mark.parametrize("argument", ["y", "sample_weight", "loss", "loss_weights", "metrics", "weighted_metrics"])
def test_what_is_given_for_outputs_with_unsorted_keys_is_no_list(argument):
    y = {"y": {"b": 0 * A, "a": 0 * A}, "sample_weight": None}
    how = {"loss": "mse"}
    (y if argument in y else how)[argument] = {
        "y": [0 * A, 0 * A], "sample_weight": [A[:, 0], A[:, 0]], "loss": ["mse", "mae"], "loss_weights": [1.0, 2.0],
    }.get(argument, [["mse"], ["mae"]])  # fmt: skip
    model = _two_outputs("ba")
    model.compile("sgd", **how)
    with pytest.raises(ValueError, match=r"must be a dict by the names of the outputs, b, a: the names are not sorted"):
        model.evaluate(A, verbose=0, **y)
    model = _two_outputs("ab")
    model.compile("sgd", **how)
    model.evaluate(A, verbose=0, **y)


@pytest.mark.parametrize("keys", ["ba", "ab"])
def test_losses_and_weights_for_outputs_by_name_are_theirs_whatever_the_order(keys):
    model = _two_outputs(keys)
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 3.0, "b": 1.0}, metrics={"b": ["mse"]})
    logs = model.evaluate(A, {"a": 3 * A, "b": 0 * A}, sample_weight=np.ones(4), verbose=0, return_dict=True)
    assert logs == {"loss": 22, "a_loss": 4, "b_loss": 10, "b_mse": 100}
    model.compile("sgd", "mse", loss_weights=0.5)  # one for all
    assert (
        model.evaluate(A, {"a": 0 * A, "b": 0 * A}, sample_weight=A[:, 0], verbose=0, return_dict=True)["loss"] == 50.5
    )


def test_outputs_of_batches_whose_keys_come_in_another_order_are_joined_by_name():
    class Same(mp.Model):
        def call(self, inputs):
            return {key: x + 0 for key, x in inputs.items()}

    batches = [{"a": A, "b": B}, {"b": B, "a": A}]
    found = Same().predict(iter(batches), verbose=0)
    assert (found["a"] == 1).all() and (found["b"] == 10).all() and len(found["a"]) == 8
    with pytest.raises(ValueError, match="outputs of every batch must be arranged as"):
        concatenated([{"a": A}, [A]])


# ---- stacks whose first layer takes several inputs


def _taking(k, name):
    """Return layer and inputs: the layer computes 2 b - a, or is one of Keras' that takes a list."""

    class OfDict(k.layers.Layer):
        def call(self, inputs):
            return inputs["b"] * 2 - inputs["a"]

    class OfList(k.layers.Layer):
        def call(self, inputs):
            return inputs[0] * 2 - inputs[1]

    return {
        "dict": lambda: (OfDict(), {"b": B, "a": A}),
        "list": lambda: (OfList(), [B, A]),
        "tuple": lambda: (OfList(), (B, A)),
        "Add": lambda: (k.layers.Add(), [B, A]),
        "Concatenate": lambda: (k.layers.Concatenate(), [B, A]),
    }[name]()


def _stack(k, name):
    first, x = _taking(k, name)
    model = k.Sequential([first, k.layers.Dense(3, kernel_initializer=k.initializers.Constant(0.5))])
    model.compile(k.optimizers.SGD(0.0), "mse")
    return model, x, type(first)


@pytest.mark.filterwarnings("ignore:Exception encountered:UserWarning", "ignore:The structure:UserWarning")  # Keras'
@pytest.mark.parametrize("name", ["dict", "list", "tuple", "Add", "Concatenate"])
def test_a_stack_takes_the_inputs_of_its_first_layer(name, tmp_path):
    (ours, x, own), (theirs, _, _) = _stack(mp, name), _stack(keras, name)
    want = theirs.predict(x, verbose=0)
    np.testing.assert_array_equal(ours.predict(x, verbose=0), want)
    np.testing.assert_array_equal(ours(x), want)
    np.testing.assert_array_equal(mp.compile(ours, x)(x), want)
    assert ours.fit(x, 0 * A, epochs=2, verbose=0).history["loss"] == [(want**2).mean()] * 2
    assert ours.evaluate(x, 0 * A, verbose=0) == (want**2).mean()
    ours.save(tmp_path / "m.keras")
    loaded = mp.load_model(tmp_path / "m.keras", custom_objects={own.__name__: own})
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), want)
    assert loaded.count_params() == theirs.count_params()
    assert mp.Model(ours.input, ours.output)(x)[0, 0] == want[0, 0]
    ours.summary(print_fn=lambda text: None)
    if name in ("Add", "Concatenate"):
        theirs.save(tmp_path / "k.keras")
        np.testing.assert_array_equal(mp.load_model(tmp_path / "k.keras").predict(x, verbose=0), want)
        np.testing.assert_array_equal(keras.models.load_model(tmp_path / "m.keras").predict(x, verbose=0), want)


def test_a_stack_is_built_for_several_shapes_known_or_not():
    for shapes in ([(None, 3), (None, 3)], [(4, 3), (4, 3)], [(None, None, 3), (None, None, 3)]):
        model = mp.Sequential([mp.layers.Add(), mp.layers.Dense(2)])
        model.build(shapes)
        assert model.count_params() == 8 and model.compute_output_shape(shapes) == (*shapes[0][:-1], 2)
    model = mp.Sequential([mp.Input((3,)), mp.layers.Dense(2)])
    with pytest.raises(TypeError, match="must be an array; received"):
        model([A, A])


def test_a_stack_begins_with_a_model_whose_inputs_are_known_and_is_built_at_once():
    for k in (mp, keras):
        x = k.Input((3,))
        model = k.Sequential([k.Model(x, k.layers.Dense(3)(x)), k.layers.Dense(2, name="last")])
        assert model.built and model.count_params() == 12 + 8
        model = k.Sequential([k.Sequential([k.Input((3,)), k.layers.Dense(2)], name="a"), k.layers.Dense(2, name="b")])
        assert model.built and model.count_params() == 8 + 6
    assert mp.Sequential([_model(mp, INPUTS["unsorted dict"]), mp.layers.Dense(2)]).count_params() == 12 + 8


def test_stacks_refuse_what_keras_refuses():
    for k in (mp, keras):
        with pytest.raises(ValueError, match=r"unique name"):
            k.Sequential([k.layers.Dense(2, name="d"), k.layers.Dense(2, name="d")])
        with pytest.raises(ValueError, match="no layers"):
            k.Sequential()(A)
        model = k.Sequential([k.Input((3,)), k.layers.Dense(2)])
        with pytest.raises(ValueError, match=r"`input_shape` of .* \(3, 4\)|input_shape \(3, 4\)"):
            model.build((3, 4))
        assert model.get_compile_config() == {}
    shared = mp.layers.Dense(3)
    assert mp.Sequential([shared, shared])(A).shape == (4, 3)
