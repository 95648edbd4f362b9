"""Real servers for the tests: uvicorn on the loopback, in a thread, around tiny models."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from polyencoder.index.base import Candidate
from polyencoder.ranker import Ranker
from polyencoder.serving.app import create_app
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.run import bound, uvicorn_config
from polyencoder.serving.service import Service
from polyencoder.text import TextEncoder

REPLIES = [
    Candidate("pets", "i have two dogs and a cat .", {"lang": "en", "about": "pets"}),
    Candidate("ski", "i like to ski in the mountains .", {"lang": "en"}),
    Candidate("job", "i am a teacher .", {"lang": "en"}),
    Candidate("fine", "i am fine , thank you .", {"lang": "en"}),
    Candidate("tag", "guten tag !", {"lang": "de"}),
]
SECONDS = 60  # that a test waits for an answer, however busy the machine is


@contextlib.contextmanager
def running(service: Service) -> Iterator[str]:
    """The URL of a server that runs in a thread as long as the block does."""
    listener = bound(service.config)
    server = uvicorn.Server(uvicorn_config(service.config, create_app(service)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        listener.listen()
        httpx.get(f"{url}/health", timeout=SECONDS)
        yield url
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def make_service(make_ranker, tmp_path):
    """(architecture or ranker, records=REPLIES, reranker=None, **fields of the config) -> a `Service`."""
    services = []

    def make(ranker="bi", *, records=REPLIES, reranker=None, **fields) -> Service:
        ranker = make_ranker(ranker) if isinstance(ranker, str) else ranker
        index = ranker.index(records, tmp_path / "index") if records else None
        config = ServerConfig(model="tiny", index="index" if records else None, **({"port": 0} | fields))
        services.append(Service.of(config, ranker, index=index, reranker=reranker))
        return services[-1]

    yield make
    for service in services:
        service.close()


@pytest.fixture(scope="session")
def shared(make_model, tokenizer, tmp_path_factory) -> Iterator[httpx.Client]:
    """A client of a server of a bi-encoder that no test changes; it is also called ranker.example."""
    model = make_model("bi")
    ranker = Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")
    index = ranker.index(REPLIES, tmp_path_factory.mktemp("shared") / "index")
    config = ServerConfig(model="tiny", index="index", port=0, allow_hosts=("Ranker.example",))
    with running(Service.of(config, ranker, index=index)) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
        yield client


@pytest.fixture
def serve(make_service):
    """(as make_service) -> an `httpx.Client` of a running server; its `service` is what is served."""
    with contextlib.ExitStack() as stack:

        def make(*args, **fields) -> httpx.Client:
            service = make_service(*args, **fields)
            url = stack.enter_context(running(service))
            client = stack.enter_context(httpx.Client(base_url=url, timeout=SECONDS))
            client.service = service
            return client

        yield make
