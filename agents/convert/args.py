"""The command line of `-m convert`: its flags are those of `polyencoder train`, its defaults the paper's."""

from __future__ import annotations

from parlai.agents.ranker.args import add_ranker_args, set_training_defaults
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_ranker_agent import TorchRankerAgent

from polyencoder.modeling.convert import CONTEXT_VECTORS
from polyencoder.modeling.families import family

__all__ = ["add_convert_args"]

OF_PARLAI = {
    "batch_size": "batchsize",
    "clip": "gradient_clip",
    "learning_rate": "learningrate",
    "max_updates": "max_train_steps",
    "schedule": "lr_scheduler",
}
"""What the library's presets call otherwise."""

OF_TRAINING = ("batchsize", "max_train_steps")  # which ParlAI's training scripts alone have


def add_convert_args(parser: ParlaiParser, partial_opt: Opt | None = None) -> None:
    """Add the flags, with the defaults of a new model or, where there is an `--init-model`, of fine-tuning."""
    TorchRankerAgent.add_cmdline_args(parser, partial_opt=partial_opt)
    add_ranker_args(parser)
    _add_text_args(parser)
    _add_size_args(parser)
    found = family("convert").preset(fine_tuning=bool((partial_opt or {}).get("init_model")))
    defaults = {OF_PARLAI.get(name, name): value for name, value in found.items()}
    set_training_defaults(parser, partial_opt, **{name: defaults.pop(name) for name in OF_TRAINING if name in defaults})
    parser.set_defaults(**defaults)


def _add_text_args(parser: ParlaiParser) -> None:
    group = parser.add_argument_group("ConveRT's texts")
    group.add_argument(
        "--vocabulary",
        type=str,
        default=None,
        help="The folder or file that `polyencoder vocab` wrote. Default: the vocabulary is learnt from the training "
        "task: subwords that occur at least --dict-minfreq times if given (250 in the paper), else about "
        "--dict-maxtokens of them (31476).",
    )
    group.add_argument(
        "--extra-contexts",
        type=int,
        default=None,
        help="How many turns before the last one are read, most recent first, together with the persona (10 in the "
        "paper). Default: 0, a single-context model. A multi-context model can be evaluated with fewer.",
    )
    group.add_argument(
        "--number-turns",
        type="bool",
        default=None,
        help="Put its number before each of these turns, as the paper's model for DSTC7 does.",
    )
    group.add_argument(
        "--context-vector",
        type=str,
        default=None,
        choices=list(CONTEXT_VECTORS),
        help="Evaluate a multi-context model with the vector of the last turn alone (immediate) or of the turns before "
        "it (extra). Default: combined.",
    )


def _add_size_args(parser: ParlaiParser) -> None:
    group = parser.add_argument_group("ConveRT's sizes")
    group.add_argument("--hidden-size", type=int, default=None, help="Of embeddings and blocks. Default: 512.")
    group.add_argument(
        "--intermediate-size", type=int, default=None, help="Of the blocks' feed-forward layers. Default: 2048."
    )
    group.add_argument(
        "--attention-limits",
        type=str,
        default=None,
        help="How many tokens away each block attends, separated by commas. Default: 3,5,48,48,48,48.",
    )
    group.add_argument("--attention-heads", type=int, default=None, help="Heads of the blocks. Default: 1.")
    group.add_argument(
        "--relative-bias", type="bool", default=None, help="A learnt bias for each distance. Default: true."
    )
    group.add_argument("--reduction-heads", type=int, default=None, help="Heads of the reduction. Default: 2.")
    group.add_argument(
        "--head-sizes",
        type=str,
        default=None,
        help="Hidden layers of feed-forward 2, separated by commas. Default: 1024,1024,1024.",
    )
    group.add_argument("--skips", type="bool", default=None, help="Skips in the last networks. Default: true.")
    group.add_argument(
        "--scale-batches",
        type=int,
        default=None,
        help="Batches over which the scale of the cosine rises, from 1 to the root of 512. Default: 10000.",
    )
    group.add_argument(
        "--quantization-aware",
        type="bool",
        default=None,
        help="Train for embeddings in 8 bits and other weights in 16, as `polyencoder export` then writes them.",
    )
    group.add_argument(
        "--quantization-update",
        type=int,
        default=None,
        help="Batches between updates of the range of the 8-bit embeddings. Default: 100.",
    )
    group.add_argument(
        "--dropout",
        type=float,
        default=None,
        help="Dropout after embeddings and attention. Default: 0, with --init-model 0.2.",
    )
    group.add_argument(
        "--adadelta-eps", type=float, default=1e-8, help="Of --optimizer adadelta: TensorFlow's, not torch's 1e-6."
    )
