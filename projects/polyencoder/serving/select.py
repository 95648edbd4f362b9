"""`/v1/select`: which of a request's options (tools, texts) a conversation needs, or none."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field, create_model

from polyencoder.calibration import AnswerOptions
from polyencoder.selector import Selected, build_selection
from polyencoder.serving.messages import Answer, ContextRequest, Count, KnownFields, build_answer_fields, make_fields
from polyencoder.serving.rerank import score
from polyencoder.serving.service import Serving
from polyencoder.text.options import read_options

router = APIRouter(tags=["select"])

_answers: Any = create_model("AnswerFields", **make_fields(AnswerOptions))


class SelectRequest(KnownFields, ContextRequest, _answers):
    """A conversation and the options to choose from. An unknown field is an error."""

    model_config = ConfigDict(strict=True)  # true is not 1

    model: str | None = Field(None, description="Ignored: a server has one model.")
    options: Annotated[list[str | dict[str, Any]], Field(fail_fast=True)] = Field(
        description="Texts, or tools: OpenAI's `{type: function, function: {name, description, parameters}}` or MCP's "
        "`{name, description, inputSchema}`."
    )
    top_k: Count | None = Field(None, description="At most k options (all).")
    keep: list[str] = Field(
        [], description="Names of tools, or texts, that were chosen earlier: they come first, in this order."
    )


_selected: Any = create_model("SelectedFields", **make_fields(Selected))


class SelectedOption(_selected):  # the fields of `Selected`, made above
    """An option that was chosen."""


class SelectResponse(Answer):
    """The chosen options; empty if none is probable enough."""

    chosen: list[SelectedOption] = Field(description="Best first, after those that were kept.")
    none_probability: float | None = Field(
        None, description="The probability that none of the options is right, of a calibrated model."
    )
    best_left_out: SelectedOption | None = Field(None, description="The best option, if none is probable enough.")


@router.post("/v1/select", response_model_exclude_none=True)
async def select(request: SelectRequest, service: Serving) -> SelectResponse:
    """Chooses the options that a conversation needs."""
    engine, calibration = service.engine, service.engine.ranker.calibration
    answers = AnswerOptions(min_probability=request.min_probability, max_risk=request.max_risk)
    engine.check_count(request.options, name="options")  # before steps that take long for a million
    threshold = answers.threshold(calibration, of=engine.ranker)
    options = await engine.tokenize(lambda: read_options(request.options))
    texts = engine.check_texts([option.text for option in options], name="options")
    turns = engine.check_turns(request.collect_turns(system=service.config.system))
    scores, tokens, _ = await score(engine, turns, texts, name="options")
    result = build_selection(options, scores, calibration, top_k=request.top_k, threshold=threshold, keep=request.keep)
    return SelectResponse(
        **build_answer_fields("select", model=service.name, tokens=tokens),
        chosen=[SelectedOption(**vars(choice)) for choice in result.chosen],
        none_probability=result.none_probability,
        best_left_out=None if result.best_left_out is None else SelectedOption(**vars(result.best_left_out)),
    )
