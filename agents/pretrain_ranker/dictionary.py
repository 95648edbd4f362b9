"""ParlAI's dictionary over the tokenizer of `--vocabulary` or `--backbone`, with a token for masked words."""

from __future__ import annotations

from collections.abc import Iterable

from parlai.agents.ranker.architecture import length
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.agents.ranker.vocabulary import BytePairs, Fields
from parlai.core.opt import Opt
from tokenizers import Tokenizer

from polyencoder.config import TextConfig
from polyencoder.errors import ConfigError
from polyencoder.pretraining.start import POSITIONS, add_mask, starting_tokenizer
from polyencoder.text import AnyTokenizer

__all__ = ["PretrainingDictionary"]


class Given:
    """A vocabulary that was learnt before: nothing is learnt from the task."""

    learnt: Fields = BytePairs.learnt

    def named(self, opt: Opt) -> tuple[AnyTokenizer, Fields] | None:
        vocabulary, backbone = opt.get("vocabulary"), opt.get("backbone")
        if not (vocabulary or backbone):
            raise ConfigError(
                "what is pre-trained? Give --vocabulary, the folder that `polyencoder vocab --type bpe` writes, for a "
                "new encoder, or --backbone, an encoder that goes on"
            )
        return starting_tokenizer(vocabulary=vocabulary, backbone=backbone)

    def learn(self, texts: Iterable[str], opt: Opt) -> AnyTokenizer:
        raise ConfigError("the vocabulary of a pre-training is --vocabulary, which `polyencoder vocab` learns")

    def fields(self, config: TextConfig) -> Fields:
        return BytePairs().fields(config)

    def text_config(self, opt: Opt, tokenizer: AnyTokenizer, fields: Fields, *, is_new: bool) -> TextConfig:
        """Contexts may be as long as a sequence: what the response leaves is decided for each."""
        if not isinstance(tokenizer, Tokenizer):
            raise ConfigError("the tokenizer is ConveRT's subwords: its dictionary or model is that of another agent")
        add_mask(tokenizer)  # which a ranker that goes on (--init-model) may lack
        longest = opt.get("n_positions") or POSITIONS
        return TextConfig(
            **fields,
            text_truncate=min(length(opt, "text_truncate", longest), longest),
            label_truncate=longest,
            history_size=opt.get("history_size", -1),
        )


class PretrainingDictionary(RankerDictionary):
    """The dictionary of `-m pretrain_ranker`."""

    vocabulary = Given()
