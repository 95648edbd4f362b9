"""`TextEncoder`: tokenizes contexts and candidates, with a cache and the layout of a `TextConfig`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from polyencoder.checks import check_text, check_texts
from polyencoder.config import CONTEXT_FIELDS, PROMPTS, PairStart, TextConfig
from polyencoder.errors import ConfigError, InputError
from polyencoder.storage.digests import compute_fingerprint
from polyencoder.text.context import (
    add_person_tokens,
    find_persona_lines,
    join_pair,
    join_tokens,
    join_turns,
    join_with_separator,
    select_latest_utterances,
    select_turns,
    split_immediate_and_extra,
    split_persona,
    surround,
)
from polyencoder.text.memory import TextMemory
from polyencoder.text.subwords.tokenizer import SubwordTokenizer, is_subword_tokenizer

if TYPE_CHECKING:
    from polyencoder.text.tokens import TokenBatch

MEMORY = 256 << 20  # bytes of cached texts and ids: about 200,000 texts of 20 tokens

MANY = 100  # texts from which the tokenizer's threads are faster


AnyTokenizer = Tokenizer | SubwordTokenizer
"""A Hugging Face encoder's or ConveRT's. Both have `token_to_id`, `get_vocab`, `get_vocab_size`, `decode`, `to_str`."""


class TextEncoder:
    """Tokenizes contexts and candidates with the layout of a `TextConfig`.

    Utterances and candidates come again and again (every history repeats the turns before it), so the ids of the last
    texts are cached, up to `MEMORY` bytes. Threads may share an encoder.
    """

    rows: Mapping[str, int] | None = None
    """For `candidate_rows`: the row of each candidate, by its text, with or without spaces around it."""

    warned_of_cut = False
    """Whether a warning has said that candidates are cut."""

    def __init__(self, tokenizer: AnyTokenizer, config: TextConfig) -> None:
        self.tokenizer: AnyTokenizer = tokenizer if isinstance(tokenizer, SubwordTokenizer) else _copy_plain(tokenizer)
        self.config = config
        self.pad_id = self._get_special_id("pad_token")
        self.start_id = self._get_special_id("start_token")
        self.end_id = self._get_special_id("end_token")
        if isinstance(self.tokenizer, Tokenizer):
            self._pair = self.tokenizer.encode("a", "b")
            self._set_template(self.tokenizer, pair_start=False)
        self.empty_ids: list[int] = [] if config.empty_token is None else [self._get_special_id("empty_token")]
        separator = self.tokenizer.token_to_id(config.separator)
        self.separator_ids = [] if not config.separator else self._encode([config.separator])[0]
        if separator is not None:
            self.separator_ids = [separator]
        self._memory = TextMemory(_compute_size, limit=MEMORY)
        self.lay_out(config)

    def __len__(self) -> int:
        """The number of tokens in the vocabulary."""
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def lay_out(self, config: TextConfig) -> None:
        """Takes over a configuration with other lengths or prompts. ConfigError: a prompt leaves no room for a text."""
        self._context_prompt_ids = self._encode_prompt(config, "context_prompt", longest=config.text_truncate)
        self._encode_prompt(config, "candidate_prompt", longest=config.label_truncate)
        self.config = config

    def tokenize(self, texts: Sequence[str], *, remember: bool = True) -> list[list[int]]:
        """Token ids of each text, without special tokens, in shared lists: change none. `remember`: cache them."""
        if not remember:
            return self._encode(texts)
        cached = [self._memory.get(text) for text in texts]
        missing = list(dict.fromkeys(text for text, ids in zip(texts, cached, strict=True) if ids is None))
        if not missing:
            return cast("list[list[int]]", cached)
        new = dict(zip(missing, self._encode(missing), strict=True))
        self._memory.update(new)
        return [new[text] if ids is None else ids for text, ids in zip(texts, cached, strict=True)]

    def tokenize_context(self, turns: Sequence[str]) -> list[int]:
        """Token ids of a context: the persona lines and the latest utterances, one per line, joined and surrounded.

        With the truncation `tokens` a turn stays whole, however many lines it has, with the tokens of its line ends, if
        any; `history_size` counts persona lines as turns, as ParlAI does. With `recent_first` a turn stays whole, too,
        apart from its persona lines, and two texts of a context are cut: the last turn, and the turns before it.
        """
        if isinstance(turns, str):
            turns = [turns]
        if self.config.person_tokens and turns:
            turns = add_person_tokens(turns, after_newline=self.config.person_tokens_after_newline)
        if self.config.truncation == "recent_first":
            return self._encode_recent_first(split_persona(turns))
        if self.config.truncation == "turns":
            lines = [line for turn in turns for line in turn.split("\n") if line.strip()]
            lines = select_latest_utterances(lines, size=self.config.history_size)
            join = self._tokenize_with_prompt if self.config.context_prompt else self.tokenize_lines
            if self.config.surround:
                return join(lines, max_tokens=self.config.text_truncate)
            return join(lines, max_tokens=self.config.text_truncate + 2)[1:-1] or self.empty_ids
        turns = turns[-self.config.history_size :] if self.config.history_size > 0 else turns
        ids = join_tokens(
            self.tokenize(turns),
            start=self.start_id,
            end=self.end_id,
            separator=self.separator_ids,
            max_tokens=self.config.text_truncate,
        )
        return self._remember(ids if self.config.surround else ids[1:-1])

    def tokenize_lines(self, lines: Sequence[str], *, max_tokens: int) -> list[int]:
        """Token ids of a context without prompt: the persona and the latest lines that fit (`join_turns`)."""
        return join_turns(
            self.tokenize(lines),
            start=self.start_id,
            end=self.end_id,
            separator=self.separator_ids,
            max_tokens=max_tokens,
            persona=find_persona_lines(lines),
            side=self.config.truncation_side,
        )

    def _tokenize_with_prompt(self, lines: Sequence[str], *, max_tokens: int) -> list[int]:
        """Like `tokenize_lines`, with the prompt before the first line that is kept.

        Prompt and line are tokenized as one text, as sentence-transformers does; separately only if they would not fit,
        or if the line was cut.
        """
        prompt, turns = self._context_prompt_ids, self.tokenize(lines)
        fitting = select_turns(
            turns,
            separator=len(self.separator_ids),
            max_tokens=max_tokens - 2 - len(prompt),
            persona=find_persona_lines(lines),
            side=self.config.truncation_side,
        )
        first_row, (first, *rest) = next(iter(fitting), None), list(fitting.values()) or [[]]
        is_whole = first_row is None or len(first) == len(turns[first_row])
        joined = self.tokenize([self.config.context_prompt + ("" if first_row is None else lines[first_row])])[0]
        ids = join_with_separator([joined, *rest], separator=self.separator_ids)
        if not rest and self.config.truncation_side == "right":
            ids = joined[: max_tokens - 2]
        elif not is_whole or len(ids) > max_tokens - 2:
            ids = join_with_separator([[*prompt, *first], *rest], separator=self.separator_ids)
        return [self.start_id, *ids, self.end_id]

    def tokenize_candidates(self, texts: Sequence[str], *, remember: bool = True) -> list[list[int]]:
        """Token ids of each candidate after its prompt, surrounded; with `candidate_rows` its row (or InputError)."""
        if self.config.candidate_rows:
            return [[self._choose_row(text)] for text in check_texts("candidates", texts)]
        limit = self.config.label_truncate
        if self.config.candidate_prompt:
            texts = [self.config.candidate_prompt + text for text in check_texts("candidates", texts)]
        ids_of_texts = self.tokenize(texts, remember=remember)
        if self.config.truncation != "turns":
            if self.config.surround:
                ids_of_texts = [[self.start_id, *ids, self.end_id] for ids in ids_of_texts]
            return [self._remember(ids[:limit]) for ids in ids_of_texts]
        if not self.config.surround:
            return [ids[:limit] for ids in ids_of_texts]
        return [surround(ids, start=self.start_id, end=self.end_id, max_tokens=limit) for ids in ids_of_texts]

    @property
    def candidate_room(self) -> int:
        """The number of tokens that the model reads of a candidate, without special tokens and the prompt."""
        prompt = len(self._encode([self.config.candidate_prompt])[0]) if self.config.candidate_prompt else 0
        return self.config.label_truncate - (2 if self.config.surround else 0) - prompt

    def count_cut(self, candidates: Sequence[str], ids: Sequence[Sequence[int]]) -> int:
        """The number of candidates with more tokens than `label_truncate`; `ids` are their tokens."""
        limit = self.config.label_truncate
        full = [text for text, row in zip(candidates, ids, strict=True) if len(row) >= limit]
        if self.config.candidate_rows or not full:
            return 0
        surrounding = 2 if self.config.surround else 0
        rows = self.tokenize([self.config.candidate_prompt + text for text in full], remember=False)
        return sum(len(row) + surrounding > limit for row in rows)

    def format_cut_message(self, count: int, *, of: int) -> str:
        """Says how many candidates are cut."""
        limit = self.config.label_truncate
        return f"{count:,} of {of:,} candidates have more than {limit} tokens (label_truncate): the rest is left out"

    def batch_contexts(self, contexts: Sequence[Sequence[str] | str]) -> TokenBatch:
        """A padded batch of contexts, each a list of turns or one text."""
        if not contexts:
            raise InputError("no context to encode: the list of contexts is empty")
        return self.pad([self.tokenize_context(turns) for turns in contexts])

    def batch_candidates(self, texts: Sequence[str]) -> TokenBatch:
        """A padded batch of candidates."""
        if not texts:
            raise InputError("no candidates to encode: the list of candidates is empty")
        return self.pad(self.tokenize_candidates(texts))

    def compute_unknown_share(self, texts: Sequence[str]) -> float:
        """The share of unknown tokens in the texts; 0 with byte-level and hashed vocabularies."""
        model = json.loads(self.tokenizer.to_str()).get("model", {})
        token, unknown = model.get("unk_token"), model.get("unk_id")  # `unk_id` is Unigram's
        if token is not None:
            unknown = self.tokenizer.token_to_id(token)
        ids = [token_id for row in self.tokenize(texts) for token_id in row]
        return 0.0 if unknown is None or not ids else ids.count(unknown) / len(ids)

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        """The number of tokens before a context and before a candidate, start token and prompt, as counted by
        sentence-transformers; 0 without a prompt."""
        prompts = [getattr(self.config, name) for name in PROMPTS]
        context, candidate = (1 + len(self._encode([prompt])[0]) if prompt else 0 for prompt in prompts)
        return context, candidate

    @property
    def pair_start(self) -> PairStart:
        """The beginning of the second text in the tokenizer's pairs, as a `RankerConfig.pair_start`."""
        first, second = ([self.start_id, *ids, self.end_id] for ids in self._encode(["a", "b"]))
        pair = self._pair
        starts: tuple[PairStart, ...] = (False, "end", True)
        fitting = (start for start in starts if join_pair(first, second, start=start)[0] == pair.ids)
        if (start := next(fitting, None)) is None:
            raise ConfigError(f"its tokenizer joins two texts as {' '.join(pair.tokens)}, which rankers do not")
        return "same_segment" if start is False and not any(pair.type_ids) else start

    def format_tokenizer_json(self, *, pair_start: PairStart = False) -> str:
        """The `tokenizer.json` with which other libraries lay out a text, or a pair of them, as rankers do."""
        if isinstance(self.tokenizer, SubwordTokenizer):
            return self.tokenizer.to_str(pretty=True)
        tokenizer = Tokenizer.from_str(self.tokenizer.to_str())
        self._set_template(tokenizer, pair_start=pair_start)
        return str(tokenizer.to_str(pretty=True))

    def _set_template(self, tokenizer: Tokenizer, *, pair_start: PairStart) -> None:
        surrounds, segment = self.config.surround, int(isinstance(pair_start, bool))
        start, end = (["START:0"], ["END:0"]) if surrounds else ([], [])
        second = {True: [f"START:{segment}"], "end": ["END:0"]}.get(pair_start, []) if surrounds else []
        second += [f"$B:{segment}", *([f"END:{segment}"] if surrounds else [])]
        special = {"START": (self.config.start_token, self.start_id), "END": (self.config.end_token, self.end_id)}
        tokenizer.post_processor = TemplateProcessing(
            single=[*start, "$A:0", *end],
            pair=[*start, "$A:0", *end, *second],
            special_tokens=[{"id": name, "ids": [i], "tokens": [token]} for name, (token, i) in special.items()],
        )

    def pad(self, sequences: Sequence[Sequence[int]]) -> TokenBatch:
        from polyencoder.text.tokens import pad  # here: token ids alone need no torch

        return pad(sequences, pad_id=self.pad_id)

    def compute_fingerprint(self, *, contexts: bool = True) -> str:
        """Digest of everything tokenization depends on; without `contexts`, only what candidates depend on."""
        fields = {name: value for name, value in asdict(self.config).items() if contexts or name not in CONTEXT_FIELDS}
        return compute_fingerprint([self.tokenizer.to_str(), json.dumps(fields)])

    def _encode_recent_first(self, turns: Sequence[str]) -> list[int]:
        config, limit = self.config, self.config.text_truncate
        last, extra = split_immediate_and_extra(turns, size=config.history_size, numbered=config.number_turns)
        ids = self.tokenize([last])[0][:limit]
        if extra and (extra_ids := self._encode([extra])[0]):  # a text that hardly comes again
            ids = [*ids, *self.separator_ids, *extra_ids[:limit]]
        return ids

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            if isinstance(self.tokenizer, SubwordTokenizer):
                rows = self.tokenizer.encode_texts(texts)
            else:
                encode = partial(self.tokenizer.encode_batch_fast, add_special_tokens=False)
                batches = [[text] for text in texts] if len(texts) < MANY else [texts]
                rows = [encoding.ids for batch in batches for encoding in encode(batch)]
        except (TypeError, AttributeError, UnicodeEncodeError):  # not a text, or a lone surrogate
            for number, text in enumerate(texts):
                check_text(f"text {number}", text)
            raise
        return [ids or self.empty_ids for ids in rows]

    def _encode_prompt(self, config: TextConfig, name: str, *, longest: int) -> list[int]:
        """The token ids of a prompt, which must leave room for a text."""
        text = getattr(config, name).rstrip(" ")  # a space belongs to the word behind it
        ids = self._encode([text])[0] if text else []
        if len(ids) + 3 > longest:
            raise ConfigError(
                f"{name} has {len(ids)} tokens, which leaves no room for a text in {longest}: give a shorter one, or "
                "a larger maximum",
                argument=name,
            )
        return ids

    def _choose_row(self, text: str) -> int:
        if self.rows is None:
            raise InputError(
                "this model has no encoder of candidates: it searches an index of the vectors that it was trained for, "
                "and ranks no other texts"
            )
        if (row := self.rows.get(text, self.rows.get(text.strip()))) is None:
            raise InputError(
                f"{text!r:.60} is not in the index, whose texts alone have vectors of its encoder",
                argument="candidates_of",
            )
        return row

    def _remember(self, ids: list[int]) -> list[int]:
        # a text may spell out padding, which models trained by ParlAI ignore
        return [i for i in ids if i != self.pad_id] if self.pad_id in ids else ids

    def _get_special_id(self, name: str) -> int:
        token = getattr(self.config, name)
        index = self.tokenizer.token_to_id(token)
        if index is None:
            raise ConfigError(f"the tokenizer has no {token!r}, which is this model's {name.replace('_', ' ')}")
        return int(index)


def _compute_size(ids: list[int]) -> int:
    return 40 * len(ids)


def _copy_plain(tokenizer: Tokenizer) -> Tokenizer:
    """Copies a tokenizer without truncation and padding; "[SEP]" in user text is plain text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def read_subwords(vocabulary: str | os.PathLike[str]) -> SubwordTokenizer:
    """Reads the vocabulary of `polyencoder vocab`, a folder or file. ConfigError: unreadable, or of another kind."""
    path = Path(vocabulary)
    path = path / "tokenizer.json" if path.is_dir() else path
    tokenizer = read_tokenizer(path)
    if not isinstance(tokenizer, SubwordTokenizer):
        raise ConfigError(f"{path}: not a vocabulary of ConveRT's subwords; train one with `polyencoder vocab`")
    return tokenizer


def read_tokenizer(path: str | os.PathLike[str]) -> AnyTokenizer:
    """Reads a `tokenizer.json` of any kind. ConfigError: it cannot be read."""
    name = os.fspath(path)
    try:
        text = Path(name).read_text(encoding="utf-8")
        if is_subword_tokenizer(text):
            return SubwordTokenizer.from_str(text, origin=name)
        return Tokenizer.from_str(text)
    except ConfigError:
        raise
    except Exception as error:  # the Rust library raises plain Exception
        raise ConfigError(f"{name}: not a readable tokenizer.json ({error})") from None
