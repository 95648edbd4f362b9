"""The state of the server, its model and index: `/health`, `/ready`, `/info`, `/v1/models`, `/metrics`."""

from __future__ import annotations

import logging
import time
from typing import Any

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from polyencoder.errors import PolyencoderError
from polyencoder.serving.problems import format_for_clients
from polyencoder.serving.service import Service, Serving

router = APIRouter(tags=["health"])

_log = logging.getLogger(__name__)
_STARTED = int(time.time())
_LIMITS = ("bytes", "documents", "characters", "tokens", "top_k", "concurrent", "seconds")


@router.head("/health", include_in_schema=False)  # some balancers send HEAD
@router.get("/health")
async def health() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready")
async def ready(service: Serving) -> Response:
    """Whether the server accepts requests: 503 while too many tokens wait, or if the index cannot be searched.

    The model is loaded and warm before the server listens.
    """
    if service.engine.overloaded:
        return JSONResponse({"status": "busy", "reason": "too many tokens wait for the model"}, 503)
    try:
        await service.check_index()
    except PolyencoderError as error:
        _log.error("/ready: %s", error)
        return JSONResponse({"status": "no index", "reason": format_for_clients(error)}, 503)
    return JSONResponse({"status": "ready"})


@router.get("/info")
async def info(service: Serving) -> dict[str, Any]:
    """The model, the index and the limits."""
    ranker, limits = service.engine.ranker, service.engine.limits
    text = ranker.text.config
    return {
        "model": service.name,
        "architecture": ranker.model.config.architecture,
        "backend": service.config.backend,
        "dtype": service.config.model_dtype,
        "device": str(ranker.device),
        "calibrated": ranker.calibration is not None,
        "search_calibrated": service.search_calibrated,
        "embeddings": ranker.model.has_one_vector,
        "feedback": service.config.feedback is not None,
        "examples": service.config.examples,
        "candidates": await service.count(),
        "context_tokens": text.longest_context,
        "candidate_tokens": text.label_truncate,
        "limits": {name: getattr(limits, name) for name in _LIMITS},
    }


@router.get("/v1/models")
async def models(service: Serving) -> dict[str, Any]:
    """The model, as OpenAI's clients list them."""
    return {"object": "list", "data": [_describe_model(service)]}


@router.get("/v1/models/{name}")
async def model(name: str, service: Serving) -> dict[str, Any]:
    """The model of this name."""
    if name != service.name:
        raise HTTPException(404, f"the model is {service.name}; a server has one")
    return _describe_model(service)


def _describe_model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": _STARTED, "owned_by": "polyencoder"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Serving) -> Response:
    """Metrics for Prometheus."""
    return Response(service.metrics.format_metrics(), media_type=CONTENT_TYPE_LATEST)
