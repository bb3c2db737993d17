"""The node tests of the onnx package: every one passes, or is refused for a reason that a table here states.

Some operators need constants where the tests have inputs, such as the shape of Reshape. If a graph is refused for that,
its inputs except the first become constants, and if that does not suffice, all.
"""

import importlib
import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import mp_core as mp
from mp_core.arrays.recorded import UnseenError
from mp_core.programs import OPERATORS, RefusedError
from mp_core.programs.registry import operators_of

onnx = pytest.importorskip("onnx")

NOT_IN_SCOPE = {
    "no listed architecture uses it": """
        AffineGrid Binarizer BitCast CausalConvWithState
        CenterCropPad Col2Im Compress CumProd
        DeformConv Det FlexAttention GridSample LinearAttention MaxUnpool NonMaxSuppression ReverseSequence RoiAlign
        SwiGLU TensorScatter Unique""",
    "it belongs to training": """
        Adagrad Adam Bernoulli Momentum NegativeLogLikelihoodLoss RandomUniformLike SoftmaxCrossEntropyLoss""",
    "it computes sequences or optional values": """
        Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty SequenceInsert
        SequenceLength SequenceMap SplitToSequence""",
    "it prepares strings, sound or images": """
        BlackmanWindow DFT HammingWindow HannWindow ImageDecoder LabelEncoder MelWeightMatrix RegexFullMatch STFT
        StringConcat StringNormalizer StringSplit TfIdfVectorizer""",
    "models of trees are refused": "TreeEnsemble",
}
REASONS = {name: reason for reason, names in NOT_IN_SCOPE.items() for name in names.split()}
REFUSED = {
    r"Attention\): got an unexpected keyword argument 'left_window_size'": "windows of Attention (version 24)",
    r"Attention\): got an unexpected keyword argument 'qk_matmul_output_mode'": "products of queries and keys",
    r"BatchNormalization\): `training_mode` must be one of \(0,\)": "it trains",
    r"Cast\): got an unexpected keyword argument 'round_mode'": "rounding modes of float8_e8m0fnu (version 24)",
    r"CastLike\): got an unexpected keyword argument 'round_mode'": "rounding modes of float8_e8m0fnu (version 24)",
    r"Cast\): `to` must be one of": "integers of 2 bits (version 25)",
    r"input \w+: its type, (string|sequence|optional|u?int2), is not one of numbers": "values that no program has",
    r"initializer \w* ?of shape .* has u?int2; expected numbers": "values that no program has",
    r"has strings; expected numbers": "values that no program has",
    r"Loop\): ": "loops whose end depends on inputs",
    r"Scan\): version 8 of the operator is too old": "Scan of version 8",
    r"If\): ": "a branch that depends on inputs",
}
"""Regular expression for a line of an error -> what is not supported."""
AT_THE_CALL = {
    r"test_training_dropout\w*": "it trains",
    r"test_attention_[34]d_with_(past_and_present_)?qk_matmul": "products of queries and keys",
    "test_attention_4d_softcap_neginf_mask(_poison)?": "softcap with a mask of numbers",
}
"""Regular expression for the name of a test -> what is not supported, which an error of the call says."""
ULPS = {"float16": 2**-9, "bfloat16": 2**-6}
"""Type -> the largest relative difference, 2 to 4 units in the last place: references round at each step."""


@pytest.fixture(scope="module")
def cases():
    """Return the node tests by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def kinds(case):
    """Return the operators of a test without their domains."""
    return {node.op_type for node in case.model.graph.node}


def arrays(values):
    return [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in values]


def with_constants(model, inputs, first):
    """Return a model with the values of inputs, from one of them on, as initializers."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    given = list(changed.graph.input)
    del changed.graph.input[first:]
    tensors = [
        onnx.numpy_helper.from_array(x, info.name) for info, x in zip(given[first:], inputs[first:], strict=True)
    ]
    changed.graph.initializer.extend(tensors)
    return changed


def loaded(case, path):
    """Return the model of a test, and its inputs that are no constants."""
    inputs, _ = case.data_sets[0]
    inputs = arrays(inputs)
    for count in (None, 1, 0):
        model = case.model if count is None else with_constants(case.model, inputs, count)
        path.write_bytes(model.SerializeToString())
        try:
            return mp.interop.onnx.load(path), inputs if count is None else inputs[:count]
        except RefusedError as error:
            is_for_constants = "depends on the elements" in str(error) and not any(isinstance(x, list) for x in inputs)
            if not is_for_constants or count == 0:
                raise
    raise AssertionError


def check(case, path):
    """Run a test, eagerly and by a plan; return whether a plan could be recorded."""
    model, inputs = loaded(case, path)
    expected = arrays(case.data_sets[0][1])

    def computed(*arguments):
        found = model(*arguments)
        return [found[name] for name in model.output_names] if isinstance(found, dict) else [found]

    with np.errstate(all="ignore"):
        results = computed(*inputs)
    for found, wanted in zip(results, expected, strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(found, wanted)
        else:
            rtol = max(case.rtol, ULPS.get(wanted.dtype.name, 0))
            np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol, case.atol)
    if not inputs:
        return False
    try:
        plan = mp.compile(computed, *inputs)
    except (UnseenError, TypeError):  # operations on integers and float64, which plans do not record
        return False
    assert [x.tobytes() for x in plan(*inputs)] == [np.asarray(x).tobytes() for x in results]
    return True


NAMES = sorted(
    {name.removeprefix("ai.onnx.ml.") for name in operators_of("onnx") if not name.startswith(("com.", "mp_core."))}
)


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_passes_the_tests_of_its_nodes(cases, tmp_path, name):
    for case in cases.values():
        if kinds(case) == {name} and not reason_of(case, tmp_path):
            try:
                check(case, tmp_path / "model.onnx")
            except Exception as error:
                raise AssertionError(f"{case.name}: {error}") from error


def test_graphs_of_several_operators_pass_their_tests(cases, tmp_path):
    counts = Counter()
    for case in cases.values():
        if len(kinds(case)) > 1 and not reason_of(case, tmp_path):
            try:
                counts[check(case, tmp_path / "model.onnx")] += 1
            except Exception as error:
                raise AssertionError(f"{case.name}: {error}") from error
    assert counts[True] > 100


def reason_of(case, folder):
    """Return why a test is refused, or None if it is not."""
    for pattern, reason in AT_THE_CALL.items():
        if re.fullmatch(pattern, case.name):
            with pytest.raises(ValueError, match=r"`training_mode`|computed here|softcap"):
                check(case, folder / "model.onnx")
            return reason
    try:
        loaded(case, folder / "model.onnx")
    except ValueError as error:
        unknown = re.findall(r"\((?:\S+\.)?(\w+)\): the operator is not supported", str(error))
        found = {f"{name}: {REASONS[name]}" for name in unknown if name in REASONS}
        found |= {reason for pattern, reason in REFUSED.items() if re.search(pattern, str(error))}
        assert found, f"{case.name} is refused, and no table says why: {error}"
        return ", ".join(sorted(found))
    return None


def test_what_is_refused_is_in_a_table(cases, tmp_path):
    counts = Counter(reason_of(case, tmp_path) for case in cases.values())
    print(f"{counts.pop(None)} node tests run, {counts.total()} are refused:")
    for reason, count in sorted(counts.items()):
        print(f"{count:5} {reason}")
    assert not {name for name in REASONS if name in OPERATORS}


def test_the_page_has_the_table_of_operators(monkeypatch):
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(root / "docs")
    assert "\n".join(importlib.import_module("onnx_table").rows()) in (root / "docs/onnx.md").read_text()
