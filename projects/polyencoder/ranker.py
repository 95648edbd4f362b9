"""`Ranker`: loads, ranks, scores, encodes, indexes, searches and saves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyencoder.calibration import AnswerOptions, Calibration, read_calibration
from polyencoder.calibration.probability import sort_best_first
from polyencoder.checks import check_candidates, check_count, check_list
from polyencoder.config import Architecture, Backend, TurnSeparator, WeightDtype
from polyencoder.encoding.encoder import Encoder
from polyencoder.encoding.protocol import Context, Dialogue
from polyencoder.encoding.scorer import Scorer
from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.errors import ConfigError, InputError
from polyencoder.guesses import ATTRIBUTES, change_options, hint_arguments
from polyencoder.index.base import Index
from polyencoder.index.build_options import IndexOptions
from polyencoder.index.entries import Record
from polyencoder.index.hits import Hit, check_diversity
from polyencoder.index.open import make_index, open_index
from polyencoder.index.options import SearchOptions
from polyencoder.index.searcher import Searcher
from polyencoder.loading import load_encoder
from polyencoder.packages import require
from polyencoder.ranked import Ranked, add_probabilities, select_diverse
from polyencoder.text.dialogue import check_contexts
from polyencoder.text.encoder import TextEncoder

if TYPE_CHECKING:
    import torch

    from polyencoder.calibration.fitting import Fit
    from polyencoder.data.example import Example
    from polyencoder.modeling.base import RankerModel

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
"""The default encoder of `Ranker.load()`: 6 layers, 384 dimensions, 91 MB."""


@hint_arguments
class Ranker(Scorer):
    """Ranks candidate replies to a context with a bi-, poly-, late-interaction or cross-encoder, or a ConveRT.

    Its `encoder` computes vectors: with torch, or as ONNX graphs without it. Everything else is the same for both.

    Examples:
        >>> ranker = Ranker.from_pretrained("path-or-hub-id")
        >>> ranker.rank(["your persona: i ski .", "hi !"], ["do you ski ?", "hello , i love snow ."], top_k=1)[0].text
        'hello , i love snow .'
    """

    def __init__(
        self,
        model: RankerModel | Encoder,
        text: TextEncoder | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        if isinstance(model, (str, os.PathLike)) or (text is None and not isinstance(model, Encoder)):
            raise ConfigError(
                f"Ranker({str(model)!r:.60}): load a model by Ranker.load(name), or make one around an encoder by "
                "Ranker.from_backbone(name, architecture)"
            )
        super().__init__(model, text, device=device)
        self.source: Path | None = None
        """The folder or file it was loaded from."""
        self.calibration: Calibration | None = None
        """Maps scores to probabilities; None unless `polyencoder calibrate` fitted it."""

    def __getattr__(self, name: str) -> Any:
        if name in ATTRIBUTES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: {ATTRIBUTES[name]}")
        return self.__getattribute__(name)  # raises again, with the message of a property that failed

    @classmethod
    def load(cls, name: str | os.PathLike[str] = DEFAULT_ENCODER, **options: Any) -> Ranker:
        """`from_pretrained`; without a name, `DEFAULT_ENCODER` as a bi-encoder without training.

        Examples:
            >>> Ranker.load().rank("where is my money ?", ["refunds take five days .", "we open at nine ."], top_k=1)
            [Ranked(index=0, text='refunds take five days .', score=6.9, probability=None)]
        """
        return cls.from_pretrained(name, **options)

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        device: torch.device | str | None = None,
        backend: Backend = "torch",
        dtype: WeightDtype = "float32",
        threads: int = 0,
    ) -> Ranker:
        """Loads a ranker: a model folder, a model file written by `parlai train_model`, or a hub id.

        An encoder's folder or hub id is loaded as an untrained bi-encoder, with one encoder for both sides and
        its own pooling and scale; a reranker's as a cross-encoder with its scores. A model file may also be one of
        ParlAI's own transformer/ranker, /biencoder, /polyencoder or /crossencoder.

        `dtype` is the encoder's: "bfloat16" takes half the memory, and less time where the machine supports it.
        Pooling and scores stay in float32; scores differ in the third digit. Indexes and calibrations of the float32
        model remain valid. For inference only: it cannot be trained, saved or exported.

        Nothing is downloaded for a folder or a file. The ONNX backends need a folder or hub id with exported graphs,
        and no torch; `threads` are theirs, 0 for one per core. Raises CheckpointError if the model is missing or
        damaged, ConfigError if its configuration or tokenizer is, or if the backend is not installed.
        """
        threads = check_count("threads", threads, min_value=0)
        path, encoder = load_encoder(name, backend=backend, device=device, dtype=dtype, threads=threads)
        ranker = cls(encoder)
        ranker.source, ranker.calibration = path, read_calibration(path, ranker)
        return ranker

    @classmethod
    def from_backbone(
        cls,
        name: str | os.PathLike[str],
        architecture: Architecture = "bi",
        *,
        device: torch.device | str | None = None,
        text: dict[str, Any] | None = None,
        turn_separator: TurnSeparator | None = None,
        **config: Any,
    ) -> Ranker:
        """Builds a ranker around a pre-trained encoder or another ranker's encoder (folder or hub id), to be trained.

        `config` are fields of `RankerConfig` (`reduction="mean"`, `n_codes=16`), `text` fields of `TextConfig`.
        `turn_separator` separates turns of a context: the tokenizer's separator ("sep"), a new token as in the
        papers ("newline"), or "none"; None for the separator of the encoder's pre-training, if its vocabulary shows it.
        The codes of a poly-encoder and the last layer of a cross-encoder start at random, the latter with the head of
        a trained reranker, or the next-utterance head of `polyencoder pretrain`, if there is one. A cross-encoder from
        a ranker with vectors adds its score, at first 0, to that ranker's, unless `residual=False`.
        A sentence encoder's own pooling and normalization, if its files have them, are the default.

        A ranker of any architecture but ConveRT gives its encoders (a cross-encoder may start from a bi-encoder), and
        its tokenizer, pooling, scaling and lengths as defaults. Raises ConfigError for what cannot be a ranker's
        backbone, and CheckpointError for a damaged ranker.
        """
        require("torch")
        from polyencoder.checkpoint import holds_ranker
        from polyencoder.modeling.build import from_encoder, from_ranker

        fields: dict[str, Any] = {"text": text or {}, "separator": turn_separator, "config": config}
        if holds_ranker(name):
            other = cls.from_pretrained(name, device="cpu")
            parts = from_ranker((other.model, other.text), architecture, origin=os.fspath(name), **fields)
        else:
            parts = from_encoder(name, architecture, **fields)
        return cls(*parts, device=device)

    @classmethod
    def from_vocabulary(
        cls,
        vocabulary: str | os.PathLike[str],
        *,
        device: torch.device | str | None = None,
        extra_contexts: int = 0,
        text: dict[str, Any] | None = None,
        **sizes: Any,
    ) -> Ranker:
        """Builds an untrained ConveRT over a vocabulary from `polyencoder vocab`.

        `vocabulary` is its folder or file, `extra_contexts` how many turns before the last one are read (0: a
        single-context model), `sizes` are fields of `polyencoder.modeling.convert.ConvertConfig`, `text` fields of
        `TextConfig`. Raises ConfigError for a vocabulary of another kind.
        """
        require("torch")
        from polyencoder.modeling.build import from_vocabulary

        parts = from_vocabulary(vocabulary, extra_contexts=extra_contexts, text=text or {}, sizes=sizes)
        return cls(*parts, device=device)

    def shortened(self, dim: int) -> Ranker:
        """A ranker with the same weights whose vectors keep their first `dim` dimensions, for smaller indexes.

        For a model trained with `matryoshka` and one of its numbers; see `RankerConfig.vector_dim`. It has no
        calibration. Raises ConfigError for models whose vectors cannot be shortened.
        """
        return Ranker(self.model.truncate(check_count("dim", dim)), self.text, device=self.device)

    def save_pretrained(self, folder: str | os.PathLike[str], *, dtype: WeightDtype = "float32") -> None:
        """Writes a model folder, which sentence-transformers reads too, and any calibration.

        `dtype` is that of the stored weights; float16 and bfloat16 halve the size. Raises CheckpointError if the
        folder is a file, or a weight is too large for float16.
        """
        self.model.parameters()  # raises InputError for graphs, which need no torch
        from polyencoder.export.folder import save_ranker

        save_ranker(self, folder, dtype=dtype)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        dtype: WeightDtype = "float32",
        readme: str | None = None,
    ) -> str:
        """Uploads this ranker to the Hugging Face hub, with a model card, for `from_pretrained(repo_id)`.

        It replaces a model that is there, and removes its graphs. The card of the folder or repository that it was
        loaded from is kept, with base model, data and results, while its weights are unchanged.

        Args:
            repo_id: `name` or `organisation/name`; created if it does not exist.
            private: whether a new repository is private; None for the account's default.
            token: of an account with write access; None for the token of `hf auth login`.
            dtype: of the weights, as in `save_pretrained`.
            readme: the model card, Markdown; None to generate it.

        Returns:
            The repository's address.

        Raises:
            CheckpointError: the hub cannot be reached or refuses, with its reason.
        """
        self.model.parameters()
        from polyencoder.export.push import push

        return push(self, repo_id, source=self.source, private=private, token=token, dtype=dtype, readme=readme)

    def rank(
        self,
        context: Dialogue,
        candidates: Sequence[str | Mapping[str, Any]],
        *,
        top_k: int | None = None,
        min_probability: float | None = None,
        max_risk: float | None = None,
        diversity: float | None = None,
    ) -> list[Ranked]:
        """Ranks candidates by score, best first; with `top_k` only the first `top_k`.

        The context is a text, a list of turns, or the messages of a chat (`[{"role": "user", "content": "hi"}]`).
        Candidates are texts, or records as of an index, whose `text` is ranked.

        `min_probability` leaves out candidates below this probability, perhaps all, and `max_risk` those below the
        threshold that the calibration promises for this risk. ConfigError if the model is not calibrated so.

        `diversity`, from 0 to 1, such as 0.3, orders by maximal marginal relevance (Carbonell and Goldstein, 1998):
        candidates that resemble better ones come later; scores and probabilities stay. Not for cross-encoders.
        """
        records = check_list("candidates", candidates)
        texts = [record.get("text", record) if isinstance(record, Mapping) else record for record in records]
        texts = check_candidates("candidates", texts)
        if top_k is not None:
            top_k = check_count("top_k", top_k)
        answers = AnswerOptions(min_probability=min_probability, max_risk=max_risk)
        threshold, varied = answers.threshold(self.calibration, of=self), check_diversity(diversity)
        scores = self.score([context], texts)[0]
        ranked = [Ranked(i, texts[i], float(scores[i])) for i in sort_best_first(scores)]
        ranked = add_probabilities(ranked, self.calibration, threshold=threshold, among=len(set(texts)))
        if varied and ranked:
            self.model.check_has_vectors()
            ids = tokenize_candidates(self.text, [entry.text for entry in ranked], remember=True)
            vectors = np.stack([candidate.vector for candidate in self.encoder.cache_candidates(ids)])
            ranked = select_diverse(ranked, vectors, k=top_k, diversity=varied)
        return ranked[:top_k]

    def calibrate(
        self,
        examples: str | os.PathLike[str] | Iterable[Example | Mapping[str, Any]],
        index: Index | str | os.PathLike[str] | None = None,
        *,
        risk: float | Sequence[float] = (),
        **settings: Any,
    ) -> Fit:
        """Sets `calibration`, fitted to examples that the model was not trained on, and measures how reliable it is.

        `save_pretrained` writes it, and `ranker.calibration.save(folder)`.

        Args:
            examples: a file, or records with a `context`, the right `response` and perhaps `candidates`.
            index: calibrate searches of this index; None for ranking the candidates of the examples.
            risk: shares of wrong answers to promise, for `max_risk`: 0.05, or several. Half of the examples test them.
            settings: see `polyencoder.evaluation.calibrate.calibrate`, with the errors.
        """
        require("torch")
        from polyencoder.evaluation.calibrate import calibrate

        with nullcontext(index) if index is None or isinstance(index, Index) else open_index(index, self) as opened:
            return calibrate(self, examples, opened, risk=risk, **settings)

    def index(
        self,
        candidates: Iterable[Record],
        where: str | os.PathLike[str] | None = None,
        options: IndexOptions | None = None,
        *,
        contexts: Sequence[Context] | None = None,
        contexts_from: str = "",
        model_name: str = "",
        progress: bool | None = False,
        **changes: Any,
    ) -> Index:
        """Encodes candidates into an index that can be searched many times. Not for cross-encoders.

        Args:
            candidates: texts, dictionaries with `text` and optionally `id` and `metadata`, or `Candidate`s; read once,
                never all held in memory.
            where: a folder, or an address, `milvus:...` or `postgres://...`. None for a temporary folder, removed
                with the index object. An index of the same candidates and model in the folder is opened, or completed
                if its build was killed; any other existing folder is an error.
            options: `polyencoder.index.IndexOptions`, or its fields by name: `faiss="auto", words=True`.
            contexts: sample queries to measure a FAISS index's `recall` with; None for texts of the index.
            contexts_from: where these come from, stored in the index.
            model_name: stored in the index, for display.
            progress: show it on standard error; None: in a terminal, or if it takes long.

        Raises:
            InputError: no candidates, an invalid one, a duplicate id, a full disk.
            ConfigError: an option does not apply to this kind of index.
        """
        return make_index(
            candidates,
            where,
            self,
            options,
            contexts=contexts,
            contexts_from=contexts_from,
            model_name=model_name,
            progress=progress,
            **changes,
        )

    def search(
        self,
        context: Dialogue,
        index: Index | str | os.PathLike[str],
        options: SearchOptions | None = None,
        *,
        rerank: Ranker | None = None,
        rerank_k: int | None = None,
        keep_turns: bool = False,
        **changes: Any,
    ) -> list[Hit]:
        """Searches an index for the best candidates, best first.

        Args:
            context: its turns, oldest first, the messages of a chat, or a single text.
            index: an `Index`, or its address. Opening checks that this model made it, which takes up to a second: for
                many searches open it once, by `polyencoder.index.open_index(where, ranker)`.
            options: `polyencoder.index.SearchOptions`, or its fields by name: `top_k=5, min_probability=0.3`.
            rerank: a cross-encoder that reorders the first `rerank_k`; the others stay behind them. None for a
                late-interaction encoder's own tokens.
            rerank_k: how many hits are reranked; None for 50, or 100 by its own tokens.
            keep_turns: keep candidates equal to a turn of the context (up to case and white space): by default they
                are left out, since a question is its own nearest neighbour.

        Raises:
            InputError: the context is empty, `top_k` is below 1, or `rerank` is not a cross-encoder.
            CheckpointError: the index is missing or damaged, or made by another model.
            ConfigError: `min_probability` or `max_risk` without a calibration, or an option that does not apply to the
                index, such as `effort` without a FAISS index.
        """
        return self.search_many(
            [context], index, options, rerank=rerank, rerank_k=rerank_k, keep_turns=keep_turns, **changes
        )[0]

    def search_many(
        self,
        contexts: Sequence[Dialogue],
        index: Index | str | os.PathLike[str],
        options: SearchOptions | None = None,
        *,
        rerank: Ranker | None = None,
        rerank_k: int | None = None,
        keep_turns: bool = False,
        **changes: Any,
    ) -> list[list[Hit]]:
        """Searches for many contexts at once, which is faster than one by one."""
        contexts, options = check_contexts(contexts), change_options(options or SearchOptions(), changes)
        if not isinstance(index, (Index, str, os.PathLike)):
            raise InputError(
                f"index is {index!r:.60}; give an index, or its path or address. To order a list of texts without an "
                "index, call `rank(context, texts)`"
            )
        if isinstance(index, Index):
            index.check_made_by(self)  # it may have been opened without a model, or for another
        # an opened index stays open
        with nullcontext(index) if isinstance(index, Index) else open_index(index, self) as opened:
            searcher = Searcher(self, opened, options, reranker=rerank, rerank_k=rerank_k, keep_turns=keep_turns)
            return searcher(contexts)
