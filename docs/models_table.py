"""Print the table of networks of docs/models.md: a row for each that the package has.

The differences are those of small random networks from transformers 5.24 (tests/random_models.py), measured in November
2026: ``(float32, mixed_bfloat16, int8)``. The first is the largest of a token's vector, the others are of all vectors.
"""

from mp_core.models.architectures import ARCHITECTURES
from mp_core.models.heads import SCORED

_SEEN = {
    "bert": ("MiniLM, BGE, E5, GTE, LaBSE, mxbai", (5.5e-7, 0.005, 0.015)),
    "ernie": ("text2vec-base-chinese-paraphrase", (5.6e-7, 0.006, 0.019)),
    "roberta": ("all-roberta, granite-embedding", (1.0e-6, 0.007, 0.030)),
    "xlm-roberta": ("multilingual E5, BGE-M3, jina-reranker-v2", (4.7e-7, 0.007, 0.018)),
    "camembert": ("sentence-camembert", (4.8e-7, 0.006, 0.017)),
    "distilbert": ("multi-qa-distilbert, distiluse", (1.7e-6, 0.015, 0.041)),
    "mpnet": ("all-mpnet-base-v2", (1.3e-6, 0.011, 0.024)),
    "electra": ("ms-marco-electra", (1.1e-6, 0.010, 0.026)),
    "albert": ("paraphrase-albert", (4.9e-7, 0.007, 0.038)),
    "deberta-v2": ("DeBERTa-v3, mxbai-rerank v1", (1.9e-6, 0.014, 0.038)),
    "modernbert": ("gte-modernbert, granite-embedding R2", (8.7e-7, 0.011, 0.026)),
    "nomic_bert": ("nomic-embed-text", (4.1e-6, 0.032, 0.079)),
    "nomic_bert with experts": ("nomic-embed-text-v2-moe", (4.3e-7, 0.006, 0.019)),
    "gte": ("GTE v1.5 and mGTE, as transformers writes them; arctic-embed-m v2", (4.5e-6, 0.024, 0.100)),
    "new": ("GTE v1.5 and mGTE in folders with code of their own", (2.0e-6, 0.020, 0.053)),
    "eurobert": ("EuroBERT", (2.8e-6, 0.018, 0.057)),
    "bert with alibi": ("jina-embeddings-v2", (9.1e-7, 0.013, 0.043)),
    "jina_embeddings_v3": ("jina-embeddings-v3, as transformers writes it", (9.0e-7, 0.010, 0.030)),
    "xlm-roberta with rotary": ("jina-embeddings-v3, as it was published", (9.0e-7, 0.010, 0.030)),
    "t5": ("sentence-t5, GTR", (4.7e-7, 0.008, 0.023)),
    "mt5": ("encoders of mT5", (5.0e-7, 0.006, 0.019)),
    "umt5": ("encoders of UMT5", (7.9e-7, 0.006, 0.019)),
    "qwen3": ("Qwen3-Embedding, Qwen3-Reranker", (1.5e-6, 0.014, 0.043)),
    "qwen2": ("gte-Qwen2, stella 1.5B, mxbai-rerank v2", (2.5e-6, 0.020, 0.063)),
    "llama": ("embedders on Llama", (1.5e-6, 0.014, 0.050)),
    "llama_bidirec": ("llama-nemotron-embed", (1.5e-6, 0.014, 0.050)),
    "mistral": ("E5-Mistral", (1.7e-6, 0.018, 0.056)),
    "phi3": ("embedders on Phi-3", (1.3e-6, 0.017, 0.053)),
    "gemma": ("bge-reranker-v2-gemma", (1.4e-6, 0.024, 0.063)),
    "gemma2": ("bge-multilingual-gemma2", (4.9e-7, 0.006, 0.020)),
    "gemma3_text": ("EmbeddingGemma", (5.7e-7, 0.009, 0.025)),
    "embedding_gemma2_text": ("EmbeddingGemma 2, its text network alone", (4.6e-6, 0.036, 0.087)),
    "embedding_gemma2": ("EmbeddingGemma 2, for texts", (4.6e-6, 0.036, 0.087)),
    "model2vec": ("potion, static-retrieval", None),
}
"""``model_type`` -> models of this kind, and the differences from transformers."""


def rows() -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| `model_type` | such as | scores of texts | float32 | `mixed_bfloat16` | `int8` |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ARCHITECTURES:
        models, differences = _SEEN[kind]
        told = ["", "", ""] if differences is None else ["{:.1e}", "{:.1%}", "{:.1%}"]
        cells = [form.format(value) for form, value in zip(told, differences or told, strict=True)]
        lines.append(f"| `{kind}` | {models} | {'yes' if kind in SCORED else ''} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
