"""all-MiniLM-L6-v2 with mean pooling as a module of PyTorch, from the classes of transformers."""

import torch
import transformers

from mp_core.cli import demo

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class SentenceEncoder(torch.nn.Module):
    """From token ids and their mask to the mean of the tokens' vectors, at least in float32."""

    def __init__(self, dtype: torch.dtype, attention: str = "sdpa") -> None:
        super().__init__()
        self.bert = transformers.BertModel.from_pretrained(
            demo.model_folder(), dtype=dtype, attn_implementation=attention, add_pooling_layer=False
        )
        self.eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = mask.unsqueeze(-1).to(hidden.dtype)
        means = (hidden * kept).sum(1) / kept.sum(1)
        return means if means.dtype == torch.float64 else means.float()
