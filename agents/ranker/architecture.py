"""From ParlAI's options to the library's configuration, and the errors for options that contradict a checkpoint."""

from __future__ import annotations

from typing import Any

import parlai.utils.logging as logging
from parlai.agents.ranker.flags import OF_THE_RANKER, flag, given_flags
from parlai.core.opt import Opt

from polyencoder.config import Architecture, RankerConfig, TextConfig
from polyencoder.errors import CheckpointError
from polyencoder.importing import parlai_text
from polyencoder.modeling.encoder_config import scratch_config
from polyencoder.modeling.sentence_encoder import sentence_vectors
from polyencoder.text import turn_separator

# What of flags.UNSUPPORTED a model that ParlAI trained may have had: in reading, it becomes a BERT that gives the same
_CARRIED_OVER = {
    "variant": "xlm",
    "embeddings_scale": False,
    "learn_positional_embeddings": True,
    "n_segments": 2,
    "relu_dropout": 0.0,
    "data_parallel": False,
    "model_parallel": False,
    "checkpoint_activations": False,
    "wrap_memory_encoder": False,
    "embedding_type": "random",
}

# Keys of a BERT configuration and the options that say the same
_OF_A_BERT = {
    "hidden_size": "embedding_size",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "ffn_size",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}

MODEL_NAMES: dict[str, str] = {"bi": "biencoder", "poly": "polyencoder", "cross": "crossencoder"}


def text_config(opt: Opt, special: dict[str, Any]) -> TextConfig:
    """How the options and the tokenizer's special tokens say that text becomes tokens."""

    given = opt.get("override") or {}

    def length(name: str, otherwise: int) -> int:
        # ParlAI's --truncate stands in for both; -1 is "no limit", for which a model with positions has no place
        value = given["truncate"] if given.get("truncate") and name not in given else opt.get(name)
        return value if value and value > 0 else otherwise

    return TextConfig(
        text_truncate=length("text_truncate", 360),
        label_truncate=length("label_truncate", 72),
        history_size=opt.get("history_size", -1),
        **special,
    )


def scratch_backbone(opt: Opt, *, vocabulary_size: int, pad_id: int) -> dict[str, Any]:
    """The encoder that ParlAI's dimension flags describe."""
    text = text_config(opt, {})
    n_layers = opt["n_encoder_layers"] if opt.get("n_encoder_layers", -1) > 0 else opt["n_layers"]
    return scratch_config(
        vocabulary_size=vocabulary_size,
        dim=opt["embedding_size"],
        n_layers=n_layers,
        n_heads=opt["n_heads"],
        ffn_dim=opt["ffn_size"],
        n_positions=opt.get("n_positions") or text.text_truncate + text.label_truncate,
        activation=opt["activation"],
        dropout=opt["dropout"],
        attention_dropout=opt["attention_dropout"],
        pad_id=pad_id,
    )


def ranker_config(
    opt: Opt, architecture: Architecture, *, backbone: dict[str, Any], text: TextConfig, otherwise: dict[str, Any]
) -> RankerConfig:
    """The configuration of a new model: what the flags say, and `otherwise` for those that say nothing.

    A scaling that is to be measured is 1 until then.
    """
    fields = {name: opt[dest] for name, dest in OF_THE_RANKER.items() if opt.get(dest) is not None}
    if fields.get("output_scaling") == "auto":
        fields["output_scaling"] = 1.0
    return RankerConfig(architecture=architecture, backbone=backbone, text=text, **{**otherwise, **fields})


def pooling_of_backbone(opt: Opt, architecture: Architecture) -> dict[str, Any]:
    """What a sentence encoder, `--backbone`, says of its vectors, for flags that say nothing; logged."""
    vectors = sentence_vectors(opt["backbone"])
    if vectors is None:
        return {}
    given = {name for name, dest in OF_THE_RANKER.items() if opt.get(dest) is not None}
    if opt.get("output_scaling") == "auto":
        given.add("normalize")  # there is nothing to measure of vectors of length 1
    if opt.get("normalize_sent_emb") is False:
        given.add("output_scaling")  # that of a cosine
    fields = vectors.fields(architecture, given=given)
    flags = " ".join(f"{flag(OF_THE_RANKER[name])} {str(value).lower()}" for name, value in fields.items())
    logging.info(
        f"--backbone {opt['backbone']} is a sentence encoder (its modules.json): {flags or 'as the flags say'}"
    )
    if vectors.reduction is None and opt.get("reduction_type") is None:
        modes = " and ".join(vectors.pooling)
        logging.warning(f"its pooling, {modes}, is not one of --reduction-type: taking the first output")
    if vectors.left_out:
        logging.warning(f"its {', '.join(vectors.left_out)} is left out: vectors are the encoder's own")
    return fields


def pooling_of_checkpoint(stored: RankerConfig, architecture: Architecture) -> dict[str, Any]:
    """What the model of `--init-model` does with its outputs, for flags that say nothing."""
    names = ["reduction", "reduction_outputs", "normalize", "output_scaling"]
    names += ["candidate_mlp"] if architecture != "cross" else []
    return {name: getattr(stored, name) for name in names}


def check_architecture(architecture: Architecture, stored: RankerConfig, *, path: str) -> None:
    """Raise CheckpointError when the model file at `path`, which goes on, holds another kind of ranker."""
    if stored.architecture != architecture:
        raise CheckpointError(
            f"--model-file {path} holds a {MODEL_NAMES[stored.architecture]}, not a {MODEL_NAMES[architecture]}: use "
            f"-m {MODEL_NAMES[stored.architecture]}, or start a new model from its weights with --init-model {path}"
        )


def fine_tuned_part(opt: Opt) -> str:
    """What of the encoders learns: `--type-optimization`, or by default all but the embeddings of a pre-trained one."""
    if opt.get("type_optimization"):
        return str(opt["type_optimization"])
    learns = given_flags(opt).get("learn_embeddings", opt.get("learn_embeddings", True) and not opt.get("backbone"))
    keeps_embeddings = not learns
    return "all_encoder_layers" if keeps_embeddings else "all"


def describe_in_opt(opt: Opt, config: RankerConfig) -> None:
    """Write into the options what the model truly is, so that the saved `.opt` file says so."""
    for name, dest in OF_THE_RANKER.items():
        if dest in opt:
            opt[dest] = getattr(config, name)
    opt["turn_separator"] = turn_separator(config.text)
    opt["text_truncate"], opt["label_truncate"] = config.text.text_truncate, config.text.label_truncate
    for key, dest in _OF_A_BERT.items():
        if dest in opt and key in config.backbone:
            opt[dest] = config.backbone[key]


def describe_parlai_model(opt: Opt) -> None:
    """Write into the options of a model that ParlAI trained, `--model-file`, what it is as one of ours."""
    _, text = parlai_text(opt["model_file"])
    given = opt.get("override") or {}
    lengths = {"text_truncate": text.text_truncate, "label_truncate": text.label_truncate}
    opt.update(_CARRIED_OVER | {name: given.get(name) or given.get("truncate") or n for name, n in lengths.items()})
