"""Imports models of other projects: ParlAI's rankers, fairseq's RoBERTa, XLM's encoders."""

from polyencoder.importing.parlai_dictionary import read_parlai_dictionary
from polyencoder.importing.parlai_model import (
    import_parlai,
    is_parlai_model,
    parlai_text,
    read_parlai_model,
    read_ranker_config,
    read_ranker_file,
)
from polyencoder.importing.parlai_weights import convert_parlai

__all__ = [
    "convert_parlai",
    "import_parlai",
    "is_parlai_model",
    "parlai_text",
    "read_parlai_dictionary",
    "read_parlai_model",
    "read_ranker_config",
    "read_ranker_file",
]
