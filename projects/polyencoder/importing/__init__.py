"""Imports models of other projects: ParlAI's rankers, fairseq's RoBERTa."""

from polyencoder.importing.parlai_model import (
    import_parlai,
    is_parlai_model,
    read_parlai_text,
    read_ranker_config,
    read_ranker_file,
)

__all__ = ["import_parlai", "is_parlai_model", "read_parlai_text", "read_ranker_config", "read_ranker_file"]
