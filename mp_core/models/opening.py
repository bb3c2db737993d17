"""Choose the class that opens a folder."""

import warnings
from pathlib import Path

from mp_core.models.colbert import format_of
from mp_core.models.folder import read_object
from mp_core.models.m3 import M3Encoder, has_heads
from mp_core.models.modules import kinds_of, router_in
from mp_core.models.multi import MultiVectorEncoder
from mp_core.models.reranker import Reranker
from mp_core.models.sparse import SparseEncoder, is_masked
from mp_core.models.text_encoder import TextEncoder
from mp_core.utilities.system import is_present

__all__ = ["EncoderClass", "class_of"]

EncoderClass = type[TextEncoder] | type[MultiVectorEncoder] | type[SparseEncoder] | type[Reranker]
_SPARSE = {"SpladePooling", "SparseStaticEmbedding", "SparseAutoEncoder"}
_SCORERS = "Classification", "ForCausalLM"


def class_of(folder: Path) -> EncoderClass:
    """Return the class whose ``from_folder`` opens a folder; :class:`Reranker` also for classifiers."""
    if format_of(folder) is not None:
        return MultiVectorEncoder
    router = router_in(folder)
    routes = [None] if router is None else router.routes
    kinds = {kind for route in routes for kind in kinds_of(folder, route)}
    if kinds & _SPARSE:
        return SparseEncoder
    if "MultiVectorMask" in kinds:
        return MultiVectorEncoder
    if kinds & {"Pooling", "StaticEmbedding"} or (not kinds and is_present(folder / "1_Pooling")):
        return M3Encoder if has_heads(folder) else TextEncoder
    if kinds:
        return Reranker
    names = read_object(folder / "config.json").get("architectures")
    written = [str(name) for name in names] if isinstance(names, list) else []
    if is_masked(written):
        warnings.warn(
            f"{folder} has no modules.json, and its network is a masked language model: it is opened as SPLADE, which "
            "returns weights of tokens. For embeddings, save the folder with sentence-transformers",
            stacklevel=2,
        )
        return SparseEncoder
    return Reranker if any(kind in name for name in written for kind in _SCORERS) else TextEncoder
