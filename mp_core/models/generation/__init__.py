"""Decoders that generate: a cache of keys and values in pages, sampling, and the loop over steps."""

from mp_core.models.generation.generator import Generator
from mp_core.models.generation.perplexity import Perplexity
from mp_core.models.generation.sampling import Sampling
from mp_core.models.generation.session import Generated

__all__ = ["Generated", "Generator", "Perplexity", "Sampling"]
