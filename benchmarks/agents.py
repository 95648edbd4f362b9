"""ParlAI agents for the benchmarks that run its loop: ours and ParlAI's own, made from scratch at equal size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CONVAI2 = "selection:convai2"


def build_size_flags(*, layers: int, dim: int, heads: int, codes: int = 64) -> dict[str, Any]:
    """Flags that give both agents the same transformer, a BERT, and contexts and candidates of the paper's lengths."""
    return {
        "embedding_size": dim,
        "ffn_size": 4 * dim,
        "n_layers": layers,
        "n_heads": heads,
        "poly_n_codes": codes,
        "variant": "xlm",
        "activation": "gelu",
        "learn_positional_embeddings": True,
        "embeddings_scale": False,
        "n_segments": 2,
        "reduction_type": "first",
        "history_size": 20,
        "text_truncate": 360,
        "label_truncate": 72,
        "n_positions": 512,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }


def import_quietly() -> None:
    """Import ParlAI, and let it log nothing but errors: it logs to standard output, where the report goes."""
    try:
        from parlai.utils import logging
    except ImportError as error:
        raise SystemExit(f"this benchmark needs ParlAI ({error}): pip install --no-deps parlai==1.7.2") from None
    logging.logger.setLevel(logging.ERROR)


def build_options(*, folder: Path, training: bool, **flags: Any) -> Any:
    """Options of an untrained agent whose dictionary is built from the training task, in `folder`."""
    import_quietly()
    from parlai.scripts import build_dict, train_model

    folder.mkdir()
    parser = train_model.setup_args() if training else build_dict.setup_args()
    if not flags.get("backbone"):  # whose tokenizer decides
        flags |= {"dict_lower": True}
    opt = parser.parse_kwargs(
        task=CONVAI2,
        datatype="train" if training else "valid",
        dict_file=str(folder / "model.dict"),
        dict_maxexs=20_000,
        loglevel="error",
        **flags,
    )
    build_dict.build_dict(opt, skip_if_built=True)
    return opt


def open_teacher(task: str, *, datatype: str, **flags: Any) -> Any:
    """The teacher of a task, whose messages have the turns of their conversation so far."""
    import_quietly()
    from parlai.core.params import ParlaiParser
    from parlai.core.teachers import create_task_agent_from_taskname

    opt = ParlaiParser(True, False).parse_kwargs(
        task=task, datatype=datatype, mutators="flatten", loglevel="error", **flags
    )
    opt |= {"candidates": "batch", "eval_candidates": "inline"}  # an agent's flags, which teachers read
    (teacher,) = create_task_agent_from_taskname(opt)
    return teacher
