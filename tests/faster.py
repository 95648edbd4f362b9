"""What makes tests faster, and the fixtures of those tests that are about what is left out."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jinja2
import pytest
import torch
from cyclopts.argument import _collection


@pytest.fixture(scope="session", autouse=True)
def cheap_seeds() -> Iterator[None]:
    """Without an accelerator `torch.manual_seed` seeds the CPU alone: for others it formats three stacks, in 2 ms."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.accelerator.is_available():
            patch.setattr(torch, "manual_seed", torch.default_generator.manual_seed)
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """httpx reads all authorities' certificates for each client, and so for each `httpx.get`, in 50 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def templates_compiled_once() -> Iterator[None]:
    """sentence-transformers compiles the template of a model's card for each model that it saves, in 200 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", cache(jinja2.Environment.compile))
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Files are not synced to the disk, which takes milliseconds; a descriptor that is not open still is an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def known_groups() -> Iterator[None]:
    """A parse makes a command's arguments twice, at first to find their groups: here these are found once."""
    resolve: Callable[..., list[Any]] = _collection._resolve_groups_from_callable
    resolved: dict[Any, list[Any]] = {}

    def once(command: Any, *parameters: Any, **groups: Any) -> list[Any]:
        if not command.__module__.startswith("polyencoder.cli."):
            return resolve(command, *parameters, **groups)
        if command not in resolved:
            resolved[command] = resolve(command, *parameters, **groups)
        return resolved[command]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_collection, "_resolve_groups_from_callable", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def traced_graphs() -> Iterator[bool]:
    """ONNX graphs are traced, as under an older torch: the current exporter takes seconds for each.

    Gives whether torch has that one, for `by_current_exporter`.
    """
    from polyencoder.export.onnx import exporters

    with pytest.MonkeyPatch.context() as patch:
        is_current = exporters.IS_CURRENT
        patch.setattr(exporters, "IS_CURRENT", False)
        yield is_current


@pytest.fixture
def by_current_exporter(traced_graphs, monkeypatch) -> None:
    """Graphs are made as users' are."""
    monkeypatch.setattr("polyencoder.export.onnx.exporters.IS_CURRENT", traced_graphs)


@pytest.fixture(scope="session", autouse=True)
def undrawn_curves() -> Iterator[Callable[..., None]]:
    """Runs draw no curve, which takes half a second in each. Gives what draws, for `drawn_curves`."""
    from polyencoder.training.callbacks import LearningCurve

    with pytest.MonkeyPatch.context() as patch:
        draw = LearningCurve.draw
        patch.setattr(LearningCurve, "draw", lambda self: None)
        yield draw


@pytest.fixture
def drawn_curves(undrawn_curves, monkeypatch) -> None:
    """Runs draw their curves."""
    monkeypatch.setattr("polyencoder.training.callbacks.LearningCurve.draw", undrawn_curves)
