"""`Ranker`: the library's front door, from text to ranked text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from polyencoder.calibration import Calibration, LeastProbability, least_probability, read_calibration
from polyencoder.checks import checked_candidates, checked_count
from polyencoder.config import Architecture, Backend, WeightDtype
from polyencoder.errors import ConfigError, InputError
from polyencoder.export.folder import save_ranker
from polyencoder.hub.push import push
from polyencoder.index.base import Hit, Index, Record
from polyencoder.index.folder.build import SHARD_SIZE
from polyencoder.index.folder.shards import Share
from polyencoder.index.open import make_index, open_index
from polyencoder.index.options import SearchOptions
from polyencoder.index.searcher import Searcher
from polyencoder.index.vectors import VectorDtype
from polyencoder.modeling import RankerModel
from polyencoder.modeling.build import from_encoder, from_ranker, from_vocabulary
from polyencoder.ranker.loading import load_parts, round_encoders
from polyencoder.ranker.protocol import Context, Dialogue
from polyencoder.ranker.scorer import Scorer
from polyencoder.scoring import best
from polyencoder.storage.checkpoint import holds_ranker
from polyencoder.text import TextEncoder, TurnSeparator
from polyencoder.text.dialogue import checked_contexts

DEFAULT_ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
"""The default encoder of `Ranker.load()`: 6 layers, 384 dimensions, 91 MB."""

_ELSEWHERE = {  # what rankers and encoders of other libraries have
    "predict": "score(contexts, candidates) gives the matrix of scores, rank(context, candidates) their order",
    "save": "save_pretrained(folder) writes the model",
    "similarity": "score(contexts, candidates) gives the matrix of scores",
    "fit": "polyencoder.training.train_ranker(TrainSettings(...)) trains",
    "train": "polyencoder.training.train_ranker(TrainSettings(...)) trains",
}


class Ranked(NamedTuple):
    """One candidate of a ranking."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which a ranking has no use for
    """Its place in the list of candidates that was ranked."""
    text: str
    score: float
    probability: float | None = None
    """How likely it is the right one; None if the model is not calibrated."""


class Ranker(Scorer):
    """Ranks candidate replies to a context with a bi-, poly- or cross-encoder, or a ConveRT.

    Examples:
        >>> ranker = Ranker.from_pretrained("path-or-hub-id")
        >>> ranker.rank(["your persona: i ski .", "hi !"], ["do you ski ?", "hello , i love snow ."], top_k=1)
        [Ranked(index=1, text='hello , i love snow .', score=7.31)]
    """

    def __init__(
        self, model: RankerModel, text: TextEncoder | None = None, *, device: torch.device | str | None = None
    ) -> None:
        if isinstance(model, (str, os.PathLike)) or text is None:
            raise ConfigError(
                f"Ranker({str(model)!r:.60}): load a model by Ranker.load(name), or make one around an encoder by "
                "Ranker.from_backbone(name, architecture)"
            )
        super().__init__(model, text, device=device)
        self.source: Path | None = None
        """The folder or file that it was loaded from."""
        self.calibration: Calibration | None = None
        """Makes probabilities of scores, where `polyencoder calibrate` has fitted it."""

    def __repr__(self) -> str:
        model, config = self.model, self.model.config
        weights = list(model.parameters())
        parts = [
            config.architecture,
            str(config.backbone.get("model_type", "")),
            f"{sum(weight.numel() for weight in weights) / 1e6:.1f}M parameters",
            f"{model.dim} dimensions" if model.has_vectors else "",
            str(self.device),
            str(weights[0].dtype).removeprefix("torch."),
        ]
        return f"Ranker({', '.join(part for part in parts if part)})"

    def __getattr__(self, name: str) -> Any:
        if name in _ELSEWHERE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: {_ELSEWHERE[name]}")
        return self.__getattribute__(name)  # raises again, with the words of a property that failed

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
    ) -> Ranker:
        """Load a ranker: a model folder, a model file that `parlai train_model` wrote, or a hub id.

        An encoder's folder or hub id is loaded as a bi-encoder without training, with one encoder for both sides and
        its own pooling and scale. A model file may also be one of ParlAI's own transformer/ranker, /biencoder,
        /polyencoder or /crossencoder.

        `dtype` is that of the encoder's weights and of what it computes: "bfloat16" takes half the memory, and less
        time where the machine has it; what is made of the encoder's outputs stays in float32, and scores differ in the
        third digit. It goes with indexes and a calibration of the model in float32. For inference: it cannot be
        trained, saved or exported.

        Nothing is fetched for a folder or a file. The ONNX backends need a folder or hub id with exported graphs.
        Raises CheckpointError when the model is missing or damaged, or ConfigError when its configuration or tokenizer
        is, or the backend is not installed.
        """
        path, parts = load_parts(name, backend=backend, device=device)
        ranker = cls(*parts, device=device)
        ranker.source, ranker.calibration = path, read_calibration(path, ranker)
        round_encoders(ranker, dtype, backend=backend)
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
        """A ranker around a pre-trained encoder (folder or hub id), not yet fine-tuned; or around another ranker's.

        `config` are fields of `RankerConfig` (`reduction="mean"`, `n_codes=16`), `text` fields of `TextConfig`.
        `turn_separator` separates two turns of a context: the tokenizer's separator ("sep"), a token of its own,
        added to the vocabulary, as in the papers ("newline"), or "none"; None for that of the encoder's pre-training,
        as far as its vocabulary says. The codes of a poly-encoder and the last layer of a cross-encoder are random
        until they are trained; the latter begins with the head for next utterances that `polyencoder pretrain` keeps.
        A sentence encoder's own pooling, and the cosine, are the default where its files say so (`sentence_vectors`).

        Of a ranker, of whatever architecture but ConveRT's, the encoders are taken over: a cross-encoder may start from
        a bi-encoder. Its tokenizer, pooling, scaling and lengths are then the defaults. Raises ConfigError for what
        cannot be a ranker's backbone, and CheckpointError for a ranker that is damaged.
        """
        given: dict[str, Any] = {"text": text or {}, "separator": turn_separator, "config": config}
        if holds_ranker(name):
            other = cls.from_pretrained(name, device="cpu")
            parts = from_ranker((other.model, other.text), architecture, origin=os.fspath(name), **given)
        else:
            parts = from_encoder(name, architecture, **given)
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
        """A ConveRT with random weights, to be trained, over a vocabulary that `polyencoder vocab` wrote.

        `vocabulary` is its folder or file, `extra_contexts` how many turns before the last one are read (0: a
        single-context model), `sizes` are fields of `polyencoder.modeling.convert.ConvertConfig`, `text` fields of
        `TextConfig`. Raises ConfigError for a vocabulary of another kind.
        """
        parts = from_vocabulary(vocabulary, extra_contexts=extra_contexts, text=text or {}, sizes=sizes)
        return cls(*parts, device=device)

    def save_pretrained(self, folder: str | os.PathLike[str], *, dtype: WeightDtype = "float32") -> None:
        """Write `config.json`, `model.safetensors`, `tokenizer.json` and any calibration into `folder`.

        `dtype` is that of the weights in the file, float32, float16 or bfloat16: half the size, and rounded. Raises
        CheckpointError when the folder is a file, or a weight is too large for float16.
        """
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
        """Upload this ranker to the Hugging Face hub, with a model card, for `from_pretrained(repo_id)`.

        Args:
            repo_id: `name` or `organisation/name`; made if it is not there.
            private: who sees a repository that is made; None for what the account does by default.
            token: of an account that may write; None for that of `hf auth login`.
            dtype: of the weights, as of `save_pretrained`.
            readme: the model card, Markdown; None for one that says what the model is and how to use it.

        Returns:
            The address of the repository.

        Raises:
            CheckpointError: the hub cannot be reached, or refuses; its reason is in the message.
        """
        return push(self, repo_id, private=private, token=token, dtype=dtype, readme=readme)

    def rank(
        self,
        context: Dialogue,
        candidates: Sequence[str],
        *,
        top_k: int | None = None,
        min_probability: LeastProbability | None = None,
    ) -> list[Ranked]:
        """The candidates in order of their score, best first; with `top_k` only the first `top_k`.

        The context is a text, a list of turns, or the messages of a chat (`[{"role": "user", "content": "hi"}]`).

        With `min_probability` only those that are at least so likely the right one, perhaps none: a number, or "auto"
        for the threshold of the calibration. ConfigError if the model is not calibrated.
        """
        candidates = checked_candidates("candidates", candidates)
        if top_k is not None:
            top_k = checked_count("top_k", top_k)
        least = least_probability(self.calibration, min_probability, of=self)
        scores = self.score([context], candidates)[0]
        whole = self.calibration is not None  # whose sum is over different texts
        highest, order = best(scores, len(candidates) if top_k is None or whole else top_k)
        ranked = [Ranked(i, candidates[i], s) for i, s in zip(order.tolist(), highest.tolist(), strict=True)]
        if self.calibration is not None:
            values = self.calibration.of_ranking(
                [one.text for one in ranked], [one.score for one in ranked], among=len(set(candidates))
            )
            ranked = [one._replace(probability=value) for one, value in zip(ranked, values, strict=True)]
        if least is not None:
            ranked = [one for one in ranked if one.probability is not None and one.probability >= least]
        return ranked[:top_k]

    def index(
        self,
        candidates: Iterable[Record],
        where: str | os.PathLike[str] | None = None,
        *,
        dtype: VectorDtype = "float32",
        faiss: str | None = None,
        recall: float | None = None,
        contexts: Sequence[Context] | None = None,
        contexts_from: str = "",
        milvus: str | None = None,
        workers: int = 1,
        share: Share | None = None,
        shard_size: int = SHARD_SIZE,
        model_name: str = "",
        progress: bool = False,
    ) -> Index:
        """Encode candidates once, to search them many times. Not for cross-encoders.

        Args:
            candidates: texts, dictionaries with `text`, `id` and `metadata`, of which the text is enough, or
                `Candidate`s; read once, never all held in memory.
            where: a folder, or `milvus:` and the address of a server or file. None for a temporary folder, which is
                removed when the index is no longer used. A folder with an index of the same candidates and model is
                opened, or finished if that was killed; any other that is there is an error.
            dtype: of the vectors on disk: float32, float16, bfloat16 or int8.
            faiss: also build a FAISS index, for searches that do not score everything: "flat", "hnsw", "ivf-flat",
                "ivf-pq", or "auto" for what suits the number of candidates. With parameters of that kind, as in
                "hnsw,m=16,ef_search=256"; `polyencoder.index.faiss.file.build_faiss` says which.
            recall: with `faiss`, how much of the ten best its searches are to find, such as 0.99: measured against the
                scan, with the cheapest settings that reach it kept as the index's own. See `FolderIndex.tune`.
            contexts: a sample of those that will be asked for, to measure recall with; None for texts of the index.
            contexts_from: where these are from, to be remembered.
            milvus: the kind of a Milvus index: "flat", whose results can be certified, or "auto" (the default).
            workers: processes that encode, as of `polyencoder.index.build_index`.
            share: this process' part of an index that several machines build, as there.
            shard_size: candidates of a vector file, as there.
            model_name: kept in the index, to be shown.
            progress: whether to show a progress bar.

        Raises:
            InputError: no candidates, one that cannot be used, an id that two of them have, a disk that is full.
        """
        return make_index(
            candidates,
            where,
            self,
            dtype=dtype,
            faiss=faiss,
            recall=recall,
            contexts=contexts,
            contexts_from=contexts_from,
            milvus=milvus,
            workers=workers,
            share=share,
            shard_size=shard_size,
            model_name=model_name,
            progress=progress,
        )

    def search(
        self,
        context: Dialogue,
        index: Index | str | os.PathLike[str],
        options: SearchOptions | None = None,
        *,
        rerank: Ranker | None = None,
        rerank_k: int | None = None,
        min_probability: LeastProbability | None = None,
        keep_turns: bool = False,
        **changes: Any,
    ) -> list[Hit]:
        """The best candidates of an index for a context, best first.

        Args:
            context: its turns, oldest first, the messages of a chat, or a single text.
            index: what `index` gave, or where one is. Opening it checks that this model made it, which takes up to a
                second: for many searches open it once, by `polyencoder.index.open_index(where, ranker)`.
            options: how to search; or their fields by name, as in `top_k=5, exactness="certified"`: `top_k`, `filter`,
                `exactness`, `effort`, `list_length`, `tolerance` and `dtype` (see `polyencoder.index.SearchOptions`).
            rerank: a cross-encoder, which orders the first `rerank_k`; the others stay behind them. None for a
                late-interaction encoder's own tokens.
            rerank_k: at least this many are searched for, if the index has them; None for 50, or 100 by its own tokens.
            min_probability: leave out hits that are less likely the right one, as in `rank`; with `rerank`, by the
                cross-encoder's calibration.
            keep_turns: also give candidates that equal a turn of the context, up to case and white space, which else
                are left out: an index of what people say has the question, too, and nothing is more like it.

        Raises:
            InputError: the context is empty, `top_k` is below 1, or `rerank` is no cross-encoder.
            CheckpointError: there is no index, it is damaged, or another model made it.
            ConfigError: `min_probability` is asked of a model that is not calibrated, or the index has no use for an
                option, such as `effort` where there is no FAISS index.
        """
        return self.search_many(
            [context],
            index,
            options,
            rerank=rerank,
            rerank_k=rerank_k,
            min_probability=min_probability,
            keep_turns=keep_turns,
            **changes,
        )[0]

    def search_many(
        self,
        contexts: Sequence[Dialogue],
        index: Index | str | os.PathLike[str],
        options: SearchOptions | None = None,
        *,
        rerank: Ranker | None = None,
        rerank_k: int | None = None,
        min_probability: LeastProbability | None = None,
        keep_turns: bool = False,
        **changes: Any,
    ) -> list[list[Hit]]:
        """`search` for many contexts at once, which takes less time than one after the other."""
        contexts = checked_contexts(contexts)
        if not isinstance(index, (Index, str, os.PathLike)):
            raise InputError(
                f"index is {index!r:.60}; give what `index` made, or where one is. To order a list of texts without an "
                "index, call `rank(context, texts)`"
            )
        searcher = Searcher(
            self,
            index if isinstance(index, Index) else open_index(index, self),
            options,
            reranker=rerank,
            rerank_k=rerank_k,
            min_probability=min_probability,
            keep_turns=keep_turns,
            **changes,
        )
        return searcher(contexts)
