"""Names of Keras that mp_core does not have, and why: errors and docs/absent.md show these reasons."""

from collections.abc import Callable
from inspect import currentframe
from opcode import opmap
from typing import NoReturn

__all__ = ["ABSENT", "message_for", "reason_for", "refuse", "refusing"]

_NUMPY = "use NumPy outside of models, and inside them the operations of `mp.ops`, which plans and gradients record"
_PYTHON = "use `if`, `for` and functions of Python: a plan records the operations that they call"
_IMAGES = "resamples or equalizes images, differently on each backend of Keras: prepare images before the model"
_IMAGE_FILES = "reads, writes or converts images: do that outside of the model"
_SIGNALS = "needs complex numbers or signals: use NumPy outside of models, such as `numpy.fft`"
_STRINGS = "reads strings or sound: models of mp_core take arrays of numbers"
_OTHERS = "runs code or models of another library"

_DOWNLOADS = "downloads, which mp_core never does: models come from files (`mp.load_model`) and folders (`mp.models`)"
_ONE_BACKEND = "controls the backends of Keras: mp_core has one backend, which computes on CPUs"

ABSENT: dict[str, dict[str, str]] = {
    "": {
        "applications datasets": _DOWNLOADS,
        "Variable": "is `mp.AutoCastVariable`; layers create variables by `add_weight`",
        "Operation Function InputSpec": "call functions of `mp.ops` with symbolic arrays, and use "
        "`mp.Model(inputs, outputs)`; layers check their own inputs",
        "Quantizer": "is the base class of `mp.quantizers`",
        "backend device distribution name_scope remat RematScope StatelessScope SymbolicScope": _ONE_BACKEND,
        "distillation": "is `mp.distill` for encoders; for other models write a `compute_loss`",
        "export": "writes formats of other libraries: `model.save` writes files of Keras",
        "preprocessing": "`pad_sequences` is in `mp.utils`; prepare images and texts before the model",
        "visualization": "draws with other libraries: `model.summary()` prints a model",
        "wrappers": "wraps models for scikit-learn: `mp.interop.sklearn` has estimators of encoders",
        "legacy src tree version": "is internal to Keras, or old; `mp.__version__` is the version",
    },
    "layers": {
        "Lambda": "runs code from a file or a closure: write a Layer with this `call`, use `Activation` for a "
        "function of elements, or functions of `mp.ops` between symbolic arrays, which are layers",
        "StringLookup IntegerLookup Hashing HashedCrossing TextVectorization MelSpectrogram STFTSpectrogram": _STRINGS,
        "AutoContrast CenterCrop ContrastLimitedAdaptiveHistogramEqualization Equalization RandomCrop Resizing "
        "Solarization": _IMAGES,
        "MaxNumBoundingBoxes Pipeline": "takes dictionaries of data sets: prepare them before the model",
        "FlaxLayer JaxLayer TFSMLayer TorchModuleWrapper": _OTHERS,
        "ConvLSTM1D ConvLSTM2D ConvLSTM3D": "write a Layer with convolutions, and use it as the cell of an `RNN`",
        "ReversibleEmbedding": "use an `Embedding`, and a Layer of your own that multiplies by its table",
        "InputSpec Wrapper": "layers check their own inputs; to wrap a layer, assign it to an attribute of a Layer",
        "deserialize serialize": "is `mp.saving.deserialize_keras_object` or `serialize_keras_object` for all objects",
    },
    "losses": {},
    "metrics": {
        "binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy "
        "categorical_hinge hinge huber kl_divergence log_cosh mean_absolute_error mean_absolute_percentage_error "
        "mean_squared_error mean_squared_logarithmic_error poisson sparse_categorical_crossentropy squared_hinge":
            "is a function of `mp.losses`",
    },
    "utils": {
        "get_file": _DOWNLOADS,
        "FeatureSpace": _STRINGS,
        "array_to_img bounding_boxes img_to_array load_img save_img": _IMAGE_FILES,
        "audio_dataset_from_directory image_dataset_from_directory text_dataset_from_directory "
        "timeseries_dataset_from_array split_dataset": "creates data sets of TensorFlow or torch: pass `fit` arrays, "
        "generators of batches, or an `mp.utils.PyDataset`",
        "model_to_dot plot_model": "draws with other libraries: `model.summary()` prints a model",
        "Progbar disable_interactive_logging enable_interactive_logging is_interactive_logging_enabled":
            "use `verbose` of `fit`, `evaluate` and `predict`",
        "Config get_source_inputs legacy standardize_dtype": "is internal to Keras: `mp.dtypes` parses types",
    },
    "initializers": {
        "IdentityInitializer OrthogonalInitializer": "is `Identity` or `Orthogonal`",
        "STFT STFTInitializer stft": _SIGNALS,
    },
    "saving": {
        "KerasFileEditor": "edits files: use `mp.load_model`, change the model, then `model.save`",
        "load_weights save_weights": "is a method of models",
    },
    "random": {
        "beta binomial categorical gamma randint shuffle truncated_normal":
            "use `normal`, `uniform` and `dropout` inside models, and `numpy.random` outside of them",
    },
    "config": {
        "backend disable_flash_attention enable_flash_attention is_flash_attention_enabled is_nnx_enabled set_backend":
            _ONE_BACKEND,
        "image_data_format set_image_data_format": "is `data_format` of each layer; it is channels_last by default",
        "disable_interactive_logging enable_interactive_logging is_interactive_logging_enabled":
            "use `verbose` of `fit`, `evaluate` and `predict`",
        "disable_traceback_filtering enable_traceback_filtering is_traceback_filtering_enabled":
            "mp_core does not filter tracebacks",
        "enable_unsafe_deserialization": "would run code from files, which mp_core never does",
        "max_epochs max_steps_per_epoch set_max_epochs set_max_steps_per_epoch": "is `epochs` and `steps_per_epoch` of "
        "`fit`",
        "set_epsilon": "each layer has its own `epsilon`",
    },
    "quantizers": {
        "Quantizer": "is the base of the classes here",
    },
    "optimizers": {
        "MultiOptimizer OptimizerMap": "one optimizer trains all variables; freeze layers, or write a `train_step`",
        "ScheduleFreeAdamW": "trains one set of weights, but files and `predict` would need the other, averaged one",
        "legacy": "has optimizers that Keras itself no longer supports",
    },
    "callbacks": {
        "OrbaxCheckpoint": "writes a format of JAX: `ModelCheckpoint` and `BackupAndRestore` write files of Keras",
        "RemoteMonitor TensorBoard": "sends logs to other programs: use `LambdaCallback`, or `CSVLogger` for files",
    },
    "ops": {
        "associative_scan cond custom_gradient fori_loop jvp map scan select switch vectorize vectorized_map "
        "while_loop": _PYTHON,
        "cholesky cholesky_inverse det eig eigh inv linalg logdet lstsq lu_factor matrix_rank pinv qr slogdet "
        "solve solve_triangular svd": "is linear algebra, which needs float32 or float64: `numpy.linalg` has it",
        "fft fft2 ifft2 irfft istft rfft stft extract_sequences polar psnr angle conj conjugate imag real isreal "
        "view_as_complex view_as_real": _SIGNALS,
        "image depth_to_space space_to_depth fold unfold": "resamples or rearranges images: prepare images before the "
        "model",
        "ctc_decode ctc_loss layer_normalization moments multi_hot rms_normalization "
        "separable_conv binary_crossentropy categorical_crossentropy sparse_categorical_crossentropy":
            "is a layer of `mp.layers`, a function of `mp.losses` or of `mp.utils`",
        "copy dtype is_tensor saturate_cast size ndim view":
            "arrays are NumPy's: use `np.asarray`, `mp.cast(..., saturate=True)` and attributes of arrays",
        "nn numpy": "is another name of the same functions of `keras.ops`",
        "allclose amax amin append arctan2 argpartition array array_split average bartlett bincount "
        "blackman cbrt cdist corrcoef correlate count_nonzero cross cumprod deg2rad diag diagflat diagonal "
        "diff digitize divide_no_nan dsplit dstack empty empty_like erfinv fabs fliplr flipud fmax fmin gcd "
        "geomspace get_item hamming hanning heaviside histogram hsplit hstack hypot i0 identity in_top_k "
        "inner isclose isin isneginf isposinf kaiser kron lcm ldexp "
        "logaddexp logaddexp2 logspace median meshgrid nan_to_num nanargmax nanargmin nancumprod nancumsum "
        "nanmax nanmean nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar nextafter "
        "nonzero outer percentile ptp quantile rad2deg rearrange rot90 searchsorted segment_max segment_min "
        "segment_prod segment_sum signbit sinc tensordot trace trapezoid tri unique unravel_index "
        "unstack vander vdot vsplit vstack":
            _NUMPY,
    },
}  # fmt: skip
"""Module of Keras -> names that mp_core does not have, separated by spaces -> why."""


def reason_for(name: str, module: str | None = None) -> str | None:
    """Return why mp_core lacks a name of a module of Keras (default: of any module), or None if Keras lacks it too.

    >>> reason_for("JaxLayer", "layers")
    'runs code or models of another library'
    """
    tables = ABSENT.values() if module is None else [ABSENT.get(module, {})]
    found = (why for table in tables for names, why in table.items() if name in names.split())
    return next(found, None)


def message_for(name: str, module: str | None = None) -> str:
    """Return the end of an error about a missing name: ": REASON" if Keras has the name, else ""."""
    reason = reason_for(name, module)
    return "" if reason is None else f": {reason}"


def refuse(name: str, module: str) -> NoReturn:
    """Raise the error of a missing name, for ``__getattr__`` of a module that mirrors one of Keras.

    It is an AttributeError; in ``from MODULE import NAME`` it is an ImportError, because Python would replace an
    AttributeError by an ImportError without the reason.
    """
    path = f"mp_core.{module}" if module else "mp_core"
    reason = message_for(name, module)
    if reason and _is_imported_from():
        raise ImportError(f"cannot import name {name!r} from {path!r}{reason}", name=path)
    raise AttributeError(f"module {path!r} has no attribute {name!r}{reason}")


def _is_imported_from() -> bool:
    """Return whether ``from MODULE import NAME`` called ``__getattr__``, by the bytecode of the calling frame."""
    frame = currentframe()
    while frame is not None and (frame.f_globals.get("__name__") == __name__ or frame.f_code.co_name == "__getattr__"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]


def refusing(module: str, names: list[str]) -> tuple[Callable[[str], NoReturn], Callable[[], list[str]]]:
    """Return ``__getattr__`` (which raises, with the reason) and ``__dir__`` for a module that mirrors one of Keras."""

    def getattr_of_module(name: str) -> NoReturn:
        refuse(name, module)

    return getattr_of_module, lambda: names
