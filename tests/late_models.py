"""Small random sparse and multi-vector encoders as sentence-transformers saves them."""

import json
import shutil
import warnings

import random_models

MASK = "h"  # of WORDS: the token that pads queries


def network(name, head, folder):
    """Save a random network with a tokenizer that the library reads."""
    transformers = random_models.library()
    random_models.save(random_models.made(name, head), folder)
    shutil.rmtree(folder / "1_Pooling")
    names = {"unk": "<unk>", "pad": "<pad>", "cls": "<s>", "sep": "</s>", "mask": MASK}
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_max_length=40,
        **{f"{k}_token": v for k, v in names.items()},
    ).save_pretrained(folder)
    return folder


def splade(name, folder, **settings):
    """Return a SparseEncoder of the library, saved in a folder."""
    import sentence_transformers as st
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = network(name, "ForMaskedLM", folder / "network")
        parts = [Transformer(str(source), transformer_task="fill-mask"), SpladePooling(**settings)]
        model = st.SparseEncoder(modules=parts, device="cpu")
        model.save(str(folder / "model"))
    return model


def colbert(name, folder, mask=None, **settings):
    """Return a MultiVectorEncoder of the library, saved in a folder, whose modules have these settings."""
    import sentence_transformers as st
    import torch
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        source = network(name, "Model", folder / "network")
        parts = [
            Transformer(str(source), **settings),
            Dense(32, 8, bias=False, activation_function=torch.nn.Identity(), **tokens),
            MultiVectorMask(**mask or {}),
            Normalize(**tokens),
        ]
        model = st.MultiVectorEncoder(modules=parts, device="cpu", prompts={"query": "a ", "document": "b "})
        model.save(str(folder / "model"))
    return model


def change(path, **entries):
    """Change entries of a JSON file; None takes one out."""
    content = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
