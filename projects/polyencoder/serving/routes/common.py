"""What the routes share: the service behind them, ids, and what a model is called."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel

from polyencoder.serving.service import Service

__all__ = ["Serving", "Usage", "model_name", "new_id"]


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(_service)]
"""The worker's service, as an argument of a route."""


class Usage(BaseModel):
    """What a request cost."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, tokens: int) -> Usage:
        return cls(prompt_tokens=tokens, total_tokens=tokens)


def new_id(kind: str) -> str:
    """An id of an answer."""
    return f"{kind}-{uuid.uuid4().hex}"


def model_name(service: Service) -> str:
    """What answers call the model: the last part of its path, since paths are nobody's business."""
    return Path(service.config.model).name or "model"
