"""LangChain, LlamaIndex and Haystack get the ranker's order, of a ranker in this process and of a running server."""

from __future__ import annotations

import json
import math
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pydantic
import pytest

from polyencoder.adapters.relevance import RemoteRanker, make_relevance, select_best_documents
from polyencoder.errors import ConfigError, InputError, PolyencoderError
from polyencoder.serving.config import Limits, ServerConfig
from polyencoder.serving.forward import Forward
from polyencoder.serving.service import Service
from polyencoder.text.passages import split_text
from tests.polyencoder.serving.conftest import running

QUERY = "do you have any pets ?"
TEXTS = ["i have two dogs and a cat .", "i am a teacher .", "hello", "i like to ski ."]
KEY = "a-long-secret"


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly")


@pytest.fixture(params=["in process", "of a folder", "of a server"])
def model(request, ranker, tmp_path):
    """The model of an adapter, with the arguments that go with it."""
    if request.param == "in process":
        yield ranker, {}
    elif request.param == "of a folder":
        ranker.save_pretrained(tmp_path / "model")
        yield str(tmp_path / "model"), {}
    else:
        config = ServerConfig(model="tiny", port=0, api_key=KEY)
        with running(Service.from_config(config, Forward(ranker))) as url:
            yield url, {"api_key": KEY}


@pytest.fixture
def expected(ranker) -> list[tuple[str, float]]:
    return [(hit.text, pytest.approx(1 / (1 + math.exp(-hit.score)), abs=1e-5)) for hit in ranker.rank(QUERY, TEXTS)]


def test_langchain(model, expected):
    documents = pytest.importorskip("langchain_core.documents")
    from polyencoder.adapters.langchain import PolyencoderReranker

    pages = [documents.Document(page_content=text, metadata={"n": n}) for n, text in enumerate(TEXTS)]
    reranker = PolyencoderReranker(model=model[0], top_n=3, **model[1])
    assert isinstance(reranker, documents.BaseDocumentCompressor)
    best = reranker.compress_documents(pages, QUERY)
    assert [(page.page_content, page.metadata["relevance_score"]) for page in best] == expected[:3]
    assert [pages[page.metadata["n"]].page_content for page in best] == [page.page_content for page in best]
    assert all(page.metadata.keys() == {"n"} for page in pages)
    assert reranker.compress_documents([], QUERY) == []


@pytest.mark.slow
def test_llama_index(model, expected):
    schema = pytest.importorskip("llama_index.core.schema")
    from polyencoder.adapters.llama_index import PolyencoderRerank

    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text), score=0.5) for text in TEXTS]
    rerank = PolyencoderRerank(model=model[0], top_n=3, **model[1])
    reranked = rerank.postprocess_nodes(nodes, query_str=QUERY)
    assert [(node.node.get_content(), node.score) for node in reranked] == expected[:3]
    assert {node.score for node in nodes} == {0.5}
    assert rerank.postprocess_nodes([], query_str=QUERY) == []
    with pytest.raises(InputError, match="no query"):
        rerank.postprocess_nodes(nodes)


@pytest.mark.slow
def test_haystack(model, expected, monkeypatch):
    haystack = pytest.importorskip("haystack")
    from haystack.utils import Secret

    from polyencoder.adapters.haystack import PolyencoderRanker

    monkeypatch.setenv("RANKER_KEY", KEY)
    key = {"api_key": Secret.from_env_var("RANKER_KEY")} if model[1] else {}
    pipeline = haystack.Pipeline()
    pipeline.add_component("ranker", PolyencoderRanker(model[0], top_k=3, **key))
    documents = [haystack.Document(content=text) for text in TEXTS]
    ranked = pipeline.run({"ranker": {"query": QUERY, "documents": documents}})["ranker"]["documents"]
    assert [(document.content, document.score) for document in ranked] == expected[:3]
    assert all(document.score is None for document in documents)
    if isinstance(model[0], str):
        again = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=["polyencoder.adapters.haystack"])
        assert again.run({"ranker": {"query": QUERY, "documents": documents}})["ranker"]["documents"] == ranked
    else:
        with pytest.raises(InputError, match="save it"):
            pipeline.dumps()


@pytest.mark.slow
def test_empty_documents_come_last_without_a_score_and_with_one_warning(model, expected, caplog):
    """One empty page of an index does not fail each question that finds it."""
    relevance = make_relevance(model[0], **model[1])
    texts = ["", *TEXTS[:2], " \n", *TEXTS[2:]]
    ranked = select_best_documents(relevance, QUERY, texts, top_n=None)
    assert [(texts[row], value) for row, value in ranked] == [*expected, ("", None), (" \n", None)]
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("polyencoder")]
    assert [message.partition(":")[0] for message in ours] == ["2 of 6 documents are empty"]
    assert select_best_documents(relevance, QUERY, texts, top_n=1) == ranked[:1]
    assert select_best_documents(relevance, QUERY, [" "], top_n=3) == [(0, None)]


@pytest.mark.slow
def test_a_long_document_has_the_score_of_its_best_passage(model, ranker):
    best, *_, worst = [hit.text for hit in ranker.rank(QUERY, TEXTS)]
    texts = [f"{worst} " * 50 + f"{best} " * 50, *TEXTS[1:]]
    passages = split_text(texts[0], ranker.text, tokens=ranker.text.candidate_room)
    scores = ranker.score([QUERY], [*passages, *texts[1:]])[0].tolist()
    assert max(scores[1 : len(passages)]) > scores[0] + 0.01
    scores[: len(passages)] = [max(scores[: len(passages)])]
    ranked = select_best_documents(make_relevance(model[0], **model[1]), QUERY, texts, top_n=None)
    logits = {row: math.log(value / (1 - value)) for row, value in ranked}  # a relevance is almost 1
    assert logits == pytest.approx(dict(enumerate(scores)), abs=1e-3)
    assert [*logits.values()] == sorted(logits.values(), reverse=True)


@pytest.fixture
def adapters():
    """The adapters of LangChain, LlamaIndex and Haystack."""
    for package in ("langchain_core", "llama_index.core", "haystack"):
        pytest.importorskip(package)
    from polyencoder.adapters.haystack import PolyencoderRanker
    from polyencoder.adapters.langchain import PolyencoderReranker
    from polyencoder.adapters.llama_index import PolyencoderRerank

    return PolyencoderReranker, PolyencoderRerank, PolyencoderRanker


def test_each_adapter_takes_empty_documents(adapters, ranker, expected):
    import haystack
    from langchain_core import documents
    from llama_index.core import schema

    langchain, llama_index, of_haystack = adapters
    pages = [documents.Document(page_content=text) for text in ("", *TEXTS)]
    last = langchain(model=ranker).compress_documents(pages, QUERY)[-1]
    assert (last.page_content, last.metadata) == ("", {})
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=text), score=0.5) for text in ("", *TEXTS)]
    last = llama_index(model=ranker).postprocess_nodes(nodes, query_str=QUERY)[-1]
    assert (last.node.get_content(), last.score) == ("", None)
    last = of_haystack(ranker).run(QUERY, [haystack.Document(content=text) for text in (None, *TEXTS)])
    assert [(document.content, document.score) for document in last["documents"]] == [*expected, (None, None)]


@pytest.mark.parametrize("top_n", [0, -1])
def test_how_many_results_is_a_whole_number_above_0(adapters, ranker, top_n):
    *of_pydantic, of_haystack = adapters
    for adapter in of_pydantic:
        with pytest.raises(pydantic.ValidationError, match="top_n"):
            adapter(model=ranker, top_n=top_n)
    with pytest.raises(ValueError, match=f"top_k must be > 0, but got {top_n}"):
        of_haystack(ranker, top_k=top_n)
    with pytest.raises(ValueError, match=f"top_k must be > 0, but got {top_n}"):
        of_haystack(ranker, top_k=2).run(QUERY, [], top_k=top_n)


def test_keys_are_not_shown(adapters):
    server = "http://127.0.0.1:1"
    for adapter in adapters[:2]:
        instance = adapter(model=server, api_key=KEY)
        for text in (repr(instance), str(instance)):
            assert KEY not in text
        assert "api_key" not in json.loads(instance.model_dump_json())  # asterisks would be read as a key
        assert "api_key" not in instance.model_dump()
    assert json.loads(instance.to_json())["model"] == server
    assert adapters[1].from_dict(instance.to_dict()).api_key is None
    assert KEY not in repr(make_relevance(server, api_key=KEY))


@pytest.fixture
def other_server():
    """(status, body) -> the URL of a server that answers so; `requests` are the paths and bodies that it got."""
    servers = []

    def make(status: int, body: bytes) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_POST(self):
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                make.requests.append((self.path, sent))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    make.requests = []
    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (422, b'{"detail": [{"msg": "model is missing"}]}', InputError, "422, .*model is missing"),
        (400, b'{"error": "no model"}', InputError, "400, no model"),
        (401, b'{"detail": "no key"}', PolyencoderError, "401, no key"),
        (403, b"[1]", PolyencoderError, r"403, \[1\]"),
        (502, b"<html>bad gateway</html>", PolyencoderError, "502, <html>bad gateway"),
        (200, b"<html>hello</html>", PolyencoderError, "the answer is not a ranking: <html>hello"),
        (200, b'{"data": []}', PolyencoderError, "the answer is not a ranking"),
        (200, b'[{"index": 0, "score": 0.5}]', PolyencoderError, "the answer is not a ranking"),
        (200, b'{"results": [{"index": 9, "relevance_score": 0.5}]}', PolyencoderError, "that was not sent"),
    ],
)
def test_what_another_server_answers_is_an_error_with_its_reason(other_server, status, body, error, says):
    with pytest.raises(error, match=says):
        RemoteRanker(other_server(status, body))(QUERY, TEXTS)


def test_another_server_is_sent_the_name_of_its_model(other_server):
    url = other_server(200, b'{"results": [{"index": 1, "relevance_score": 0.5}]}')
    for address, path in {url: "/v1/rerank", f"{url}/v1/": "/v1/rerank", f"{url}/v2/rerank": "/v2/rerank"}.items():
        assert make_relevance(address, served_model="rerank-v3.5")(QUERY, TEXTS, top_n=1) == [(1, 0.5)]
        request = {"query": QUERY, "documents": TEXTS, "top_n": 1, "model": "rerank-v3.5"}
        assert other_server.requests.pop() == (path, request)


def test_what_a_server_refuses_is_said(ranker, tmp_path):
    config = ServerConfig(model="tiny", port=0, api_key=KEY, limits=Limits(documents=2))
    with running(Service.from_config(config, Forward(ranker))) as url:
        with pytest.raises(InputError, match="documents has 4 texts"):
            RemoteRanker(url, KEY)(QUERY, TEXTS)
        with pytest.raises(PolyencoderError, match="401, the key is wrong"):
            RemoteRanker(url)(QUERY, TEXTS)
    with pytest.raises(PolyencoderError, match="no answer"):
        RemoteRanker(url, KEY)(QUERY, TEXTS)


def test_a_key_is_for_a_server_alone(ranker):
    with pytest.raises(ConfigError, match="is only for a server"):
        make_relevance(ranker, api_key=KEY)
    with pytest.raises(ConfigError, match="served_model is only for a server"):
        make_relevance(ranker, served_model="x")


@pytest.mark.parametrize(
    ("package", "adapter"),
    [("langchain_core", "langchain"), ("llama_index.core", "llama_index"), ("haystack", "haystack")],
)
def test_without_the_extra_the_message_names_it(package, adapter, monkeypatch):
    monkeypatch.delitem(sys.modules, f"polyencoder.adapters.{adapter}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"parlai-polyencoder\[{adapter.replace('_', '-')}\]"):
        __import__(f"polyencoder.adapters.{adapter}")
