"""Real servers for the tests: uvicorn on the loopback, in a thread, around tiny models."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from polyencoder.index.entries import Candidate
from polyencoder.ranker import Ranker
from polyencoder.serving.app import create_app
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.forward import Forward
from polyencoder.serving.run import bind, build_uvicorn_config
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


class HeldCall:
    """A call that waits until it is released, then returns how often it was made."""

    def __init__(self) -> None:
        self.count, self.release = 0, threading.Event()

    def __call__(self) -> int:
        self.count += 1
        assert self.release.wait(SECONDS)
        return self.count


@contextlib.contextmanager
def running(service: Service, *, keep_alive: int = 5) -> Iterator[str]:
    """The URL of a server that runs in a thread as long as the block does, and closes idle connections after seconds.

    A test that replaces `time.monotonic`, and not the `time` of one module, may let its event loop sleep for hours.
    """
    listener, loops = bind(service.config), []

    def create():
        loops.append(asyncio.get_running_loop())
        return create_app(service)

    settings = build_uvicorn_config(service.config, create)
    settings.timeout_keep_alive = keep_alive
    server = uvicorn.Server(settings)
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
        if thread.is_alive():
            faulthandler.dump_traceback(sys.__stderr__)
            for task in asyncio.all_tasks(loops[0]):
                task.print_stack(file=sys.__stderr__)
            pytest.fail("the server does not end: the stacks of all threads and tasks are on standard error")


def check_refused(answer: httpx.Response, param: str | None, says: str = "") -> None:
    """The answer refuses the request, names its field, and says why."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, 422, param), answer.text
    assert says in answer.json()["message"]


@pytest.fixture
def make_service(make_ranker, tmp_path):
    """(architecture or ranker, records=REPLIES, reranker=None, **fields of the config) -> a `Service`."""
    services = []

    def make(ranker="bi", *, records=REPLIES, reranker=None, **fields) -> Service:
        ranker = make_ranker(ranker) if isinstance(ranker, str) else ranker
        index = ranker.index(records, tmp_path / "index") if records else None
        where = str(tmp_path / "index") if records else None
        config = ServerConfig(model="tiny", index=where, **({"port": 0} | fields))
        forward = Forward(ranker, max_tokens=config.batch_tokens)
        services.append(Service.from_config(config, forward, index=index, reranker=reranker))
        return services[-1]

    yield make
    for service in services:
        service.close()


@pytest.fixture(scope="session")
def shared(make_model, tokenizer, tmp_path_factory) -> Iterator[httpx.Client]:
    """A client of a server of a bi-encoder that no test changes; it is also called ranker.example."""
    model = make_model("bi")
    ranker = Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")
    folder = tmp_path_factory.mktemp("shared")
    index = ranker.index(REPLIES, folder / "index")
    config = ServerConfig(model="tiny", index="index", port=0, allow_hosts=("Ranker.example",))
    with (
        running(Service.from_config(config, Forward(ranker), index=index)) as url,
        httpx.Client(base_url=url, timeout=SECONDS) as client,
    ):
        yield client


@pytest.fixture
def serve(make_service):
    """(as make_service) -> an `httpx.Client` of a running server; its `service` is what is served."""
    with contextlib.ExitStack() as stack:

        def make(*args, keep_alive: int = 5, **fields) -> httpx.Client:
            service = make_service(*args, **fields)
            url = stack.enter_context(running(service, keep_alive=keep_alive))
            client = stack.enter_context(httpx.Client(base_url=url, timeout=SECONDS))
            client.service = service
            return client

        yield make


@pytest.fixture
def workspace(make_ranker, tmp_path, monkeypatch, forked_commands):
    """A folder with the model `model` and its index `replies`."""
    ranker = make_ranker("poly")
    ranker.save_pretrained(tmp_path / "model")
    ranker.index(REPLIES, tmp_path / "replies")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextlib.contextmanager
def started(*options: str, before: str = ""):
    """A process of `polyencoder serve` with its URL, once it is ready; `before` is code that it runs first."""
    code = f"{before}\nfrom polyencoder.cli.main import main\nmain()"
    command = [sys.executable, "-c", code, "serve", "-m", "model", "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            lines = []
            while not (match := re.search(r"serving model on (http://\S+)", lines[-1] if lines else "")):
                lines.append(process.stderr.readline())
                assert lines[-1], "".join(lines)
            until = time.monotonic() + 5 * SECONDS  # workers import torch at the same time
            while True:
                try:
                    if httpx.get(f"{match[1]}/ready", timeout=5).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                assert time.monotonic() < until
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
            yield process, match[1]
        finally:
            process.kill()


@pytest.fixture(scope="session")
def browser():
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with chromedriver: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    service = webdriver.ChromeService(executable_path=driver)
    opened = webdriver.Chrome(options=options, service=service)
    opened.set_page_load_timeout(SECONDS)
    yield opened
    opened.quit()


@pytest.fixture
def wait(browser):
    """(condition) -> its value once it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return lambda condition: WebDriverWait(browser, SECONDS).until(lambda _: condition())


@pytest.fixture
def all_of(browser):
    """(CSS selector) -> the elements."""
    from selenium.webdriver.common.by import By

    return lambda selector: browser.find_elements(By.CSS_SELECTOR, selector)


@pytest.fixture
def visit(browser, wait, all_of):
    """(client, part, says): opens the page there, wide enough for all, and waits until it says this of the server."""

    def get(client, part: str, says: str) -> None:
        browser.set_window_size(1000, 1200)
        browser.get(f"{client.base_url}{part}")
        wait(lambda: says in all_of("#about")[0].text)

    return get


@pytest.fixture
def keys():
    """selenium's names of keys."""
    from selenium.webdriver.common.keys import Keys

    return Keys


@pytest.fixture
def drop(browser):
    """(selector, name, text or bytes as a list): drops a file on an element."""
    script = """
        const data = new DataTransfer();
        const content = arguments[2];
        data.items.add(new File([typeof content === "string" ? content : new Uint8Array(content)], arguments[1]));
        const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
        document.querySelector(arguments[0]).dispatchEvent(event);
    """
    return lambda *words: browser.execute_script(script, *words)


def figures(item) -> dict[str, str]:
    """The labels of a candidate with their values."""
    terms, values = (item.find_elements("css selector", f".numbers {tag}") for tag in ("dt", "dd"))
    return {term.text: value.text for term, value in zip(terms, values, strict=True)}
