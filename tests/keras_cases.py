"""The cases of `keras_layers.py` (with Keras) and `test_layers_keras_table.py` (with mp_core): names and arguments."""

import itertools

MIXED = ("mixed_bfloat16", "mixed_float16")

# ---- the dtypes of inputs

WAYS = ("stack", "stack in a stack", "functional in a stack", "stack in a functional")
FIRST = ("floats to an Embedding", "integers to an Embedding", "1e5 to a LayerNormalization", "1e5 to a float32 Dense",
         "integers to a Softmax", "booleans to a Dense", "float64 to an Identity")  # fmt: skip
DTYPES = {"floats to an Embedding": ("float32", "int32", "bfloat16"), "integers to an Embedding": ("float32", "int32")}
INPUTS = [
    (policy, way, first, dtype)
    for policy, way, first in itertools.product(MIXED, WAYS, FIRST)
    for dtype in DTYPES.get(first, ("float32", "float16"))
]
"""Policy, arrangement, first layer with its inputs, dtype of the Input."""


def name_of(case):
    """Return the name of a case, which its files have."""
    return "-".join(map(str, case)).replace(" ", "_")


# ---- layers

POLICIES = ("float32", "mixed_bfloat16")
ACTIVATIONS = (
    "celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh",
    "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu",
    "soft_shrink", "softmax", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "squareplus",
    "swish", "tanh", "tanh_shrink",
)  # fmt: skip
ROW, LINE, IMAGE, VOLUME, RGB = (6,), (7, 4), (6, 8, 4), (4, 5, 6, 3), (6, 8, 3)
FIRST_CHANNELS = {"data_format": "channels_first"}
LAYERS = [
    *(("Activation", {"activation": name}, ROW) for name in ACTIVATIONS),
    # the identity in inference
    ("SpatialDropout2D", {"rate": 0.5, **FIRST_CHANNELS}, IMAGE),
    ("SpatialDropout3D", {"rate": 0.5}, VOLUME),
    *((name, {}, RGB, "uint8") for name in ("AugMix", "CutMix", "MixUp", "RandAugment")),
    *(
        (f"Random{name}", {"factor": 0.3}, RGB, "uint8")
        for name in (
            "Brightness", "ColorDegeneration", "Contrast", "Erasing", "GaussianBlur", "Grayscale", "Hue", "Invert",
            "Rotation", "Saturation", "Sharpness",
        )
    ),
    ("RandomPosterization", {"factor": 4}, RGB, "uint8"), ("RandomColorJitter", {"hue_factor": 0.3}, RGB, "uint8"),
    ("RandomElasticTransform", {}, RGB, "uint8"), ("RandomPerspective", {}, RGB, "uint8"),
    ("RandomShear", {"x_factor": 0.2}, RGB, "uint8"), ("RandomFlip", {"mode": "horizontal"}, RGB, "uint8"),
    ("RandomZoom", {"height_factor": 0.2}, RGB, "uint8"),
    ("RandomTranslation", {"height_factor": 0.2, "width_factor": 0.2}, RGB, "uint8"),
    # scaling
    ("Rescaling", {"scale": 1 / 255, "offset": -0.5}, IMAGE, "uint8"),
    ("Rescaling", {"scale": [0.5, 1.0, 2.0, 4.0]}, IMAGE),
    ("Normalization", {}, ROW), ("Normalization", {"axis": None}, LINE), ("Normalization", {"axis": (1, -1)}, LINE),
    ("Normalization", {"mean": 0.25, "variance": 4.0}, LINE, "uint8"),
    ("Normalization", {"mean": [0.5, 1.0, 0.0, 0.0], "variance": [1.0, 4.0, 1.0, 0.0], "invert": True}, LINE),
    ("UnitNormalization", {}, LINE), ("UnitNormalization", {"axis": [1, 2]}, IMAGE),
    ("GroupNormalization", {"groups": 2}, IMAGE), ("GroupNormalization", {"groups": -1, "axis": 1}, IMAGE),
    ("GroupNormalization", {"groups": 3, "axis": 1, "scale": False}, IMAGE),
    ("PReLU", {}, LINE), ("PReLU", {"shared_axes": [1, 2]}, IMAGE),
    # shapes
    ("Permute", {"dims": (3, 1, 2)}, IMAGE), ("RepeatVector", {"n": 3}, ROW),
    ("Cropping1D", {"cropping": (1, 2)}, LINE), ("Cropping1D", {}, LINE), ("Cropping2D", {}, IMAGE),
    ("Cropping2D", {"cropping": ((1, 2), (0, 3)), **FIRST_CHANNELS}, (3, 6, 8)),
    ("Cropping3D", {"cropping": 1}, VOLUME), ("Cropping2D", {"cropping": (1, 2)}, IMAGE, "uint8"),
    ("ZeroPadding1D", {"padding": (1, 2)}, LINE), ("ZeroPadding2D", {"padding": ((1, 2), (0, 3))}, IMAGE, "uint8"),
    ("ZeroPadding2D", {**FIRST_CHANNELS}, IMAGE), ("ZeroPadding3D", {"padding": (1, 0, 2)}, VOLUME),
    ("UpSampling1D", {"size": 3}, LINE), ("UpSampling2D", {"size": (2, 3)}, IMAGE),
    ("UpSampling2D", {**FIRST_CHANNELS}, IMAGE), ("UpSampling3D", {}, VOLUME),
    # convolutions channel by channel
    ("DepthwiseConv1D", {"kernel_size": 3, "depth_multiplier": 2, "activation": "elu"}, LINE),
    ("DepthwiseConv1D", {"kernel_size": 2, "padding": "same", "dilation_rate": 2, **FIRST_CHANNELS}, LINE),
    ("SeparableConv1D", {"filters": 5, "kernel_size": 3, "padding": "same", "strides": 2}, LINE),
    ("SeparableConv1D", {"filters": 5, "kernel_size": 2, "use_bias": False, **FIRST_CHANNELS}, LINE),
    ("SeparableConv2D", {"filters": 5, "kernel_size": (2, 3), "depth_multiplier": 2, "activation": "gelu"}, IMAGE),
    ("SeparableConv2D", {"filters": 3, "kernel_size": 3, "padding": "same", "strides": 2, **FIRST_CHANNELS}, IMAGE),
    # convolutions of volumes, and transposed ones
    ("Conv3D", {"filters": 5, "kernel_size": (2, 3, 1), "activation": "gelu"}, VOLUME),
    ("Conv3D", {"filters": 6, "kernel_size": 2, "strides": (1, 2, 2), "padding": "same", "groups": 3}, VOLUME),
    ("Conv3D", {"filters": 4, "kernel_size": 2, "dilation_rate": 2, **FIRST_CHANNELS}, VOLUME),
    ("Conv1DTranspose", {"filters": 5, "kernel_size": 3, "activation": "gelu"}, LINE),
    ("Conv1DTranspose", {"filters": 5, "kernel_size": 2, "strides": 3, "output_padding": 1}, LINE),
    ("Conv1DTranspose", {"filters": 5, "kernel_size": 4, "padding": "same", "dilation_rate": 2}, LINE),
    ("Conv2DTranspose", {"filters": 5, "kernel_size": (2, 3), "strides": 2, "padding": "same"}, IMAGE),
    ("Conv2DTranspose", {"filters": 3, "kernel_size": (1, 4), "strides": 3, **FIRST_CHANNELS}, IMAGE),
    ("Conv2DTranspose", {
        "filters": 3, "kernel_size": (4, 3), "strides": (3, 2), "padding": "same", "output_padding": (2, 0),
        "use_bias": False}, IMAGE),
    ("Conv2DTranspose", {"filters": 3, "kernel_size": 3, "dilation_rate": (2, 1), "kernel_initializer": "ones"}, IMAGE),
    ("Conv3DTranspose", {"filters": 4, "kernel_size": (2, 3, 1), "strides": 2, "padding": "same"}, VOLUME),
    # pooling
    ("MaxPooling3D", {"pool_size": 2, "padding": "same"}, VOLUME),
    ("AveragePooling3D", {"pool_size": (2, 1, 3)}, VOLUME),
    ("AveragePooling3D", {"pool_size": 2, "strides": 1, "padding": "same"}, VOLUME),
    ("GlobalMaxPooling3D", {}, VOLUME), ("GlobalAveragePooling3D", {"keepdims": True, **FIRST_CHANNELS}, VOLUME),
    *((f"Adaptive{kind}Pooling1D", {"output_size": 3}, LINE) for kind in ("Max", "Average")),
    *((f"Adaptive{kind}Pooling2D", {"output_size": (4, 3)}, IMAGE) for kind in ("Max", "Average")),
    *((f"Adaptive{kind}Pooling3D", {"output_size": 2, **FIRST_CHANNELS}, VOLUME) for kind in ("Max", "Average")),
    # several inputs
    ("Dot", {"axes": 1}, [ROW, ROW]), ("Dot", {"axes": (2, 1)}, [LINE, (4, 5)]), ("Dot", {"axes": -1}, [LINE, (3, 4)]),
    ("Dot", {"axes": 1, "normalize": True}, [LINE, (7, 5)]),
    ("Attention", {}, [LINE, (5, 4)]), ("Attention", {"use_scale": True}, [LINE, (5, 3), (5, 4)]),
    ("Attention", {"score_mode": "concat", "use_scale": True, "dropout": 0.1}, [LINE, (5, 4)]),
    ("AdditiveAttention", {}, [LINE, (5, 3), (5, 4)]), ("AdditiveAttention", {"use_scale": False}, [LINE, (5, 4)]),
    # masks and categories
    ("Masking", {"mask_value": 0.0}, LINE),
    ("CategoryEncoding", {"num_tokens": 9}, ROW, "int32"),
    ("CategoryEncoding", {"num_tokens": 9, "output_mode": "count"}, LINE, "int32"),
    ("CategoryEncoding", {"num_tokens": 9, "output_mode": "one_hot"}, (1,), "int32"),
    ("Discretization", {"bin_boundaries": [-0.5, 0.0, 1.0]}, LINE),
    ("Discretization", {"bin_boundaries": [-0.5, 0.0, 1.0], "output_mode": "one_hot"}, ROW),
]  # fmt: skip
"""Class, arguments, shape of the inputs behind the batch axis (a list: of each), and their dtype."""
WITHOUT_POLICY = ("SpatialDropout2D", "SpatialDropout3D", "Discretization")
"""Layers whose configurations have the dtype of variables in the place of the policy, which is lost in Keras too."""
NUMBERED = [
    (policy, number, *case)
    for policy in POLICIES
    for number, case in enumerate(LAYERS)
    if policy == "float32" or case[0] not in WITHOUT_POLICY
]


def layer_name(case):
    """Return the name of a numbered case."""
    policy, number, kind, *_ = case
    return f"{policy}-{kind}-{number}"


# ---- quantization

QUANTIZED = {
    "int8": ("Int8QuantizationConfig", {}, None),
    "int8_weights": ("Int8QuantizationConfig", {"activation_quantizer": None}, None),
    "int4": ("Int4QuantizationConfig", {}, None),
    "int4_channels": ("Int4QuantizationConfig", {"block_size": -1}, None),
    "int4_32": ("Int4QuantizationConfig", {"block_size": 32}, "table|dense"),
    "float8": ("Float8QuantizationConfig", {}, None),
    "one": ("Int8QuantizationConfig", {}, "^dense$"),
    "two": ("Int8QuantizationConfig", {}, ["table", "^e"]),
    "function": ("Int8QuantizationConfig", {}, lambda layer: layer.name != "einsum"),
}
"""Class of a configuration, its arguments, and filters."""
