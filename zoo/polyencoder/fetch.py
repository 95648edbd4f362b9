"""Downloads files and resumes interrupted downloads.

After an interruption ParlAI's `download` starts over, and the next run takes the partial file for a complete one. Here
a partial file has another name until it is complete, and the version of the file is stored beside it.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import requests
from parlai.core.build_data import get_http_session
from tqdm import tqdm
from urllib3.exceptions import HTTPError as BrokenTransfer

from polyencoder.errors import CheckpointError
from polyencoder.hub.resolve import SECONDS, explain_unreachable
from polyencoder.storage.digests import compute_file_digest
from polyencoder.storage.files import write_text

PAUSE = 2.0  # seconds before the second try; doubled before each further one
_TIMEOUT = 10.0, 60.0  # seconds to connect, and between two blocks
_BLOCK = 1 << 20


def fetch(url: str, path: Path, *, sha256: str | None = None, tries: int = 5) -> None:
    """Downloads `url` to `path`, or resumes; `path` exists only once the file is complete and its checksum matches.

    Raises:
        CheckpointError: the server cannot be reached (known within seconds), the file does not exist, the
            connection broke `tries` times, or the checksum is wrong. The partial file is kept for the next call, except
            after a wrong checksum.
    """
    part = path.with_name(f"{path.name}.part")
    if reason := explain_unreachable(url, lambda: _probe(url)):
        partial = f"; the partial download is kept, {part}" if part.is_file() else ""
        raise CheckpointError(f"{url}: cannot be reached ({reason}){partial}")
    path.parent.mkdir(parents=True, exist_ok=True)
    for trial in range(tries):
        if trial:
            time.sleep(PAUSE * 2 ** (trial - 1))
        try:
            _resume(url, part)
            break
        except (requests.RequestException, BrokenTransfer) as error:
            problem = error
    else:
        raise CheckpointError(
            f"{url}: the download broke off {tries} times ({' '.join(str(problem).split())}); the same command resumes "
            f"from the partial download, {part}"
        ) from problem
    if sha256 and (digest := compute_file_digest(part)) != sha256:
        part.unlink()
        _get_state_file(part).unlink(missing_ok=True)
        raise CheckpointError(
            f"{url}: has the checksum {digest}, not {sha256}: the file was changed or damaged; the download is "
            "deleted, and the same command starts over"
        )
    os.replace(part, path)
    _get_state_file(part).unlink(missing_ok=True)


def _probe(url: str) -> None:
    with get_http_session() as session:
        session.head(url, timeout=SECONDS)


def _resume(url: str, part: Path) -> None:
    """Appends the rest of the file to `part`, or starts over if the file on the server has changed."""
    state = _read_state(part, url)
    done = part.stat().st_size if state else 0
    if state and done == state["size"]:
        return
    headers = {"Accept-Encoding": "identity"}  # uncompressed, so that bytes can be counted
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": state["version"]}
    with get_http_session() as session, session.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        status = response.status_code
        if status == 200:
            done, state = 0, _describe(response, url)
            part.unlink(missing_ok=True)
            write_text(_get_state_file(part), json.dumps(state))
        elif status in (206, 416) and _start(response) != done:
            part.unlink(missing_ok=True)
            raise requests.ConnectionError(f"the server does not send the file from byte {done}")
        elif status in (408, 429) or status >= 500:
            raise requests.ConnectionError(f"HTTP {status} {response.reason}")
        elif status != 206:
            raise CheckpointError(f"{url}: cannot be downloaded (HTTP {status} {response.reason})")
        _receive(response, part, done=done, size=state["size"])


def _receive(response: requests.Response, part: Path, *, done: int, size: int | None) -> None:
    bar = tqdm(desc=f"Downloading {part.stem}", total=size, initial=done, unit="B", unit_scale=True)
    with open(part, "ab") as file, bar:
        for block in response.raw.stream(_BLOCK, decode_content=False):
            file.write(block)
            bar.update(len(block))
    if size is not None and part.stat().st_size < size:
        raise requests.ConnectionError(f"only {part.stat().st_size} of {size} bytes came")


def _describe(response: requests.Response, url: str) -> dict[str, Any]:
    """URL, version and size of the file on the server; downloads resume only if the version is known and unchanged."""
    tag = response.headers.get("ETag", "")
    version = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    size = response.headers.get("Content-Length")
    return {"url": url, "version": version, "size": int(size) if size else None}


def _read_state(part: Path, url: str) -> dict[str, Any]:
    """The recorded version of a partial file that can be resumed; empty without one."""
    try:
        state = json.loads(_get_state_file(part).read_bytes())
        is_ours = part.is_file() and state["url"] == url and state["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(state) if is_ours else {}


def _get_state_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _start(response: requests.Response) -> int | None:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else None
