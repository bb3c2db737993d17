"""The choice of policies by sensitivity: measurements, choices, and errors."""

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
import tiny_bert
from tiny_bert import TEXTS

import mp_core as mp
from mp_core import choose_policy, fitting, layers, sensitivity
from mp_core.arrays.quantization.microscaling import MICROSCALING
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.models import BertEncoder
from mp_core.models.fitting import measures, selection, trial

INT8 = "int8_from_mixed_bfloat16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def encoder(folder):
    return BertEncoder.from_folder(folder)


def mlp(rng, names=("a", "b", "c"), width=48):
    """Three Dense layers, and inputs for them."""
    model = layers.Sequential([layers.Dense(width, "relu", name=name) for name in names], name="mlp")
    x = rng.standard_normal((30, width))
    model(x)
    for layer in model.layers:
        kernel = rng.standard_normal((width, width)) / np.sqrt(width)
        layer.set_weights([kernel, rng.standard_normal(width) * 0.1])
    return model, x


def with_outlier(model, x, name):
    """Give a layer one input that hardly varies but weighs much: int8 then has no codes left for the others."""
    layer = next(layer for layer in model.layers if layer.name == name)
    position = model.layers.index(layer)
    kernel, bias = (weight.copy() for weight in layer.get_weights())
    kernel[0] = 1000.0
    layer.set_weights([kernel, bias])
    if position:
        before = model.layers[position - 1]
        kernel, bias = (weight.copy() for weight in before.get_weights())
        kernel[:, 0], bias[0] = 0, 1e-3
        before.set_weights([kernel, bias])
    else:
        x[:, 0] = 1e-3


def cosine_errors(outputs, reference):
    a, b = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (outputs, reference))
    return 1 - (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


# ---- sensitivity


def test_one_layer_at_a_time_against_float32(folder, encoder):
    policies = ["bfloat16", INT8]
    rows = sensitivity(encoder, TEXTS, policies)
    parts = ["attention/query", "attention/key", "attention/value", "attention/attention_output", "attention_norm"]
    parts += ["intermediate", "output", "output_norm"]
    blocks = [f"encoder/layer_{i}/{part}" for i in range(tiny_bert.LAYERS) for part in parts]
    paths = ["embeddings/word", "embeddings/position", "embeddings/norm", *blocks]
    assert [row.path for row in rows if row.policy == "bfloat16"] == paths
    assert [row.path for row in rows if row.policy == INT8] == [
        path for path in paths if not path.endswith(("norm", "position"))
    ]
    reference = encoder.encode(TEXTS).astype(np.float64)
    for row in rows[::7]:
        alone = BertEncoder.from_folder(folder, DTypePolicyMap("float32", {row.path: row.policy}))
        outputs = alone.encode(TEXTS).astype(np.float64)
        assert row.saved == encoder.weight_bytes - alone.weight_bytes
        expected = cosine_errors(outputs, reference)
        assert (row.error.max, row.error.mean) == pytest.approx((expected.max(), expected.mean()), rel=1e-3, abs=1e-12)
        rmse = np.linalg.norm(outputs - reference) / np.linalg.norm(reference)
        assert row.error.rmse == pytest.approx(rmse, rel=1e-9)


def test_the_model_stays_as_it_is(rng):
    model, x = mlp(rng)
    before = model(x)
    weights = model.get_weights()
    sensitivity(model, x)
    np.testing.assert_array_equal(model(x), before)
    assert all(map(np.shares_memory, model.get_weights(), weights))
    assert model.layers[0].quantization_mode is None


def test_microscaling_formats_are_candidates(rng):
    model, x = mlp(rng, width=64)
    words = [word for word in mp.dtype_policies.SPELLINGS if word.partition("/")[0] in MICROSCALING]
    rows = sensitivity(model, x, words)
    assert [(row.path, row.policy) for row in rows] == [
        (f"mlp/{layer.name}", f"{word}_from_mixed_bfloat16") for layer in model.layers for word in words
    ]
    assert all(0 < row.error.max < 0.05 for row in rows)
    choice = choose_policy(model, x, max_error=0.1, policies=words)
    chosen = {choice.map[f"mlp/{layer.name}"].name.partition("_from")[0] for layer in model.layers}
    assert chosen <= set(words) and {word for word in chosen if "fp4" in word}
    assert choice.nbytes < choice.reference_nbytes / 5 and choice.error.max <= 0.1


def test_layers_without_an_implementation_are_left_out(rng):
    class Both(layers.Layer):
        def build(self, input_shape):
            self.image = layers.Conv2DTranspose(2, 3, name="image")  # no codes
            self.odd = layers.EinsumDense("abcd,bde->abce", (None, None, 3), name="odd")  # many products: no int8

        def call(self, inputs):
            return self.odd(self.image(inputs))

    class Twice(layers.Layer):
        """Holds a layer in two places."""

        def build(self, input_shape):
            self.parts = {"first": layers.Dense(4, name="shared")}
            self.again = self.parts["first"]

        def call(self, inputs):
            return self.again(self.parts["first"](inputs))

    both = Both(name="both")
    x = rng.standard_normal((2, 8, 8, 3))
    both(x)
    assert {(row.path, row.policy) for row in sensitivity(both, x, ["float16", INT8])} == {
        ("both/image", "float16"), ("both/odd", "float16"),
    }  # fmt: skip
    twice = Twice(name="twice")
    x = rng.standard_normal((2, 4))
    twice(x)
    rows = sensitivity(twice, x, ["float16"])
    assert [(row.path, row.saved) for row in rows] == [("twice/shared", 2 * (16 + 4))]


def test_by_default_policies_of_16_8_and_4_bits_are_tried():
    layer = layers.Dense(8)
    layer(np.eye(8))
    rows = sensitivity(layer, np.eye(8))
    schemes = ("int8", "int8/weight_only", "int4/64")
    assert [row.policy for row in rows] == ["bfloat16", "float16", *(f"{s}_from_mixed_bfloat16" for s in schemes)]
    assert sensitivity(layer, np.eye(8), ["int8", INT8, "int8"]) == rows[2:3]


@pytest.mark.parametrize("named", [False, True])
def test_a_call_may_have_several_arguments_and_outputs_several_axes(rng, named):
    layer = layers.MultiHeadAttention(2, 4, name="attention")
    query, value = rng.standard_normal((3, 5, 8)), rng.standard_normal((3, 7, 8))
    reference = layer(query, value)
    sample = {"query": query, "value": value} if named else (query, value)
    (row, *_) = sensitivity(layer, sample, ["bfloat16"])
    alone = layer.with_policy(DTypePolicyMap("float32", {row.path: "bfloat16"}))(query, value)
    assert row.error.max == pytest.approx(cosine_errors(alone, reference).max(), rel=1e-3)


def test_several_calls_count_as_one_with_all_rows(rng):
    model, x = mlp(rng)
    together, apart = (sensitivity(model, sample, [INT8]) for sample in (x, [x[:7], {"inputs": x[7:]}]))
    for row, other in zip(together, apart, strict=True):
        assert [other.error.max, other.error.mean, other.error.rmse] == pytest.approx(
            [row.error.max, row.error.mean, row.error.rmse], rel=1e-6
        )


def test_an_output_with_one_axis_is_one_output(rng):
    class Flat(layers.Dense):
        def call(self, inputs):
            return super().call(inputs).reshape(-1)

    layer, x = Flat(5, name="flat"), rng.standard_normal((4, 3))
    exact = layer(x)
    (row,) = sensitivity(layer, x, ["bfloat16"])
    error = cosine_errors(layer.with_policy("bfloat16")(x)[np.newaxis], exact[np.newaxis])
    assert (row.error.max, row.error.mean) == pytest.approx((error[0], error[0]), rel=1e-3)


@pytest.mark.parametrize("inputs", [lambda x: x, lambda x: (list(x),), lambda x: {"inputs": x}])
def test_one_axis_as_long_as_the_inputs_has_one_number_for_each(rng, inputs):
    """As a whole, such outputs would have a cosine, which sees nothing of their size."""

    class Scores(layers.Dense):
        def call(self, inputs):
            return super().call(np.asarray(inputs))[:, 0]

    layer, x = Scores(1, name="scores"), rng.standard_normal((20, 8)).astype(np.float32)
    layer(x)
    assert choose_policy(layer, inputs(x), max_error=0.0).metric == "largest"
    with pytest.raises(ValueError, match=r"'max' cannot measure outputs of one number: .*\(20, 1\)"):
        choose_policy(layer, inputs(x), max_error=0.1, metric="max")


class Tower(layers.Sequential):
    """A user's own model: layers inside layers."""

    def __init__(self, **kwargs):
        super().__init__([layers.Dense(16, "relu", name="in")], **kwargs)
        self.heads = [layers.Sequential([layers.Dense(4, name="out")], name=name) for name in ("left", "right")]

    def call(self, inputs, shift=None):
        hidden = super().call(inputs if shift is None else inputs + shift)
        return np.concatenate([head(hidden) for head in self.heads], axis=-1)


def test_a_users_own_model_is_chosen_for(rng):
    model, x = Tower(name="tower"), rng.standard_normal((20, 8))
    sample = {"inputs": x, "shift": np.ones(8)}
    exact = model(**sample)
    choice = choose_policy(model, sample, max_error=1e-3, policies=["bfloat16", INT8])
    assert [row.path for row in choice.table] == ["tower/in", "tower/left/out", "tower/right/out"]
    assert choice.nbytes < choice.reference_nbytes / 2
    assert cosine_errors(model.with_policy(choice.map)(**sample), exact).max() <= 1e-3


class Wrapped:
    """No layer, but it has its methods."""

    def __init__(self, layer):
        self.layer = layer
        self.flatten, self.weight_bytes = layer.flatten, layer.weight_bytes

    def with_policy(self, policy):
        return Wrapped(self.layer.with_policy(policy))

    def __call__(self, scale, x):
        return scale * self.layer(x)


def test_what_has_the_methods_of_a_layer_is_a_model(rng):
    model, x = mlp(rng)
    wrapped, alone = (sensitivity(*pair, ["bfloat16"]) for pair in ((Wrapped(model), (np.float32(2), x)), (model, x)))
    assert wrapped == alone


def test_outputs_of_zeros_and_infinite_ones_have_a_defined_error():
    zero, one = np.zeros((1, 2)), np.array([[1.0, 0.0]])
    infinite = math.inf
    for outputs, reference, *expected in (
        (zero, zero, 0.0, 0.0, 0.0, 0.0, 0.0),
        (zero, one, 1.0, 1.0, 1.0, 2**0.5, 0.0),
        (one, zero, 1.0, 1.0, infinite, infinite, 0.0),
        (-one, one, 2.0, 2.0, 2.0, 2 * 2**0.5, 1.0),
        (one * np.nan, one, *[infinite] * 5),
    ):
        error = measures.error_of([outputs], [reference])
        assert dataclasses.astuple(error)[:5] == pytest.approx(expected) and math.isnan(error.own)


# ---- what can measure which outputs


def regressor(rng, units=1):
    model = layers.Sequential([layers.Dense(48, "relu"), layers.Dense(units)], name="regressor")
    x = rng.standard_normal((40, 24)).astype(np.float32)
    model(x)
    return model, x


def test_a_metric_object_counts_each_model_alone(rng):
    """It adds up what it is called with: without a new start, each run would have the mean of all before."""
    model, x = regressor(rng)
    kept = mp.metrics.MeanAbsoluteError()
    choice = choose_policy(model, x, max_error=0.02, metric=kept)
    exact = np.abs(np.float64(model.with_policy(choice.map)(x)) - model(x)).mean()
    assert choice.error.own == pytest.approx(exact, rel=1e-5) and 0 < exact <= 0.02


def test_several_outputs_are_refused_without_their_numbers(rng):
    x = rng.standard_normal((40, 24)).astype(np.float32)
    inputs = mp.Input((24,))
    hidden = layers.Dense(8, "relu")(inputs)
    model = mp.Model(inputs, [layers.Dense(1)(hidden), layers.Dense(3)(hidden)])
    with pytest.raises(TypeError, match=r"returned a list of 2\. Of a model with several outputs take"):
        choose_policy(model, x, max_error=0.0)
    one = mp.Model(model.inputs, model.outputs[0])
    assert choose_policy(one, x, max_error=0.0).metric == "largest"


def test_a_budget_of_zero_leaves_a_regressor_in_float32(rng):
    """The cosine of two numbers is 1: by it int8 would have no error at all."""
    model, x = regressor(rng)
    for sample in (x, [x[:1], x[1:]]):
        choice = choose_policy(model, sample, max_error=0.0)
        assert {row.policy for row in choice.table} == {"float32"} and choice.metric == "largest"
        assert all(math.isnan(row.error.max) and row.error.largest > 0 for row in sensitivity(model, sample))


@pytest.mark.parametrize("max_error", [1e-4, 1e-3, 1e-2, 1e-1])
def test_a_regressor_keeps_within_its_budget_of_the_largest_difference(rng, max_error):
    model, x = regressor(rng)
    exact = model(x).astype(np.float64)
    choice = choose_policy(model, x, max_error=max_error)
    outputs = model.with_policy(choice.map)(x).astype(np.float64)
    largest = np.abs(outputs - exact).max() / np.sqrt(np.mean(exact**2))
    assert choice.error.largest == pytest.approx(largest) and largest <= max_error
    assert f"largest {largest:.2e}; the budget is for largest" in str(choice) and "nan" not in str(choice)


@pytest.mark.parametrize("metric", ["max", "mean", "disagreement"])
def test_a_metric_that_cannot_measure_one_number_is_refused(rng, metric):
    model, x = regressor(rng)
    with pytest.raises(ValueError, match=rf"'{metric}' cannot measure outputs of one number: .*\(40, 1\)"):
        choose_policy(model, x, max_error=1e-3, metric=metric)


def test_one_output_of_one_number_among_others_is_found(rng):
    model, x = regressor(rng)
    wrapped = Wrapped(model)
    with pytest.raises(ValueError, match="'max' cannot measure outputs of one number"):
        choose_policy(wrapped, [(np.ones(3, np.float32), x), (np.float32(1), x)], max_error=0.1, metric="max")


def test_a_classifier_has_a_budget_of_classes_that_change(rng):
    model, x = regressor(rng, units=5)
    exact = model(x).argmax(1)
    sizes = []
    for budget in (0.0, 0.2, 1.0):
        choice = choose_policy(model, x, max_error=budget, metric="disagreement")
        other = (model.with_policy(choice.map)(x).argmax(1) != exact).mean()
        assert choice.error.disagreement == pytest.approx(other) and other <= budget
        sizes.append(choice.nbytes)
    assert sizes == sorted(sizes, reverse=True) and sizes[0] < choice.reference_nbytes


def test_a_function_measures_what_a_task_needs(rng):
    model, x = regressor(rng, units=5)
    labels = model(x).argmax(1)
    labels[::7] = 0

    def lost(outputs, reference):
        assert outputs.shape == reference.shape == (40, 5) and outputs.dtype == np.float64
        return np.mean(reference.argmax(1) == labels) - np.mean(outputs.argmax(1) == labels)

    for sample in (x, [x[:15], x[15:]]):
        choice = choose_policy(model, sample, max_error=0.0, metric=lost)
        accuracy = np.mean(model.with_policy(choice.map)(x).argmax(1) == labels)
        assert accuracy >= np.mean(model(x).argmax(1) == labels)
        assert choice.metric == "own" and choice.error.own <= 0 and choice.nbytes < choice.reference_nbytes


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [
        (lambda outputs, reference: 1.0, ValueError, "must be at most `max_error` for float32 itself; it is 1 there"),
        (lambda outputs, reference: math.nan, ValueError, "for float32 itself; it is inf"),
        (lambda outputs, reference: outputs, TypeError, r"it returned float64 of shape \(40, 1\)$"),
        ("accuracy", ValueError, "`metric` must be one of max, .*, a function or None; received 'accuracy'"),
    ],
)
def test_functions_that_measure_nothing_are_refused(rng, metric, error, message):
    model, x = regressor(rng)
    with pytest.raises(error, match=message):
        choose_policy(model, x, max_error=1e-3, metric=metric)


def test_a_function_needs_outputs_of_one_shape(encoder):
    rows = [np.ones((1, 2)), np.ones((1, 3))]
    with pytest.raises(ValueError, match=r"gets the outputs of all calls as one array.*\(2,\), \(3,\)"):
        measures.error_of(rows, rows, lambda outputs, reference: 0.0)


# ---- the choice


@pytest.mark.slow
@pytest.mark.parametrize("metric", fitting.METRICS)
@pytest.mark.parametrize("max_error", [0.0, 1e-6, 1e-4, 1e-2])
def test_the_budget_is_met_by_a_model_under_the_map(folder, encoder, metric, max_error):
    choice = choose_policy(encoder, TEXTS, max_error=max_error, metric=metric)
    assert getattr(choice.error, metric) <= max_error
    chosen = BertEncoder.from_folder(folder, choice.map)
    outputs, reference = chosen.encode(TEXTS), encoder.encode(TEXTS)
    expected = cosine_errors(outputs, reference)
    assert (choice.error.max, choice.error.mean) == pytest.approx((expected.max(), expected.mean()), abs=1e-7)
    assert (choice.nbytes, choice.reference_nbytes) == (chosen.weight_bytes, encoder.weight_bytes)
    assert choice.nbytes == choice.reference_nbytes - sum(row.saved for row in choice.table)
    assert all(choice.map[row.path].name == row.policy for row in choice.table)


@pytest.mark.slow
def test_a_larger_budget_gives_no_larger_weights(encoder):
    sizes = [choose_policy(encoder, TEXTS, max_error=error).nbytes for error in (0.0, 1e-6, 1e-4, 1e-2, 1.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == encoder.weight_bytes
    assert sizes[-1] <= min(encoder.with_policy(policy).weight_bytes for policy in ("bfloat16", INT8))


@pytest.mark.parametrize("sensitive", ["a", "b", "c"])
def test_a_layer_with_outliers_keeps_more_bits(rng, sensitive):
    model, x = mlp(rng)
    with_outlier(model, x, sensitive)
    choice = choose_policy(model, x, max_error=1e-3, policies=["float16", "int8_from_float32"])
    got = {row.path.removeprefix("mlp/"): row.policy for row in choice.table}
    assert got == {name: "float16" if name == sensitive else "int8_from_float32" for name in "abc"}
    (row,) = (row for row in choice.table if row.path.endswith(sensitive))
    assert row.reason.startswith("int8_from_float32 would bring the error to ")


def test_what_overflows_is_refused(rng):
    model, x = mlp(rng)
    kernel, bias = model.layers[1].get_weights()
    model.layers[1].set_weights([kernel * 1e6, bias])
    choice = choose_policy(model, x, max_error=0.1, policies=["float16"])
    assert [row.policy for row in choice.table] == ["float16", "float32", "float32"]
    assert choice.table[1].reason == "float16 would bring the error to inf"


@pytest.mark.slow
def test_the_same_call_gives_the_same_choice(encoder, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(selection, "process_time", lambda: float(next(ticks)))
    first, second = (choose_policy(encoder, TEXTS, max_error=1e-4) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("fast", ["bfloat16", "float16"])
def test_of_maps_of_one_size_the_fastest_wins(rng, monkeypatch, fast):
    model, x = mlp(rng)

    def times(_, runs):
        return [1.0 if run.map.default_policy.name == fast else 2.0 for run in runs]

    monkeypatch.setattr(selection._Search, "_times", times)
    choice = choose_policy(model, x, max_error=1e-2, policies=["float16", "bfloat16"])
    assert {row.policy for row in choice.table} == {fast}
    assert (choice.map.default_policy.name, choice.seconds, choice.reference_seconds) == (fast, 1.0, 2.0)


class Waiting:
    """A model that is slow by the time of day, as beside busy processes: its CPU time is that of what it holds."""

    def __init__(self, model):
        self.model = model

    def __call__(self, inputs):
        time.sleep(0.01)
        return self.model(inputs)


def test_the_time_of_other_processes_does_not_count(rng):
    """By the time of day two busy processes made 23 of 60 choices a third slower; by CPU time none of 100."""
    model, x = mlp(rng)
    search = selection._Search(trial.Trial(model, x), (), 0.0)
    alone, waiting = search._times([trial.Run(None, part, None) for part in (model, Waiting(model))])
    assert waiting < alone + 0.005


def test_rounds_that_are_slow_as_a_whole_and_single_outliers_do_not_count(rng, monkeypatch):
    model, x = mlp(rng)
    search = selection._Search(trial.Trial(model, x), (), 0.0)
    slowness = iter([1, 1, *[f for round_ in (1, 2, 3, 4, 5, 6, 7) for f in (round_, 30 if round_ == 3 else round_)]])
    seconds = {"one": 1.0, "other": 1.1}
    monkeypatch.setattr(search, "_seconds", lambda run, count: seconds[run] * next(slowness))
    one, other = search._times(list(seconds))
    assert other / one == pytest.approx(1.1)


def test_maps_of_one_size_and_nearly_one_speed_go_in_the_order_of_the_policies(rng, monkeypatch):
    model, x = mlp(rng)
    for names in (["float16", "bfloat16"], ["bfloat16", "float16"]):
        seconds = {"float32": 2.0} | dict(zip(names, (1.02, 1.0), strict=True))

        def times(_, runs, seconds=seconds):
            return [seconds[run.map.default_policy.name] for run in runs]

        monkeypatch.setattr(selection._Search, "_times", times)
        choice = choose_policy(model, x, max_error=1e-2, policies=names)
        assert {row.policy for row in choice.table} == {names[0]} and choice.seconds == 1.02


def test_the_string_is_a_table_of_the_layers(rng):
    model, x = mlp(rng)
    lines = str(choose_policy(model, x, max_error=1e-2)).splitlines()
    assert [line.split()[0] for line in lines] == [
        "layer", lines[1], "mlp/a", "mlp/b", "mlp/c", "weights:", "time:", "error:",
    ]  # fmt: skip


def test_names_that_are_regular_expressions_are_taken_as_they_are(rng):
    model, x = mlp(rng, names=("a.b", "axb", "c+"))
    choice = choose_policy(model, x, max_error=1e-5, policies=["float16"])
    assert [choice.map[row.path].name for row in choice.table] == [row.policy for row in choice.table]
    assert choice.nbytes == model.with_policy(choice.map).weight_bytes


# ---- what is refused


def built(layer):
    layer(np.ones((1, 2)))
    return layer


def usual():
    return built(layers.Dense(2)), np.eye(2)


def quantized():
    layer, x = usual()
    layer.quantize("int8")
    return layer, x


class Pair(layers.Dense):
    def call(self, inputs):
        return super().call(inputs), inputs


REFUSALS = [
    (lambda: (np.eye(2), np.eye(2)), {}, TypeError, "`model` must be a Layer, or have .*; received ndarray"),
    (lambda: (layers.Dense(2), np.eye(2)), {}, ValueError, "needs a built layer .* is not built"),
    (quantized, {}, ValueError, "unquantized weights; .* is quantized"),
    (lambda: (built(layers.Softmax()), np.eye(2)), {}, ValueError, "`model` must have layers with weights"),
    (lambda: (built(Pair(2)), np.eye(2)), {}, TypeError, "must return one floating-point array with axes"),
    (lambda: (usual()[0], np.ones((0, 2))), {}, ValueError, r"finite outputs in float32; .* \(0, 2\)"),
    (lambda: (usual()[0], np.full((1, 2), np.nan)), {}, ValueError, r"\(1, 2\) with Inf or NaN"),
    (usual, {"max_error": -1.0}, ValueError, "`max_error` must be a number of at least 0"),
    (usual, {"max_error": np.nan}, ValueError, "`max_error` must be a number of at least 0"),
    (usual, {"metric": "worst"}, ValueError, "`metric` must be one of max, mean"),
    (usual, {"policies": [None]}, TypeError, "`policies` must be names"),
    (usual, {"policies": 5}, TypeError, "`policies` must be names of policies; received 5"),
    (usual, {"policies": [["a"]]}, TypeError, r"`policies` must be names of policies; received \['a'\]"),
    (lambda: (usual()[0], None), {}, TypeError, "`sample` must be the inputs of a call.*; received None"),
    (lambda: (usual()[0], []), {}, ValueError, "finite outputs in float32; received outputs of shape no call"),
    (lambda: (usual()[0], {"x": np.eye(2)}), {}, TypeError, "unexpected keyword argument 'x'"),
    (usual, {"policies": ["int32"]}, ValueError, "must compute in floating-point"),
    (usual, {"policies": "half"}, ValueError, "`policies` must be one of .*; received 'half'"),
    (usual, {"policies": "int4"}, ValueError, "int4 must name its groups, as in int4/64"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "message"), REFUSALS)
def test_what_cannot_be_chosen_for_is_refused_by_name(arguments, options, error, message):
    model, sample = arguments()
    with pytest.raises(error, match=message):
        choose_policy(model, sample, **({"max_error": 1e-3} | options))


def test_an_encoder_needs_texts(encoder):
    with pytest.raises(ValueError, match="finite outputs in float32"):
        choose_policy(encoder, [], max_error=1e-3)
    with pytest.raises(TypeError, match="`sample` must be the inputs of a call, or a list of them; received None"):
        choose_policy(encoder, [TEXTS[0], None], max_error=1e-3)
    with pytest.raises(TypeError, match="`texts` must be a str or an iterable of str; received int"):
        choose_policy(encoder, [5], max_error=1e-3)
    assert choose_policy(encoder, "a b", max_error=1.0).error.max <= 1.0


def test_all_floats_among_outputs_by_name_are_measured(rng):
    class Named(layers.Layer):
        _sample_independence = "always"

        def __init__(self, inner, **kwargs):
            super().__init__(**kwargs)
            self.inner = inner

        def call(self, x):
            y = self.inner(x)
            return {"y": y, "half": mp.ops.multiply(y, 0.5), "count": np.array([3])}

    inner, x = mlp(rng, ("a",))
    named = Named(inner)
    named(x)
    (row,) = sensitivity(named, x, ["int8_from_float32"])
    (alone,) = sensitivity(inner, x, ["int8_from_float32"])
    assert row.error.rmse == pytest.approx(alone.error.rmse, rel=1e-6)
