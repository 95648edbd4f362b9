"""`/v1/feedback`: ratings of replies, kept as JSON lines that `polyencoder train` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
import filelock
from fastapi import APIRouter, Depends, Request
from pydantic import Field

from polyencoder.data.layouts import Columns, parse_examples
from polyencoder.errors import ConfigError, PolyencoderError
from polyencoder.serving.messages import Body, KnownFields, Messages, read_turns
from polyencoder.serving.service import Serving

router = APIRouter(tags=["chat"])


class Feedback:
    """A file of good replies, with their contexts and candidates, beside a file of rejected replies.

    Args:
        path: the file of good replies, `{"context", "response", "candidates"}`; `PATH.rejected.jsonl` has
            `{"context", "rejected"}`; both have the `risk` of a reply with a promise. Lines are appended whole, by all
            workers.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._good = path
        self._lock = filelock.FileLock(path.with_name(f".{path.name}.lock"))  # all workers write to it
        self._rejected = path.with_name(f"{path.name}.rejected.jsonl")
        try:
            self._append(self._good, b"")
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be written ({error.strerror or error}); give another file", argument="feedback"
            ) from None

    def write(
        self, turns: Sequence[str], response: str, *, candidates: Sequence[str], good: bool, risk: float | None = None
    ) -> None:
        """Appends a rating, a line to train on. InputError if training refuses it, PolyencoderError for no room."""
        texts = list(dict.fromkeys(text.strip() for text in (response, *candidates)))
        record: dict[str, Any] = {"context": list(turns), "response": texts[0]}
        if good and len(texts) > 1:  # with a single candidate there is no choice
            record["candidates"] = texts
        parse_examples(record, Columns(), where="feedback")
        if not good:
            record["rejected"] = record.pop("response")
        if risk is not None:
            record["risk"] = risk
        line = json.dumps(record, ensure_ascii=False) + "\n"
        try:
            self._append(self._good if good else self._rejected, line.encode())
        except OSError as error:
            why = f"feedback cannot be written ({error.strerror or type(error).__name__})"
            raise PolyencoderError(why, public=why) from None

    def _append(self, path: Path, data: bytes) -> None:
        with open(path, "ab", buffering=0) as file, self._lock:  # closing writes nothing more
            end = file.seek(0, os.SEEK_END)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(end)  # a partial line would corrupt the next one
                raise


def _get_feedback(request: Request) -> Feedback:
    feedback: Feedback | None = request.app.state.feedback
    if feedback is None:
        raise ConfigError(
            "this server keeps no feedback: start it with `polyencoder serve --feedback FILE`", argument="feedback"
        )
    return feedback


class FeedbackRequest(KnownFields, Body):
    """A dialogue, a reply to it, and whether the reply is good."""

    messages: Messages = Field(description="The dialogue, oldest first.")
    response: str = Field(description="The reply that is rated.")
    candidates: list[str] = Field([], description="The candidates that the reply was chosen from.")
    good: bool = Field(description="Whether the reply is good.")
    risk: float | None = Field(
        None, ge=0, le=1, strict=True, description="The reply's `risk`, if it has one: `calibrate` tests it."
    )


@router.post("/v1/feedback")
async def give_feedback(
    request: FeedbackRequest, service: Serving, feedback: Annotated[Feedback, Depends(_get_feedback)]
) -> dict[str, str]:
    """Appends a rating to the server's file."""
    turns = service.engine.check_turns(read_turns(request.messages, system=service.config.system), name="messages")
    response = service.engine.check_text(request.response, name="response")
    candidates = service.engine.check_texts(request.candidates, name="candidates") if request.candidates else []
    await anyio.to_thread.run_sync(
        lambda: feedback.write(turns, response, candidates=candidates, good=request.good, risk=request.risk)
    )
    return {"status": "kept"}
