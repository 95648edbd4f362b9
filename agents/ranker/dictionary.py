"""ParlAI's dictionary over a fast tokenizer: trained on the task, or the pre-trained encoder's."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import parlai.utils.logging as logging
from parlai.agents.ranker.flags import check_existing_vocabulary, check_init_model, select_explicit_flags
from parlai.agents.ranker.model.family import LENGTHS, Fields, ModelFamily, find_explicit_lengths
from parlai.core.build_data import modelzoo_path
from parlai.core.dict import DictionaryAgent, escape
from parlai.core.opt import Opt

from polyencoder.checks import explain_unencodable
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing import is_parlai_model, read_parlai_text, read_ranker_config
from polyencoder.importing.parlai_dictionary import (
    CODES,
    guess_tokens,
    is_merge_vocabulary,
    merge_fields,
    read_merge_vocabulary,
)
from polyencoder.storage.files import reporting_write_errors, write_text
from polyencoder.storage.names import TOKENIZER
from polyencoder.text.encoder import AnyTokenizer, TextEncoder, read_tokenizer
from polyencoder.training.lock import TrainingLock

COUNTED_AT_ONCE = 10_000  # texts


class RankerDictionary(DictionaryAgent):
    """The agents' dictionary. `X.dict` lists its tokens for ParlAI; `X.tokenizer.json` is authoritative.

    Option files of models contain the path of this module, which must not move.

    Unless a flag names one (`--backbone`, or a `--dict-file` of ParlAI's with merges), its vocabulary is trained on
    the training task, as ParlAI's dictionaries are: texts are spooled to a temporary file, on which it is trained
    when saved.
    """

    family: ClassVar[ModelFamily] = ModelFamily()

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        self.opt = opt
        self.textfields = opt.get("dict_textfields", "text,labels").split(",")
        self.text: TextEncoder | None = None
        self.additional_special_tokens: list[str] = []
        self._spool: Any = None
        self._lock: TrainingLock | None = None
        if shared:
            self._use(shared["text"])
            return
        if (existing := _load_existing_tokenizer(opt, self.family)) is None:
            self.family.check_new_vocabulary(opt)
            if opt.get("load_from_checkpoint") and opt.get("model_file"):  # in training, which writes it beside X
                self._lock = TrainingLock.get_or_create(opt["model_file"])
            if is_for_show(opt):
                self._train(("nothing",))
            return  # to be built
        self._use(self._build_text_encoder(*existing))

    def is_prebuilt(self) -> bool:
        """Whether the vocabulary exists already."""
        return self.text is not None

    def act(self) -> dict[str, str]:
        """Spools the texts of the last observation, to train the vocabulary on."""
        with _explaining_spool_errors():
            if self._spool is None:
                self._spool = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115, read in save()
            for field in self.textfields:
                source = self.observation.get(field)
                for text in [source] if isinstance(source, str) else source or []:
                    if explain_unencodable(text):
                        continue  # invalid text: training reports it
                    self._spool.write(text.replace("\r", " ") + "\n")
        return {"id": "Dictionary"}

    def save(self, filename: str | None = None, append: bool = False, sort: bool = True) -> None:
        """Writes `filename` for ParlAI and the tokenizer beside it; trains the vocabulary first if needed."""
        filename = filename or self.opt["dict_file"]
        if self.text is None:
            self._train(self._read_spool())
            self.freq = self._count_texts(self._read_spool())
            if self._spool is not None:
                self._spool.close()
        with reporting_write_errors(filename, CheckpointError):
            self.write(filename)

    def _train(self, texts: Iterable[str]) -> None:
        self._use(self._build_text_encoder(self.family.train_tokenizer(texts, self.opt), self.family.trained_fields))

    def write(self, filename: str) -> None:
        """Writes an existing vocabulary; OSError if it cannot. A ParlAI dictionary is unchanged."""
        is_parlais = os.path.exists(filename) and not self.is_written(filename)
        write_text(_get_tokenizer_path(filename), self._prepare().tokenizer.to_str(pretty=True))
        if is_parlais:
            return
        lines = (f"{escape(token)}\t{self.freq[token]}\n" for token in self._sort_tokens())
        write_text(filename, "".join(lines))

    @staticmethod
    def is_written(filename: str) -> bool:
        """Whether both files exist."""
        return os.path.exists(filename) and os.path.exists(_get_tokenizer_path(filename))

    def _sort_tokens(self) -> list[str]:
        return [self.ind2tok[i] for i in sorted(self.ind2tok)]

    @cached_property
    def freq(self) -> Counter[str]:
        """Each token's frequency in the vocabulary's training texts, for ParlAI; 0 of a pre-trained tokenizer."""
        try:
            lines = Path(self.opt.get("dict_file") or "").read_text(encoding="utf-8").splitlines()
            counts = [int(line.rpartition("\t")[2]) for line in lines]
        except (OSError, ValueError):
            counts = []
        if len(counts) > len(self):
            return Counter()
        return Counter(dict(zip(self._sort_tokens(), counts, strict=False)))

    def sort(self, trim: bool = True) -> list[tuple[str, int]]:
        """The tokens with their counts, most frequent first. Ids are unchanged."""
        return sorted(((token, self.freq[token]) for token in self.tok2ind), key=lambda pair: (-pair[1], pair[0]))

    def get_special_tokens_opt(self) -> dict[str, str]:
        """ParlAI's options for the special tokens, with their actual values."""
        self._prepare()
        return {
            "dict_nulltoken": self.null_token,
            "dict_starttoken": self.start_token,
            "dict_endtoken": self.end_token,
            "dict_unktoken": self.unk_token,
        }

    def txt2vec(self, text: str, vec_type: type = list) -> Any:
        """Token ids of a text, without special tokens."""
        return vec_type(self._prepare().tokenize([text])[0])

    def vec2txt(self, vector: Any, delimiter: str = " ") -> str:
        """The text of token ids."""
        return str(self._prepare().tokenizer.decode([int(i) for i in vector], skip_special_tokens=False))

    def tokenize(self, text: str, building: bool = False) -> list[str]:
        """The tokens of a text, as strings."""
        return [self.ind2tok.get(i, self.unk_token) for i in self._prepare().tokenize([text])[0]]

    def add_additional_special_tokens(self, additional_special_tokens: list[str]) -> None:
        """Adds tokens that are never split (`--special-tok-lst`); the model's embeddings are resized."""
        self.additional_special_tokens = additional_special_tokens
        text = self._prepare()
        text.tokenizer.add_tokens(additional_special_tokens)
        self._use(TextEncoder(text.tokenizer, text.config))

    def __setitem__(self, key: str, value: int) -> None:
        """Adds a token (called by ParlAI): person tokens become special ones; padding for fp16 is ignored."""
        theirs = self._prepare().config.truncation == "tokens" and guess_tokens(key) & self.tok2ind.keys()
        if not key.startswith("__FP16_PAD_") and not theirs:
            self.add_additional_special_tokens([*self.additional_special_tokens, key])

    def share(self) -> dict[str, Any]:
        return {"class": type(self), "opt": self.opt, "text": self.text}

    def _use(self, text: TextEncoder) -> None:
        self.text = text
        self.tok2ind = text.tokenizer.get_vocab(with_added_tokens=True)
        self.ind2tok = {index: token for token, index in self.tok2ind.items()}
        self.null_token, self.start_token = text.config.pad_token, text.config.start_token
        self.end_token = text.config.end_token
        model = getattr(text.tokenizer, "model", None)  # missing in ConveRT's subwords
        unknown = (getattr(model, "unk_token", None), "[UNK]", "<unk>")
        self.unk_token = next((token for token in unknown if token in self.tok2ind), self.null_token)
        self._unk_token_idx = self.tok2ind[self.unk_token]

    def _build_text_encoder(self, tokenizer: AnyTokenizer, fields: Fields) -> TextEncoder:
        is_new = not _find_weights_file(self.opt)
        return TextEncoder(tokenizer, self.family.build_text_config(self.opt, tokenizer, fields, is_new=is_new))

    def _prepare(self) -> TextEncoder:
        if self.text is None:
            raise ConfigError("the dictionary is not built yet: train first, with --dict-file or --model-file")
        return self.text

    def _read_spool(self) -> Iterator[str]:
        if self._spool is not None:
            with _explaining_spool_errors():
                self._spool.seek(0)  # flushes
            yield from self._spool

    def _count_texts(self, texts: Iterator[str]) -> Counter[str]:
        ids: Counter[int] = Counter()
        while batch := [text.rstrip("\n") for text in islice(texts, COUNTED_AT_ONCE)]:
            ids.update(i for row in self._prepare().tokenize(batch, remember=False) for i in row)
        return Counter({self.ind2tok[i]: count for i, count in ids.items() if i in self.ind2tok})


def _load_existing_tokenizer(opt: Opt, family: ModelFamily) -> tuple[AnyTokenizer, Fields] | None:
    """The tokenizer, with its fields of `TextConfig`, of the options' model or dictionary; None if there is none."""
    weights = _find_weights_file(opt)
    if not weights:  # in training, which builds the dictionary first
        check_init_model(opt)
    if not weights and (named := family.load_named_tokenizer(opt)) is not None:
        return named
    if weights and is_parlai_model(weights):
        tokenizer, config = read_parlai_text(weights)
        return tokenizer, family.get_stored_fields(config)
    dict_file = f"{weights}.dict" if weights else opt.get("dict_file")
    if not dict_file:
        return None
    path = os.path.join(weights, TOKENIZER) if weights and os.path.isdir(weights) else _get_tokenizer_path(dict_file)
    if os.path.exists(path):
        logging.info(f"loading tokenizer from {path}")
        if not weights:
            tokenizer = read_tokenizer(path)
            check_existing_vocabulary(opt, tokenizer, path)
            return tokenizer, merge_fields(tokenizer) or family.trained_fields
        config = read_ranker_config(weights).text
        fields = dict(family.get_stored_fields(config))
        if weights != opt.get("model_file") or os.path.isdir(weights):  # else the options are the model's
            fields |= {name: getattr(config, name) for name in {*LENGTHS} - find_explicit_lengths(opt)}
        return read_tokenizer(path), fields
    if not weights and _has_merges(dict_file, opt):
        logging.info(f"loading ParlAI's dictionary {dict_file}")
        merges, fields = read_merge_vocabulary(dict_file, lower_case=opt.get("dict_lower", True))
        check_existing_vocabulary(opt, merges, dict_file)  # before a tokenizer.json is written
        return merges, fields
    if weights or os.path.exists(dict_file):
        codes = "" if weights else f", nor {os.path.basename(dict_file)}{CODES}, as of --dict-tokenizer bpe"
        raise CheckpointError(
            f"{weights or dict_file}: there is no {os.path.basename(path)} beside it{codes}, so it was made by "
            "another agent; give a new --model-file (or --dict-file)"
        )
    return None


def _has_merges(dict_file: str, opt: Opt) -> bool:
    """Whether this is a ParlAI dictionary with merges of subword-nmt: a file, or the paper's folder."""
    if os.path.isdir(dict_file):
        return is_merge_vocabulary(dict_file)
    kind = select_explicit_flags(opt).get("dict_tokenizer")
    return os.path.exists(dict_file) and (kind == "bpe" or (kind is None and os.path.exists(f"{dict_file}{CODES}")))


def is_for_show(opt: Opt) -> bool:
    """Whether generate_model_card inspects a task through an agent: other agents without files have a given option."""
    return opt.get("override") == {} and not opt.get("dict_file")


def _get_tokenizer_path(dict_file: str) -> str:
    return f"{dict_file.removesuffix('.dict')}.tokenizer.json"


def _find_weights_file(opt: Opt) -> str | None:
    """The file that the model is loaded from, if any: its tokenizer precedes the task's and that of `--backbone`."""
    names = [opt[name] for name in ("model_file", "init_model") if opt.get(name)]
    files = [modelzoo_path(opt.get("datapath"), name) for name in names]  # `zoo:` names too
    return next((file for file in files if os.path.exists(file)), None)


def _explaining_spool_errors() -> AbstractContextManager[None]:
    return reporting_write_errors(
        f"{tempfile.gettempdir()}, for the texts that the vocabulary is trained on", CheckpointError
    )
