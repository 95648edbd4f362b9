"""`polyencoder zoo [NAME]`: lists the published models."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

from cyclopts import Parameter

from polyencoder.cli.shared.output import format_table, say
from polyencoder.hub.zoo import PAPER, ZooModel, get_zoo_model, read_zoo_models


def zoo(name: str | None = None, /, *, as_json: Annotated[bool, Parameter(name="--json")] = False) -> None:
    """List the published models, which ParlAI's commands take as zoo:polyencoder/NAME/model.

    Args:
        name: Show the details of this model (default: list all).
        as_json: Print JSON.
    """
    models = list(read_zoo_models().values()) if name is None else [get_zoo_model(name)]
    if as_json:
        facts = [{**dataclasses.asdict(model), "path": model.path, "paper": PAPER} for model in models]
        say(json.dumps(facts if name is None else facts[0], indent=2))
    elif name is None:
        rows = [(model.name, model.title, _format_size(model.source.size), model.source.licence) for model in models]
        say(format_table([("name", "what", "size", "licence"), *rows]))
    else:
        say(_format_details(models[0]))


def _format_details(model: ZooModel) -> str:
    source = model.source
    shared = "" if source.is_hub else " (of the archive, which holds all of ParlAI's models)"
    fields = [
        ("name", model.path),
        ("what", model.title),
        ("source", f"{source.url}, {model.location}"),
        ("licence", source.licence),
        ("size", _format_size(source.size) + shared),
        ("sha256", (source.sha256 or "unknown") + shared),
        ("command", model.command),
    ]
    results = [f"  {result.value:.1f}  {result.measure} ({result.source})" for result in model.results]
    paper = ["", f"In percent, after fine-tuning, by {PAPER}:", *results] if results else []
    return "\n".join([format_table(fields), *paper])


def _format_size(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e6:,.0f} MB"
