"""The command line of `-m convert`: the flags of `polyencoder train`, with the paper's defaults."""

from __future__ import annotations

from parlai.agents.ranker.args import add_ranker_args, set_training_defaults
from parlai.agents.ranker.settings import add_settings, option_names
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_ranker_agent import TorchRankerAgent

from polyencoder.modeling.families import family
from polyencoder.settings.evaluate import EvaluateSettings
from polyencoder.settings.train import TrainSettings

OF_TRAINING = ("batchsize", "max_train_steps")  # only in ParlAI's training scripts


def add_convert_args(parser: ParlaiParser, partial_opt: Opt | None = None) -> None:
    """Adds the flags, with the defaults of a new model or, with `--init-model`, of fine-tuning."""
    TorchRankerAgent.add_cmdline_args(parser, partial_opt=partial_opt)
    add_ranker_args(parser, "convert", without=["backbone"])
    add_settings(parser, EvaluateSettings, without=["hits_at"], panel="ConveRT")
    parser.add_argument_group("ConveRT").add_argument(
        "--adadelta-eps", type=float, default=1e-8, help="Of --optimizer adadelta: TensorFlow's, not torch's 1e-6."
    )
    names = option_names(TrainSettings)
    preset = family("convert").preset(fine_tuning=bool((partial_opt or {}).get("init_model")))
    defaults = {names[name]: value for name, value in preset.items()}
    set_training_defaults(parser, partial_opt, **{name: defaults.pop(name) for name in OF_TRAINING if name in defaults})
    parser.set_defaults(**defaults)
