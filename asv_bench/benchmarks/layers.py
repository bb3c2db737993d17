"""Layers under policies, on the best instruction set and one thread: the cost and the gain of a policy."""

import mp_core as mp

from .common import normal

POLICIES = (
    "float32", "mixed_float16", "mixed_bfloat16", "int8_from_mixed_bfloat16",
    "int8/weight_only_from_mixed_bfloat16", "int4/128_from_mixed_bfloat16", "int4/-1_from_mixed_bfloat16",
    "float8_from_mixed_bfloat16",
)  # fmt: skip


class Layers:
    params = (("Dense", "EinsumDense", "MultiHeadAttention", "LayerNormalization"), POLICIES)
    param_names = ("layer", "policy")

    def setup(self, name, policy):
        layers = mp.layers
        make = {
            "Dense": lambda: layers.Dense(384, activation="gelu", dtype=policy),
            "EinsumDense": lambda: layers.EinsumDense("abc,cde->abde", (None, 12, 32), bias_axes="de", dtype=policy),
            "MultiHeadAttention": lambda: layers.MultiHeadAttention(12, 32, dtype=policy),
            "LayerNormalization": lambda: layers.LayerNormalization(dtype=policy),
        }[name]
        self.threads = mp.config.get_num_threads()
        mp.config.set_num_threads(1)
        x = normal(4, 32, 384)
        self.inputs = (x, x) if name == "MultiHeadAttention" else (x,)
        try:
            self.layer = make()
            self.layer(*self.inputs)  # builds it and packs its kernels
        except (NotImplementedError, ValueError) as error:
            raise NotImplementedError(f"{name} under {policy}: {error}") from error

    def teardown(self, name, policy):
        mp.config.set_num_threads(self.threads)

    def time_call(self, name, policy):
        self.layer(*self.inputs)
