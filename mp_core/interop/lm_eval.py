"""Decoders as models of EleutherAI's lm-evaluation-harness: an import of this module registers ``mp_core`` there."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from mp_core.models import Generator
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.lm_eval"):
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model

__all__ = ["HarnessModel"]

_MOST_NEW = 256
"""The default of ``max_gen_toks``, as in the harness."""


@register_model("mp_core")
class HarnessModel(TemplateLM):
    """A decoder that lm-evaluation-harness evaluates. Scores do not depend on its batches, nor on threads.

    Texts are cut at their start if they are too long, as by the harness' model ``hf``.

    Parameters
    ----------
    pretrained : path or Generator
        What :meth:`mp_core.models.Generator.from_folder` opens, or a generator.
    policy : str or DTypePolicy, optional
        As in :meth:`mp_core.models.Generator.from_folder`.
    max_length : int, optional
        The most tokens before a scored one. Default: the network's maximum - 2, at most 2048.
    prefix_token_id : int, optional
        The token before texts without a context. Default: the one with which the tokenizer begins texts, else the
        first token that ends them.
    batch_size, max_batch_size : int or str, optional
        Not used: all requests are given to the generator at once.
    device : {"cpu"}, optional

    Examples
    --------
    >>> import lm_eval, mp_core.interop.lm_eval  # doctest: +SKIP
    >>> found = lm_eval.simple_evaluate("mp_core", "pretrained=model.gguf,policy=int8", ["arc_easy"])  # doctest: +SKIP
    """

    def __init__(
        self,
        pretrained: str | PathLike[str] | Generator,
        policy: str | DTypePolicy | None = None,
        max_length: int | None = None,
        prefix_token_id: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        if device not in (None, "cpu"):
            raise ValueError(f"`device` must be 'cpu' or None; received {device!r}")
        given = pretrained if isinstance(pretrained, Generator) else Generator.from_folder(pretrained, policy)
        self.generator, most = given, given.model.settings.max_length - 2
        self.max_length = min(2048, most) if max_length is None else positive_integer(max_length, "max_length")
        if self.max_length > most:
            raise ValueError(f"`max_length` must be at most {most}, the network's maximum - 2; received {max_length}")
        self._prefix = prefix_token_id

    @property
    def eot_token_id(self) -> int:
        """The first token that ends texts."""
        return min(self.generator.ends)

    @property
    def prefix_token_id(self) -> int:
        """The token before texts without a context."""
        first = [piece.id for piece in self.generator.pieces("")[0]]
        return self._prefix if self._prefix is not None else first[0] if first else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """A name for caches of requests."""
        return repr(self.generator)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return all tokens of a text, by default without special tokens, as the harness' model ``hf``."""
        return [piece.id for piece in self.generator.pieces(string, special=bool(add_special_tokens))[0]]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        rows = [(before + after)[-self.max_length - 1 :] for _, before, after in requests]
        found = []
        for (request, _, after), (logs, best) in zip(requests, self.generator.likelihoods(rows), strict=True):
            last = slice(len(logs) - min(len(after), len(logs)), None)
            answer = float(np.sum(logs[last], dtype=np.float64)), bool(best[last].all())
            found.append(answer)
            if request is not None:
                self.cache_hook.add_partial("loglikelihood", request, answer)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text of any length, in windows of `max_length` that do not overlap."""
        found = []
        for (text,) in (request.args for request in requests):
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(None, *utils.make_disjoint_window(window)) for window in windows]
            found.append(sum(score for score, _ in self._loglikelihood_tokens(parts)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), found[-1])
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text after each context, up to the strings of ``until``."""
        found: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(place)
        for places in groups.values():
            how = requests[places[0]].args[1]
            most = int(how.get("max_gen_toks", _MOST_NEW))
            if not 0 < most < self.max_length:
                raise ValueError(f"max_gen_toks must be from 1 to {self.max_length - 1}; received {most}")
            contexts = [self.tok_encode(requests[place].args[0])[most - self.max_length :] for place in places]
            prompts = [context or [self.prefix_token_id] for context in contexts]
            answers = self.generator.generate(prompts, most, **_sampling(how))
            found |= {place: answer.text for place, answer in zip(places, answers, strict=True)}
            for place in places:
                self.cache_hook.add_partial("generate_until", requests[place].args, found[place])
        return [found[place] for place in range(len(requests))]


def _sampling(how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :meth:`Generator.generate` for the ``gen_kwargs`` of a task."""
    until = how.get("until") or []
    sampling = {name: how[name] for name in ("top_k", "top_p", "min_p", "repetition_penalty") if how.get(name)}
    warm = how.get("do_sample", bool(how.get("temperature")))
    temperature = float(how.get("temperature", 1.0)) if warm else 0.0
    return sampling | {"stop": [until] if isinstance(until, str) else list(until), "temperature": temperature}
