"""The base of encoders of single texts: prompts and tokenization."""

from collections.abc import Iterable
from pathlib import Path

from mp_core.arrays import Array
from mp_core.models.modules import Modules
from mp_core.models.pieces import Piece
from mp_core.models.texts import Text, TextModel, Tokens, encodable, list_of_texts
from mp_core.models.tokenizer import Tokenizer
from mp_core.policies.dtype_policies import DTypePolicy

__all__ = ["ATTRIBUTES", "PromptedModel", "TextError"]

ATTRIBUTES = """
    Attributes
    ----------
    model : TextNetwork
    dim : int
        The length of a vector.
    max_length : int
        The most tokens of a text, special tokens included. Longer texts are truncated.
    prompts : dict of str to str
        Name -> prompt, a text that is put before each text.
    default_prompt_name : str or None
        The name of the default prompt.
    tensor_names : dict of str to str
        The path of each layer with weights -> the start of its tensor names in the checkpoint.
    kernel_names : dict of str to str
        The path of each layer with a kernel -> the name of its tensor in the checkpoint.
"""
"""The docstring section of the attributes that all encoders have."""


class TextError(ValueError):
    """A text that cannot be embedded.

    Attributes
    ----------
    position : int
        The index of the text.
    reason : str
        What is wrong with it, as a sentence without a subject.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"`texts[{position}]` {reason}")
        self.position = position
        self.reason = reason


class PromptedModel(TextModel):
    """A network with its tokenizer and prompts, and vectors of the length `dim`, which subclasses set."""

    dim: int

    def __init__(self, folder: Path, modules: Modules, policy: str | DTypePolicy | None) -> None:
        super().__init__(folder, modules, policy)
        self.prompts = dict(modules.prompts)
        self.default_prompt_name = modules.default_prompt_name

    @property
    def _outputs(self) -> str:
        return f"dim={self.dim}"

    def tokenize(
        self,
        texts: Text | Iterable[Text],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        from_start: bool | None = None,
    ) -> Tokens:
        """Return the tokens of texts, which the methods that end in ``_tokens`` take. It may run in another thread.

        Parameters
        ----------
        texts, prompt, prompt_name
            Those of the method that encodes texts.
        from_start : bool, optional
            Whether texts that are too long are truncated at their start, including the prompt, instead of their end.
            Default: the tokenizer's setting.

        Returns
        -------
        Tokens
            Its attribute `cut` lists the truncated texts.
        """
        return self._tokens(texts, self._prompt(prompt, prompt_name), self._tokenizer, from_start)

    def pieces(
        self,
        texts: Text | Iterable[Text],
        *,
        special: bool = True,
        most: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> list[list[Piece]]:
        """Return all tokens of each prompt and text, with their positions: see :meth:`TextModel.pieces`."""
        prefix = self._prompt(prompt, prompt_name)
        return super().pieces([prefix + text for text in list_of_texts(texts, "texts")], special=special, most=most)

    def _tokens(
        self, texts: Text | Iterable[Text], prefix: str, tokenizer: Tokenizer, from_start: bool | None = None
    ) -> Tokens:
        """Return the tokens of texts with the prompt `prefix` before each."""
        given = list_of_texts(texts, "texts")
        rows, cut = tokenizer([prefix + text for text in given] if prefix else given, from_start=from_start)
        skipped = 0 if self._modules.include_prompt or not prefix else self._tokenizer.prompt_length(prefix)
        if skipped and cut and tokenizer.cuts_start(from_start):
            raise TextError(cut[0], "must not be cut at its start, where its prompt is: cut its end, or shorten it")
        self._check_lengths(rows, skipped)
        return Tokens(rows, cut, skipped=skipped)

    def _check_lengths(self, rows: list[Array], unpooled: int) -> None:
        """Raise TextError for a text of at most `unpooled` tokens, or of more tokens than the network takes."""
        longest = self.model.settings.max_length
        for position, row in enumerate(rows):
            if len(row) <= unpooled:
                beyond = " beyond the prompt" if unpooled else ""
                raise TextError(position, f"must have a token{beyond}; the model's tokenizer gives it none")
            if len(row) > longest:
                tokens = f"at most {longest} tokens; the model's tokenizer gives it {len(row)}"
                raise TextError(position, f"must have {tokens}")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks for which the folder has separate routes, such as ``"query"``; most folders have none."""
        return () if self._modules.router is None else self._modules.router.tasks

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        if prompt is not None:
            if name is not None:
                raise ValueError(f"`prompt` and `prompt_name` exclude each other; received {prompt!r} and {name!r}")
            return encodable(prompt, "prompt")
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            raise ValueError(f"`prompt_name` must be one of {', '.join(map(repr, self.prompts))}; received {name!r}")
        return "" if name is None else encodable(self.prompts[name], f"prompts[{name!r}]")
