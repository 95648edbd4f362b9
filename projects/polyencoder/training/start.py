"""Builds the initial ranker of a run, and the untrained baseline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from polyencoder.checkpoint import holds_ranker
from polyencoder.config import PROMPTS
from polyencoder.errors import ConfigError
from polyencoder.index.folder.index import FolderIndex
from polyencoder.index.open import open_index
from polyencoder.modeling.families import CONVERT_SIZES, get_family
from polyencoder.modeling.pretrained_heads import begins_with_head
from polyencoder.modeling.trainable import compile_encoders
from polyencoder.modeling.transfer import check_layout
from polyencoder.ranker import Ranker
from polyencoder.settings.train import NEW_RANKER_FIELDS, TrainSettings
from polyencoder.text import TextEncoder
from polyencoder.training.foreign import ForeignCandidates, find_foreign_candidates


def build_starting_ranker(settings: TrainSettings) -> Ranker:
    """The ranker to train: `init`, or a new one around the backbone. ConfigError: settings contradict it."""
    if settings.model.init:
        ranker = _load_initial(settings)
    elif get_family(settings.model.architecture).has_backbone:
        ranker = _build_around_backbone(settings, settings.model.architecture)
    else:
        ranker = _build_over_vocabulary(settings)
    if ranker.model.has_foreign_candidates and settings.training.hard_negatives.count:
        raise ConfigError(
            "hard_negatives are not mined among vectors of another encoder: leave it out", argument="hard_negatives"
        )
    if settings.model.output_scaling == "auto" and ranker.model.config.normalize:
        raise ConfigError(
            "output_scaling is 'auto', but vectors are normalized to length 1 (normalize); give a number",
            argument="output_scaling",
        )
    if settings.model.compile:
        compile_encoders(ranker.model, device=ranker.device)
    return ranker


def build_untrained_ranker(settings: TrainSettings) -> Ranker:
    """The ranker to evaluate before training.

    A new poly- or cross-encoder is partly random, so a bi-encoder of the backbone replaces it, unless all its weights
    come from a ranker of its architecture, or the cross-encoder is residual or has the head of a trained reranker or
    of pre-training. A late-interaction encoder starts as a bi-encoder. A new ConveRT is random.
    """
    spec = get_family(settings.model.architecture)
    if settings.model.init or not spec.has_backbone:
        return build_starting_ranker(settings)
    assert settings.model.backbone is not None
    if spec.can.has_one_vector:
        return _build_around_backbone(settings, settings.model.architecture)
    if holds_ranker(settings.model.backbone):
        ranker = _build_around_backbone(settings, settings.model.architecture)
        start = Ranker.from_pretrained(settings.model.backbone, device="cpu").model
        shapes, starts = (
            {name: tensor.shape for name, tensor in model.state_dict().items()} for model in (ranker.model, start)
        )
        if start.config.architecture == settings.model.architecture and shapes.items() <= starts.items():
            return ranker
    if not spec.can.has_vectors:
        ranker = _build_around_backbone(settings, settings.model.architecture)
        config = ranker.model.config
        if config.residual or config.dense or begins_with_head(ranker.model, settings.model.backbone):
            return ranker
    # a bi-encoder refuses multihead
    return _build_around_backbone(settings.changed(poly_attention=None, residual=None), "bi")


def _load_initial(settings: TrainSettings) -> Ranker:
    assert settings.model.init is not None
    ranker = Ranker.from_pretrained(settings.model.init, device=settings.evaluation.device)
    config = ranker.model.config
    if config.architecture != settings.model.architecture:
        has_backbone = all(get_family(name).has_backbone for name in (config.architecture, settings.model.architecture))
        raise ConfigError(
            f"{settings.model.init} is of the architecture {config.architecture}, not {settings.model.architecture}: "
            "give its own"
            + (", or start a new model from its encoder with backbone instead of init" if has_backbone else ""),
            argument="architecture",
        )
    config = replace(config, text=replace(config.text, **_get_text_fields(settings)))
    if isinstance(settings.model.output_scaling, float):
        config = replace(config, output_scaling=settings.model.output_scaling)
    text = TextEncoder(ranker.text.tokenizer, config.text)
    ranker.model.check_config(config := ranker.model.completed(config, text))
    check_layout(config)
    ranker.model.config = config
    settings_used = {name: getattr(settings.convert, name) for name in get_family(settings.model.architecture).settings}
    ranker.model.continue_with(settings_used, origin=settings.model.init)
    # without the calibration, which does not apply to the trained weights
    ranker = Ranker(ranker.model, text, device=settings.evaluation.device)
    if not ranker.model.has_foreign_candidates:
        return ranker
    index = None if settings.data.candidates_of is None else open_index(settings.data.candidates_of, ranker)
    if not isinstance(index, FolderIndex):
        raise ConfigError(
            f"{settings.model.init} was trained for vectors of another encoder: give the index folder that has them",
            argument="candidates_of",
        )
    return ForeignCandidates(index).attach(ranker)


def _build_around_backbone(settings: TrainSettings, architecture: Any) -> Ranker:
    assert settings.model.backbone is not None
    model = settings.model
    fields: dict[str, Any] = {name: value for name in NEW_RANKER_FIELDS if (value := getattr(model, name)) is not None}
    if isinstance(model.output_scaling, float):
        fields["output_scaling"] = model.output_scaling

    def build(text: dict[str, Any], **fields: Any) -> Ranker:
        return Ranker.from_backbone(
            model.backbone or "", architecture, device=settings.evaluation.device, text=text, **fields
        )

    ranker, text = build(_get_text_fields(settings), **fields), _get_text_fields(settings)
    if (foreign := find_foreign_candidates(settings.data.candidates_of, ranker)) is None:
        return ranker
    new = foreign.attach(build({**text, "candidate_rows": True}, **foreign.build_config(fields)))
    foreign.fit_map(new.model.get_parameter("foreign_map.weight"), partial(ranker.encode, kind="pooled"))
    return new


def _build_over_vocabulary(settings: TrainSettings) -> Ranker:
    convert = settings.convert
    assert convert.vocabulary is not None
    sizes = {name: value for name in (*CONVERT_SIZES, "dropout") if (value := getattr(convert, name)) is not None}
    if convert.quantization_aware:
        sizes["quantized"] = True
        if convert.quantization_update is not None:
            sizes["quantization_update"] = convert.quantization_update
    return Ranker.from_vocabulary(
        convert.vocabulary,
        device=settings.evaluation.device,
        extra_contexts=convert.extra_contexts or 0,
        text=_get_text_fields(settings),
        **sizes,
    )


def _get_text_fields(settings: TrainSettings) -> dict[str, Any]:
    """The explicit fields of the text's configuration."""
    model, convert = settings.model, settings.convert
    fields = {
        "text_truncate": model.text_truncate,
        "label_truncate": model.label_truncate,
        "history_size": model.history_size if convert.extra_contexts is None else 1 + convert.extra_contexts,
        "number_turns": convert.number_turns,
        **{name: getattr(model, name) for name in PROMPTS},
    }
    is_frozen = settings.training.freeze_candidates and model.label_truncate is None
    if is_frozen and model.backbone and not holds_ranker(model.backbone):  # as in an index of the untrained encoder
        fields["label_truncate"] = Ranker.load(model.backbone, device="cpu").text.config.label_truncate
    return {name: value for name, value in fields.items() if value is not None}
