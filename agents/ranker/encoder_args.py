"""The command line of rankers around a backbone: ParlAI's flags of an encoder, ours, and the paper's defaults."""

from __future__ import annotations

from typing import get_args

from parlai.agents.ranker.args import BATCH_SIZE, add_ranker_args, set_training_defaults
from parlai.agents.transformer.transformer import TransformerRankerAgent
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser

from polyencoder.modeling import FINE_TUNED
from polyencoder.text import TurnSeparator

# Section 5.1 of Humeau et al. (ICLR 2020) and the input lengths of its first version.
PAPER_DEFAULTS = {
    "text_truncate": 360,
    "label_truncate": 72,
    "history_size": 20,
    "optimizer": "adamw",
    "learningrate": 5e-5,
    "lr_scheduler": "reduceonplateau",
    "lr_scheduler_decay": 0.4,
    "lr_scheduler_patience": 0,
    "warmup_updates": 100,
    "share_word_embeddings": False,
    "normalize_sent_emb": None,  # as the sentence encoder or the initial model says, else False
    "share_encoders": False,
    # the encoder that the paper pre-trained: a BERT, which is ParlAI's `xlm` variant
    "variant": "xlm",
    "activation": "gelu",
    "learn_positional_embeddings": True,
    "embeddings_scale": False,
    "n_segments": 2,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    # the size of a vocabulary that is learnt from the task
    "dict_maxtokens": 30_000,
    "dict_lower": True,
}


def output_scaling(value: str) -> float | str:
    """The value of `--output-scaling`; argparse names this function in its error."""
    return value if value == "auto" else float(value)


def add_encoder_args(parser: ParlaiParser, partial_opt: Opt | None = None) -> None:
    """Add what the bi-, poly- and cross-encoder share."""
    TransformerRankerAgent.add_cmdline_args(parser, partial_opt=partial_opt)
    add_ranker_args(parser)
    group = parser.add_argument_group("Encoder arguments")
    group.add_argument(
        "--backbone",
        type=str,
        default=None,
        help="Pre-trained encoder to start from: a hub id or a folder (BERT, RoBERTa, MiniLM, ModernBERT, ...). "
        "Without it the encoder is trained from scratch, with the sizes of --embedding-size, --n-layers, --n-heads "
        "and --ffn-size.",
    )
    group.add_argument(
        "--type-optimization",
        type=str,
        default=None,
        choices=list(FINE_TUNED),
        help="Which layers of the encoder learn (Table 3 of the poly-encoder paper). Default: all_encoder_layers, all "
        "but the embeddings, for a pre-trained --backbone, else all.",
    )
    group.add_argument(
        "--reduction-type",
        type=str,
        default=None,
        choices=["first", "mean", "max", "mean_first", "mean_except_first"],
        help="How the transformer's outputs are pooled into one vector: the first, the mean or maximum of all, the "
        "mean of the first --reduction-outputs, or the mean of all but the first (Table 7 of the paper). Default: as "
        "the --init-model; as a sentence encoder given as --backbone, together with its cosine "
        "(--normalize-sent-emb true --output-scaling 4.47); else first.",
    )
    group.add_argument(
        "--reduction-outputs",
        type=int,
        default=None,
        help="m of --reduction-type mean_first (Table 7 of the paper). Default: as --init-model, else 64.",
    )
    group.add_argument(
        "--turn-separator",
        type=str,
        default=None,
        choices=list(get_args(TurnSeparator)),
        help="What separates the turns of a context: the tokenizer's separator, such as [SEP]; a newline token, as in "
        "the papers, which is added to the vocabulary; or nothing. Default: newline for a --backbone that was "
        "pre-trained with such a token, else sep.",
    )
    group.add_argument(
        "--output-scaling",
        type=output_scaling,
        default=None,
        help="Factor of the transformer's outputs. Default: see --reduction-type, else 1. auto: measured on the first "
        "training batch so that their standard deviation is BERT's, for weights pre-trained without weight decay "
        "(Section 5.3 of the paper), whose large outputs saturate the attention of a poly-encoder.",
    )
    group.add_argument(
        "--compile",
        type="bool",
        default=False,
        help="Compile the encoders with torch.compile for training; the first steps take longer. Needs a C++ compiler, "
        "on a GPU triton.",
    )
    parser.set_defaults(**PAPER_DEFAULTS)
    set_training_defaults(parser, partial_opt, batchsize=BATCH_SIZE)


def add_poly_args(parser: ParlaiParser) -> None:
    """Add what the poly-encoder alone has."""
    group = parser.add_argument_group("Poly-encoder arguments")
    group.add_argument(
        "--polyencoder-type",
        type=str,
        default="codes",
        choices=["codes", "n_first", "n_last", "first_n_last"],
        help="The vectors of a context: learnt codes that attend over all outputs, the first or the last m outputs, or "
        "the last m and the first (Appendix C of the paper).",
        recommended="codes",
    )
    group.add_argument("--poly-n-codes", type=int, default=64, help="m, the number of context vectors.", recommended=64)
    group.add_argument(
        "--poly-attention-type",
        type=str,
        default="basic",
        choices=["basic", "sqrt", "multihead"],
        help="Attention of a candidate over the context vectors: dot product, dot product divided by sqrt(dimension), "
        "or multi-head attention (--poly-attention-num-heads), with which searches score every candidate.",
        recommended="basic",
    )
    group.add_argument(
        "--poly-attention-num-heads", type=int, default=4, help="Heads of --poly-attention-type multihead."
    )
    group.add_argument(
        "--codes-attention-type",
        type=str,
        default="basic",
        choices=["basic", "sqrt", "multihead"],
        help="Attention of the learnt codes over the transformer's outputs.",
        recommended="basic",
    )
    group.add_argument(
        "--codes-attention-num-heads", type=int, default=4, help="Heads of --codes-attention-type multihead."
    )
