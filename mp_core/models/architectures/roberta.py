"""RoBERTa [1]_, XLM-RoBERTa [2]_ and CamemBERT: BERT whose positions are counted from the padding token on.

.. [1] Y. Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach", arXiv:1907.11692, 2019.
.. [2] A. Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale", ACL 2020.
"""

from dataclasses import replace

from mp_core.models.architectures.bert import ALLOWED, DEFAULTS, TENSORS
from mp_core.models.architectures.table import Architecture

__all__ = ["ROBERTA", "XLM_ROBERTA"]

ROBERTA = Architecture(
    model_types=("roberta",),
    prefix="roberta.",
    tensors=TENSORS,
    entries={"padding_idx": "pad_token_id"},
    defaults=DEFAULTS | {"padding_idx": 1, "vocab_size": 50265},
    fixed={"position_buckets": 0},
    allowed=ALLOWED,
)
XLM_ROBERTA = replace(ROBERTA, model_types=("xlm-roberta", "camembert"), defaults=DEFAULTS | {"padding_idx": 1})
