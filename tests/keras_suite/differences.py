"""The intended differences between Keras and mp_core, as its tests see them, with reasons.

A test is *out of scope* if it uses a name that mp_core does not have. The report counts it under that name, without a
row here. There are four kinds of such names:

- public names of Keras on the page docs/absent.md, each with its reason;
- internals of Keras' modules (adapters of data, stores of files, the functions of its backends);
- other packages (TensorFlow, JAX, Grain, pandas), whose objects mp_core treats only as arrays;
- sparse and ragged arrays.

A test that passes arguments to a name that mp_core has, and fails, is never out of scope.

A test is *documented* if a row of :data:`DIFFERENCES` covers it. Such a row covers one kind of error. A row that would
also cover a wrong number names the tests, and exists because a sentence of docs/different.md describes the difference.
"""

import re
from typing import NamedTuple

__all__ = ["DIFFERENCES", "Difference", "reason_of"]


class Difference(NamedTuple):
    """A difference that is intended."""

    tests: str
    """A regular expression that is found in the names of the tests."""
    error: str
    """One that is found in the error."""
    reason: str


_WORDS = "errors have mp_core's words: they name argument, value and choices"
_ERRORS = (
    Difference("", r'^AssertionError: .* does not match "', _WORDS),
    Difference("test_compile_overridden_warnings", r'^AssertionError: ".*" not found in "', _WORDS),
    Difference(
        "::(test_basic_flow_dict_io|test_required_input_none_raises|test_quantize_invalid_args|test_bad_layer"
        "|test_functional_dict_outputs_dict_losses_invalid_keys|test_backup_dir_none_error|test_invalid_save_format"
        "|test_unsupported_arguments|test_model_api_errors|test_saving_api_errors|test_load_keras_not_zip"
        r"|test_load_unsupported_format|test_load_weights_invalid_extension|test_deserialize_invalid_\w+"
        "|test_custom_object_without_from_config)$",
        r"^(TypeError|ValueError|FileNotFoundError|NotImplementedError): ",
        "an error is of another type: a wrong type or an unknown argument is a TypeError, a wrong value a ValueError",
    ),
    Difference("OptimizerTest::test_get_method$", "^ValueError: .* identifier: None$", "None is no optimizer"),
    Difference(
        "::test_empty_gradients$",
        "^AssertionError: Warning not triggered$",
        "variables without a gradient are named in the log, not in a warning",
    ),
)
_ATTRIBUTES = (
    Difference("", r"^AttributeError: .* has no attribute '_\w+'$", "private attributes of Keras"),
    Difference(
        "",
        r"^AttributeError: .* has no attribute '(stateless_\w+|get_state_tree|set_state_tree)'$",
        "the stateless functions and the tree of the state are of Keras' JAX backend",
    ),
    Difference("", r"^AttributeError: .* has no attribute 'export'$", "models are not exported to other runtimes"),
    Difference(
        "test_functional_with_dtype_policy|::test_layer_getters$",
        r"^(AttributeError: .* has no attribute 'operations'|AssertionError: 5 != 4)$",
        "operations between symbolic arrays are layers, which `layers` has",
    ),
    Difference(
        "::test_layers_setter$",
        "^AssertionError: AttributeError not raised$",
        "`layers` of a stack or of a model with a `call` may be set",
    ),
    Difference("tensorboard_test", r"^AttributeError: property 'optimizer' .* has no setter$", "TensorBoard"),
    Difference(
        "muon_test",
        r"^(AttributeError: .* has no attribute '(zeropower_via_newtonschulz5|lr_adjust)'|NotImplementedError: )$",
        "an optimizer's step is a rule that compiled code runs, and not methods such as `update_step`",
    ),
    Difference(
        "::test_optimizer_auto_naming$", "^AssertionError: .*adam_1", "names of optimizers are not made different"
    ),
)
_LOSSES_AND_METRICS = (
    Difference(
        "::test_default_dtype$",
        "x.dtype=float32 and dtype=float16",
        "losses and metrics are in float32 unless their `dtype` says otherwise, whatever floatx is",
    ),
    Difference(
        "(CosineSimilarity|HuberLoss)Test::test_config$",
        r"^AssertionError: .*Missing entries:\s+'(axis|delta)'",
        "configurations of Huber and CosineSimilarity have their `delta` and `axis`",
    ),
    Difference("test_weighted_dynamic_shapes?$", "^SymbolicError: ", "metrics take arrays, and no symbolic ones"),
    Difference("CTCTest", "^ValueError: `y_true` must have its zeros after", "CTC refuses labels that follow a zero"),
    Difference(
        "",
        "^ValueError: .*(`y_true` and `y_pred` must have one shape|must have the shape of `y_pred` without the last)",
        "targets and outputs whose shapes do not fit are refused",
    ),
    Difference(
        "", "^ValueError: .*`y_pred` must be from 0 to 1; received", "AUC and its like refuse outputs beyond 0 and 1"
    ),
    Difference(
        "MeanIoUTest::test_user_warning_float_weight$",
        "^Failed: DID NOT WARN",
        "IoU refuses weights that are no integers, where Keras warns",
    ),
)
_MODELS = (
    Difference("", "^ValueError: `optional` must be False", "inputs are arrays, and None is none"),
    Difference(
        "models/model_test",
        "^ValueError: `loss` must be (one loss for each output|arranged as the outputs|for 1 outputs)",
        "a loss is that of one output, and each output has one",
    ),
    Difference(
        "::(test_input_dict_with_extra_field|test_warning_for_mismatched_inputs_structure)$",
        "^Failed: DID NOT WARN",
        "inputs that are arranged in another way are an error, or taken in the order of sorted keys",
    ),
    Difference(
        "::test_nested_(shared_)?functional_model_saving$",
        r"^TypeError: `inputs` of layer '\w+' must be an array; received \[array",
        "a list of one array is no array",
    ),
    Difference(
        "::test_restored_multi_output_type_tuple$",
        r"^AssertionError: \[array.* is not an instance of <class 'tuple'>",
        "a tuple of outputs comes back as a list, as JSON has no tuples",
    ),
    Difference(
        "FunctionalTest::test_training_arg$",
        "^AssertionError: False is not true$",
        "a layer that is called with symbolic arrays runs its `call` on zeros once",
    ),
)
_FILES = (
    Difference("", "^NotImplementedError: Lambda is not a layer of mp_core", "Lambda is refused: see docs/absent.md"),
    Difference("", r"^ValueError: `filepath` must end in \.keras; .*\.h5$", "whole models are .keras files, not .h5"),
    Difference(
        "",
        "^TypeError: .* got an unexpected keyword argument '(zipped|max_shard_size)'$",
        "a model is one file, and its weights are one",
    ),
    Difference("::test_save_to_fileobj$", "^TypeError: `filepath` must be a path", "models are written to paths"),
    Difference(
        "::test_save_model_exception_raised", "^AssertionError: False is not true$", "no file is left of a failed save"
    ),
    Difference(
        "::test_load_model_rejects_extraction_bomb$",
        "^AssertionError: ValueError not raised$",
        "members of an archive that are not needed are not read",
    ),
    Difference(
        "::(test_complex_model_without_explicit_deserialization|test_missing_name_for_sequential_model)$",
        "^AssertionError: (TypeError|ValueError) not raised$",
        "files and configurations open that Keras refuses",
    ),
    Difference(
        "::test_redefinition_of_trackable$",
        "^ValueError: .* it is of another model$",
        "layers are found in files by the names of attributes, not of properties",
    ),
    Difference("::test_cyclic_container_saving$", "^RecursionError: ", "a list must not contain itself"),
    Difference(
        "::test_keras36_custom_function_reloading$",
        "^ValueError: Unknown function 'custom_registered_fn'",
        "a registered function is found by its name with the package",
    ),
    Difference("::test_simple_objects$", "^ValueError: a __slice__ cannot", "an index in a file is of integers"),
)
_TRAINING = (
    Difference(
        "steps_per_execution|::test_retracing$",
        r"^(AssertionError: \d+ (!=|not less than or equal to) \d+|ValueError: Batch index is not correct)$",
        "`steps_per_execution` changes nothing: callbacks and a `train_step` are called for each batch",
    ),
    Difference(
        "::(test_fit_flow_steps_per_epoch|test_steps_per_epoch_not_match)",
        r"^AssertionError:\s+(Not equal to tolerance|\d+ != \d+$)",
        "with `steps_per_epoch`, passes over the data follow one another",
    ),
    Difference(
        "::test_fit_with_data_adapter_generator$",
        "^ValueError: `x` has no batch for this epoch",
        "an epoch that begins with an exhausted generator is refused",
    ),
    Difference(
        "::test_predict_dropout$",
        "^AssertionError: 5 not greater than",
        "a layer that draws in `predict` draws anew for each batch",
    ),
    Difference(
        "::test_compute_loss_no_training",
        "^UnseenError: .*mp_core.metrics",
        "`compute_loss` is recorded, and cannot update a metric: `compute_metrics` can",
    ),
    Difference(
        "::test_(fit_with_data_adapter_py_dataset.*_cw|on_batch_methods_.*)$",
        "^ValueError: `class_weight` needs one class for each sample: rows of targets must be one-hot",
        "`class_weight` beside targets that name no class is refused; Keras takes the largest of a row for the class",
    ),
    Difference(
        "::test_input_shape_deprecated$",
        "^AssertionError: UserWarning not triggered$",
        "`InputLayer(input_shape=)` is taken without a warning",
    ),
)

_LAYERS = (
    Difference(
        "layers/preprocessing/image_preprocessing/", "",
        "random changes of images are not computed here: these layers are the identity, and say so in training",
    ),
    Difference(
        "", "^ValueError: mp_core has no `\\w+`: it must be",
        "arguments of Keras that mp_core does not have are refused by name",
    ),
    Difference(
        "", "^ValueError: mp_core quantizes with `",
        "layers quantize with the quantizers that Keras has by default, and refuse others by name",
    ),
    Difference(
        "", "^AttributeError: .* has no attribute '(quantization_config|inputs_quantizer|quantized_build)'$",
        "what a quantized layer holds is said by its policy",
    ),
    Difference(
        "",
        "^AttributeError: .* has no attribute "
        "'(rematerialized_call|use_cudnn|output_dtype|get_dropout_mask|data_format|transform_images)'$",
        "attributes of Keras' own layers that say how its backends compute",
    ),
    Difference(
        "", r"^(TypeError|ValueError): `\w+` must be an? (positive )?integer; received",
        "a number of another type is a TypeError, one out of range a ValueError; Keras has either",
    ),
    Difference("", "^NotImplementedError: Lambda is not a layer of mp_core", "Lambda is refused, with the reason"),
    Difference("", "`dtype` must be one of .*; received 'string'$", "mp_core has no arrays of strings"),
    Difference(
        "", "^TypeError: .*(missing 1 required positional argument|got multiple values for argument)",
        "Python's own message says which argument is missing or doubled",
    ),
    Difference(
        "UpSampling2dTest", "^ValueError: `interpolation` must be 'nearest'; received",
        "UpSampling2D repeats: other ways differ from backend to backend in Keras",
    ),
    Difference("Attention", "with 3 axes each; received", "Attention and AdditiveAttention take arrays of 3 axes"),
    Difference(
        "MultiHeadAttentionTest", "`output_shape` must be a positive integer; received",
        "outputs of MultiHeadAttention have one axis of features",
    ),
    Difference(
        "MultiHeadAttentionTest", "^ValueError: `use_causal_mask` is for arrays of 3 axes",
        "of arrays with more axes MultiHeadAttention takes `attention_mask` alone",
    ),
    Difference(
        "test_causal_only_skipped_for_subclass", "^KeyError: 'mask_is_none'$",
        "a subclass that overrides a private method of Keras changes nothing here",
    ),
    Difference(
        "test_flash_attention_with_errors", "^AssertionError: ValueError not raised$",
        "flash_attention changes nothing here, so dropout is computed beside it",
    ),
    Difference(
        "merging_test.*test_correctness_dynamic_", "^ValueError: `mask` must be 1 .* received numbers",
        "masks are True or False: random floats are refused",
    ),
    Difference(
        "merging_test.*test_(maximum|minimum|multiply)_with_mask$", "^AssertionError: \\s*Not equal to tolerance",
        "an ndarray has no mask of its own: models and `mask=` hand masks on (test_merging_masks.py has the values)",
    ),
    Difference(
        "MaskingTest::test_masking_correctness$", "^AssertionError: \\s*Not equal to tolerance",
        "a Sequential is built by zeros, of which the `call` of this test's layer has another mask",
    ),
    Difference(
        "test_tracker_locking$", "^AssertionError: ValueError not raised$",
        "a built layer may get variables: they are its weights from then on",
    ),
    Difference(
        "test_trainable_setting$", "^AssertionError: True is not false$",
        "`trainable` of a layer leaves that of its variables: trainable_variables follows from both",
    ),
    Difference(
        "DiscretizationTest::test_compute_output_shape_edge_cases$", r"^AssertionError: Tuples differ: \(1, 3\)",
        "of a scalar Keras states (3,) and returns (1, 3)",
    ),
    Difference(
        "NormalizationTest::test_adapt_pydataset", "^ValueError: Input 0 .* statistics have shape",
        "inputs have as many axes as the data of `adapt`",
    ),
    Difference(
        "rnn/", "^ValueError: Unknown cell class_name=",
        "no class is imported by the path in a configuration: register it",
    ),
    Difference(
        "rnn/gru_test", "^ValueError: `implementation` must be 1 or 2; received 0",
        "an `implementation` of old files is refused; Keras warns of it",
    ),
    Difference(
        "input_layer_test", "^AssertionError: UserWarning not triggered$",
        "the old name `input_shape` is taken without a warning",
    ),
    Difference(
        "input_layer_test", "arguments passed to InputLayer: input_tensor",
        "an input of a model is no array of another one: `input_tensor` is refused",
    ),
    Difference(
        "EinsumDenseTest", "^ValueError: `equation` .* has 2 labels .* of 3 axes",
        "the shape of the inputs must fit the equation; Keras checks it in the call alone",
    ),
)  # fmt: skip
"""Those that the tests of layers show."""

DIFFERENCES: tuple[Difference, ...] = (
    *_ERRORS,
    *_ATTRIBUTES,
    *_LOSSES_AND_METRICS,
    *_MODELS,
    *_FILES,
    *_TRAINING,
    *_LAYERS,
)


def reason_of(test: str, error: str) -> str | None:
    """Return why a test fails, or None if nothing says so."""
    for row in DIFFERENCES:
        if re.search(row.tests, test) and re.search(row.error, error, re.DOTALL):
            return row.reason
    return None
