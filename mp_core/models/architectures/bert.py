"""BERT [1]_ and ERNIE [2]_. ERNIE may add a task embedding; mp_core always adds that of task 0.

.. [1] J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for
   Language Understanding", NAACL 2019.
.. [2] Y. Sun et al., "ERNIE 3.0: Large-scale Knowledge Enhanced Pre-training for Language Understanding and
   Generation", 2021, arXiv:2107.02137.
"""

from dataclasses import replace

from mp_core.models.architectures.table import Architecture

__all__ = ["ALLOWED", "BERT", "DEFAULTS", "ERNIE", "TENSORS"]

TENSORS = {
    "embeddings/word": "embeddings.word_embeddings",
    "embeddings/position": "embeddings.position_embeddings",
    "embeddings/token_type": "embeddings.token_type_embeddings",
    "embeddings/norm": "embeddings.LayerNorm",
    "encoder/layer_{}/attention/query": "encoder.layer.{}.attention.self.query",
    "encoder/layer_{}/attention/key": "encoder.layer.{}.attention.self.key",
    "encoder/layer_{}/attention/value": "encoder.layer.{}.attention.self.value",
    "encoder/layer_{}/attention/attention_output": "encoder.layer.{}.attention.output.dense",
    "encoder/layer_{}/attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "encoder/layer_{}/intermediate": "encoder.layer.{}.intermediate.dense",
    "encoder/layer_{}/output": "encoder.layer.{}.output.dense",
    "encoder/layer_{}/output_norm": "encoder.layer.{}.output.LayerNorm",
}
DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
ALLOWED = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
}

BERT = Architecture(
    model_types=("bert",),
    prefix="bert.",
    tensors=TENSORS,
    defaults=DEFAULTS,
    fixed={"padding_idx": None, "position_buckets": 0},
    allowed=ALLOWED,
)
ERNIE = replace(
    BERT,
    model_types=("ernie",),
    prefix="ernie.",
    tensors=TENSORS | {"embeddings/task": "embeddings.task_type_embeddings"},
)
