"""all-MiniLM-L6-v2 on token ids of a fixed seed; skipped if its package is not installed (see docs/demo.md)."""

import numpy as np

import mp_core as mp
from mp_core.cli import demo

from .common import seconds
from .layers import POLICIES


class Encoder:
    params = (POLICIES, ("1x32", "8x128"))
    param_names = ("policy", "batch x tokens")

    def setup(self, policy, shape):
        self.threads = mp.config.get_num_threads()
        mp.config.set_num_threads(1)
        try:
            self.encoder = mp.models.BertEncoder.from_folder(demo.model_folder(), policy)
        except ImportError as error:
            raise NotImplementedError(str(error)) from error
        self.ids = np.random.default_rng(20261121).integers(1000, 30000, tuple(map(int, shape.split("x"))))
        self.encoder.embed_tokens(self.ids)  # packs the kernels

    def teardown(self, policy, shape):
        if hasattr(self, "threads"):
            mp.config.set_num_threads(self.threads)

    def time_embed_tokens(self, policy, shape):
        self.encoder.embed_tokens(self.ids)

    def track_rate(self, policy, shape):
        return len(self.ids) / seconds(lambda: self.encoder.embed_tokens(self.ids), budget=0.5)

    track_rate.unit = "documents/s"

    def track_weights(self, policy, shape):
        return self.encoder.weight_bytes / 1e6

    track_weights.unit = "MB"

    def peakmem_embed_tokens(self, policy, shape):
        self.encoder.embed_tokens(self.ids)


class Reference:
    def peakmem_reference(self):
        """Measure the interpreter and the imports, the reference for every peakmem_ of this module."""
