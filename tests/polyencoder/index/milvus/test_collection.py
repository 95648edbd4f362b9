"""Filters, opening, and servers: Milvus Lite embedded, and behind a port."""

from __future__ import annotations

import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import polyencoder.index.milvus.collection as collection_module
from polyencoder.errors import CheckpointError, ConfigError, InputError, NoAnswerError, PolyencoderError
from polyencoder.index.entries import Candidate
from polyencoder.index.milvus.collection import MilvusCollection
from polyencoder.index.milvus.index import MilvusIndex
from polyencoder.index.open import open_index

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
server_manager = pytest.importorskip("milvus_lite.server_manager", reason="this milvus-lite has no server of its own")


class TestOpening:
    def test_after_everything_was_closed(self, tmp_path, ranker, contexts, many, assert_best):
        where = f"milvus:{tmp_path}/a.db"
        index = MilvusIndex.create(where, ranker, kind="flat")
        index.add(many)
        index.remove(["id 3"])
        index.close()
        server_manager.server_manager_instance.release_server(f"{tmp_path}/a.db")  # as the end of the process does
        again = open_index(where, ranker)
        assert isinstance(again, MilvusIndex)
        hits = again.search(contexts, top_k=9, exactness="certified")
        assert_best(hits, ranker, contexts, [c for c in many if c.id != "id 3"], k=9, kinds={"exact", "certified"})

    @pytest.mark.slow
    @pytest.mark.parametrize(("kind", "other"), [("flat", "auto"), ("auto", "flat")])
    def test_one_made_anew_of_another_kind(self, where, ranker, contexts, sample, kind, other):
        """The new collection's results are certified only if its lists are exact."""
        index = MilvusIndex.create(where, ranker, kind=kind)
        index.add(sample)
        index.search(contexts, top_k=2)
        index.collection._client.drop_collection(index.collection.name)
        MilvusIndex.create(where, ranker, kind=other).add(sample)
        index.search(contexts, top_k=2)
        assert index.collection.is_flat is (other == "flat")

    def test_again_leaves_one_filter_of_the_log(self, where):
        MilvusCollection(where).close()
        known = [*logging.getLogger("grpc._server").filters]
        MilvusCollection(where).close()
        assert logging.getLogger("grpc._server").filters == known

    def test_another_model(self, index, where, make_ranker, monkeypatch):
        other, close, closed = make_ranker("poly", seed=1), MilvusCollection.close, []
        monkeypatch.setattr(MilvusCollection, "close", lambda self: (closed.append(self), close(self))[1])
        for way in (MilvusIndex.open, MilvusIndex.create):
            with pytest.raises(CheckpointError, match="made by another model, models/mine .*weights"):
                way(where, other)
        assert len(set(map(id, closed))) == 2
        assert len(index) == 8  # through a connection of its own

    def test_no_collection(self, database, ranker):
        with pytest.raises(CheckpointError, match=r"#nobody: no index .*`polyencoder index`"):
            MilvusIndex.open(f"{database}#nobody", ranker)

    def test_a_collection_of_someone_else(self, index, where, database, ranker):
        index.collection._client.create_collection("others", dimension=16)
        with pytest.raises(CheckpointError, match="the collection others exists, but was not made by polyencoder"):
            MilvusIndex.create(f"{database}#others", ranker)

    def test_no_file(self, tmp_path, ranker):
        with pytest.raises(CheckpointError, match=r"nowhere\.db: no index"):
            MilvusIndex.open(f"milvus:{tmp_path}/nowhere.db", ranker)
        assert not (tmp_path / "nowhere.db").exists()

    def test_a_bad_file(self, tmp_path, ranker, capfd):
        (tmp_path / "bad.db").write_text("something else")
        with pytest.raises(
            PolyencoderError, match=r"bad\.db: cannot be opened; it is not a database of this milvus-lite"
        ):
            MilvusIndex.open(f"milvus:{tmp_path}/bad.db", ranker)
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize(
        ("where", "error", "message"),
        [
            ("milvus:{}/file", ConfigError, "neither a server, as in .* nor a file of Milvus Lite"),
            ("milvus:{}/no/folder/file.db", InputError, "there is no folder"),
            ("milvus:{}/file.db#bad name", ConfigError, "'bad name' cannot name a collection"),
            ("milvus:http://127.0.0.1:port", PolyencoderError, "no connection"),
        ],
    )
    def test_a_bad_address(self, tmp_path, ranker, where, error, message):
        with pytest.raises(error, match=message):
            MilvusIndex.create(where.format(tmp_path), ranker)

    def test_a_bad_kind(self, where, ranker):
        with pytest.raises(ConfigError, match="milvus is 'hnsw'; it must be one of auto, flat"):
            MilvusIndex.create(where, ranker, kind="hnsw")


class TestAServer:
    @pytest.fixture
    def server(self, tmp_path):
        """Milvus Lite behind a port."""
        from milvus_lite.adapter.grpc.server import start_server_in_thread

        server, data, port = start_server_in_thread(str(tmp_path / "data"))
        yield server, f"milvus:http://user:secret@127.0.0.1:{port}"
        server.stop(grace=0)
        data.close()

    @pytest.mark.slow
    def test_the_same_code(self, server, ranker, contexts, many, assert_best):
        _, where = server
        index = MilvusIndex.create(where, ranker, kind="flat")
        assert not index.collection.embedded
        index.add(many)
        index.remove(["id 3"])
        again = open_index(where, ranker)
        hits = again.search(contexts, top_k=9, exactness="certified")
        assert_best(hits, ranker, contexts, [c for c in many if c.id != "id 3"], k=9, kinds={"exact", "certified"})

    def test_that_goes_away(self, server, ranker, contexts, sample, monkeypatch, capfd):
        running, where = server
        monkeypatch.setattr(collection_module, "_ANSWER_SECONDS", 1)
        index = MilvusIndex.create(where, ranker)
        index.add(sample)
        running.stop(grace=0).wait()
        for request in (
            lambda: index.search(contexts, top_k=1),
            lambda: index.add([Candidate("x", "y")]),
            lambda: index.remove(["id 1"]),
        ):
            with pytest.raises(PolyencoderError, match="Milvus does not answer; is the server still running") as caught:
                request()
            assert "secret" not in str(caught.value)
            assert "\n" not in str(caught.value)
        # gRPC's own native code may say that the server went away; pymilvus and we say nothing more than the errors.
        printed = capfd.readouterr().err.splitlines()
        assert [line for line in printed if "Got goaway" not in line] == []

    @pytest.mark.parametrize("accepts", [True, False])
    def test_that_refuses_has_answered(self, accepts, monkeypatch):
        """A server refuses a wrong token at once or at the first request: a partial search does not pass over it."""
        grpc = pytest.importorskip("grpc")
        monkeypatch.setattr(collection_module, "_CONNECT_SECONDS", 2)

        class Refusing(grpc.GenericRpcHandler):
            def service(self, details):
                def answer(request, context):
                    if accepts and details.method.endswith("/Connect"):
                        return b""
                    return context.abort(grpc.StatusCode.UNAUTHENTICATED, "check the password")

                return grpc.unary_unary_rpc_method_handler(answer)

        server = grpc.server(ThreadPoolExecutor(1), handlers=[Refusing()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with pytest.raises(
            PolyencoderError, match="refused .*check the password" if accepts else "no connection"
        ) as caught:
            MilvusCollection(f"milvus:http://127.0.0.1:{port}").read_description()
        server.stop(0)
        assert not isinstance(caught.value, NoAnswerError)

    @pytest.mark.parametrize("password", ["secret", "sec@ret", "@secret@"])
    def test_where_nobody_listens(self, ranker, capfd, password):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            where = f"milvus:http://user:{password}@127.0.0.1:{free.getsockname()[1]}"
            start = time.perf_counter()
            with pytest.raises(
                PolyencoderError, match=r"^milvus:http://127.*: no connection .*; is the server running"
            ) as caught:
                open_index(where, ranker)
        assert "ret" not in str(caught.value)
        assert time.perf_counter() - start < 15
        assert capfd.readouterr().err == ""
