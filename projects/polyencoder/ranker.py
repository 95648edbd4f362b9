"""`Ranker`: the library's front door, from text to ranked text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError
from torch import Tensor

from polyencoder.backbone import backbone_config, load_pretrained, load_tokenizer
from polyencoder.checkpoint import CONFIG, TOKENIZER, WEIGHTS, load_folder, load_model_file, save_folder
from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.encoding import encode_candidates
from polyencoder.errors import CheckpointError, InputError, first_line
from polyencoder.models import CrossEncoder, RankerModel, SeparableRanker, build_model
from polyencoder.scoring import ContextEncoding
from polyencoder.text import TextEncoder, TokenBatch

Context = Sequence[str] | str
"""A dialogue: its turns, oldest first, persona lines before them; or a single text."""


class Ranked(NamedTuple):
    """One candidate of a ranking."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which a ranking has no use for
    """Its place in the list of candidates that was ranked."""
    text: str
    score: float


class Ranker:
    """Ranks candidate replies to a context with a bi-, poly- or cross-encoder.

    >>> ranker = Ranker.from_pretrained("path-or-hub-id")
    >>> ranker.rank(["your persona: i ski .", "hi !"], ["do you ski ?", "hello , i love snow ."], top_k=1)
    [Ranked(index=1, text='hello , i love snow .', score=7.31)]
    """

    def __init__(self, model: RankerModel, text: TextEncoder, *, device: torch.device | str | None = None) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = model.to(self.device).eval()
        self.text = text

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Ranker:
        """Load a ranker: a model folder, a model file that `parlai train_model` wrote, or a hub id.

        Nothing is fetched for a folder or a file. Raises CheckpointError when the model is missing or damaged, or
        ConfigError when its configuration or tokenizer is.
        """
        path = Path(name)
        if path.is_dir():
            return cls(*load_folder(path), device=device)
        if path.is_file():
            return cls(*load_model_file(path), device=device)
        try:
            folder = snapshot_download(os.fspath(name), allow_patterns=[CONFIG, WEIGHTS, TOKENIZER])
        except (OSError, HFValidationError) as error:
            raise CheckpointError(
                f"{os.fspath(name)}: no such folder or file, and not a model on the hub that can be reached "
                f"({first_line(error)})"
            ) from None
        return cls(*load_folder(folder), device=device)

    @classmethod
    def from_backbone(
        cls,
        name: str | os.PathLike[str],
        architecture: Architecture = "bi",
        *,
        device: torch.device | str | None = None,
        text: dict[str, Any] | None = None,
        **config: Any,
    ) -> Ranker:
        """A ranker around a pre-trained encoder (folder or hub id), not yet fine-tuned.

        `config` are fields of `RankerConfig` (`reduction="mean"`, `n_codes=16`), `text` fields of `TextConfig`. The
        codes of a poly-encoder and the last layer of a cross-encoder are random until they are trained.
        """
        backbone = load_pretrained(name)
        tokenizer, special = load_tokenizer(name)
        backbone.resize(tokenizer.get_vocab_size())
        text_config = TextConfig(**(special | (text or {})))
        ranker_config = RankerConfig(
            architecture=architecture, backbone=backbone_config(backbone.model), text=text_config, **config
        )
        return cls(build_model(ranker_config, backbone), TextEncoder(tokenizer, text_config), device=device)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write `config.json`, `model.safetensors` and `tokenizer.json` into `folder`."""
        save_folder(folder, self.model, self.text)

    def rank(self, context: Context, candidates: Sequence[str], *, top_k: int | None = None) -> list[Ranked]:
        """The candidates in order of their score, best first; with `top_k` only so many."""
        if top_k is not None and top_k < 1:
            raise InputError(f"top_k is {top_k}; it must be at least 1")
        scores = self.score([context], candidates)[0]
        best, order = scores.topk(min(top_k or len(candidates), len(candidates)))
        return [Ranked(i, candidates[i], s) for i, s in zip(order.tolist(), best.tolist(), strict=True)]

    @torch.inference_mode()
    def score(self, contexts: Sequence[Context], candidates: Sequence[str]) -> Tensor:
        """Scores [contexts, candidates] of every candidate for every context, on the CPU, in float32."""
        if isinstance(contexts, str):
            raise InputError("contexts is one text; give a list of contexts, each a text or a list of turns")
        if isinstance(candidates, str):
            raise InputError("candidates is one text; give a list of texts")
        if not candidates:
            raise InputError("no candidate to rank: the list of candidates is empty")
        if isinstance(self.model, CrossEncoder):
            scores = self.model.score(self._context_tokens(contexts), self.text.candidates(candidates).to(self.device))
        else:
            scores = self.model.score(self.encode_contexts(contexts), self.encode_candidates(candidates))
        return scores.float().cpu()

    @torch.inference_mode()
    def encode_contexts(self, contexts: Sequence[Context]) -> ContextEncoding:
        """The vectors of each context, [contexts, codes, dim] with their mask. Not for cross-encoders."""
        return self._separable().encode_context(self._context_tokens(contexts))

    @torch.inference_mode()
    def encode_candidates(self, candidates: Sequence[str], *, batch_size: int = 256) -> Tensor:
        """One vector for each candidate, [candidates, dim]. Not for cross-encoders."""
        return encode_candidates(self._separable(), self.text, candidates, batch_size=batch_size)

    def _context_tokens(self, contexts: Sequence[Context]) -> TokenBatch:
        for position, context in enumerate(contexts):
            if not "".join(context).strip():
                raise InputError(f"context {position} is empty: it has no text in any of its turns")
        return self.text.contexts(contexts).to(self.device)

    def _separable(self) -> SeparableRanker:
        if isinstance(self.model, CrossEncoder):
            raise InputError("a cross-encoder has no vectors of contexts or candidates: it reads them together")
        return self.model
