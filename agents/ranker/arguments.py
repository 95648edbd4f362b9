"""ParlAI's flags for the arguments that errors of the library name."""

from __future__ import annotations

from parlai.core.params import ParlaiParser

__all__ = ["OF_THE_RANKER", "OTHER_NAMES", "flag_of"]

# Fields of RankerConfig and the flags that set them
OF_THE_RANKER = {
    "share_encoders": "share_encoders",
    "reduction": "reduction_type",
    "reduction_outputs": "reduction_outputs",
    "output_scaling": "output_scaling",
    "normalize": "normalize_sent_emb",
    "context_vectors": "polyencoder_type",
    "n_codes": "poly_n_codes",
    "codes_attention": "codes_attention_type",
    "poly_attention": "poly_attention_type",
    "codes_attention_heads": "codes_attention_num_heads",
    "poly_attention_heads": "poly_attention_num_heads",
}

OTHER_NAMES = {
    **OF_THE_RANKER,
    "add_label": "add_label_to_fixed_cands",
    "batch_size": "batchsize",
    "columns.candidates": "selection_candidates",
    "columns.context": "selection_context",
    "columns.response": "selection_response",
    "dataset": "selection_hf",
    "decay": "lr_scheduler_decay",
    "dim": "embedding_size",
    "dtype": "index_dtype",
    "effort": "index_effort",
    "ffn_dim": "ffn_size",
    "fine_tuned": "type_optimization",
    "learning_rate": "learningrate",
    "list_length": "index_list_length",
    "min_count": "dict_minfreq",
    "on_cpu": "no_cuda",
    "patience": "lr_scheduler_patience",
    "schedule": "lr_scheduler",
    "timeout": "group_timeout",
    "top_k": "index_top_k",
}
"""What the options are called that have another name than the library's argument."""


def flag_of(argument: str | None, parser: ParlaiParser | None) -> str | None:
    """`learning_rate` -> `--learningrate`, if the command whose parser this is has such a flag; else None."""
    if argument is None or parser is None:
        return None
    option = OTHER_NAMES.get(argument, argument)
    # ParlAI keeps its short flags with two hyphens, and its long ones first
    flags = (action.option_strings[0] for action in parser._actions if action.dest == option and action.option_strings)
    return next(flags, None)
