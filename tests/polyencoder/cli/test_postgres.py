"""The commands with an index in PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import count

import pytest

from polyencoder.errors import CheckpointError, ConfigError, InputError, PolyencoderError
from tests.commands import command_fails, run_command

pytestmark = pytest.mark.slow
names = (f"command_{i}" for i in count())


@pytest.fixture
def where(postgres) -> str:
    return f"{postgres.address.replace('tester@', 'tester:secret@')}#{next(names)}"


@pytest.fixture
def model(make_ranker, tmp_path):
    make_ranker("poly").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_an_index_is_made_searched_changed_and_described(model, tmp_path, where):
    address = where.replace(":secret", "")
    (tmp_path / "texts.jsonl").write_text(
        '{"text": "hello", "id": "a", "n": 1}\n{"text": "i ski", "id": "b", "n": true}\n'
    )
    (tmp_path / "more.txt").write_text("two dogs\n")
    done = run_command("index", "--model", model, "-c", tmp_path / "texts.jsonl", "-o", where, "--postgres", "hnsw,m=8")
    assert done.stdout.splitlines() == [f"{address}: 2 candidates"]
    searching = ("search", "--model", model, "--index", where, "--context", "do you ski ?", "--json")
    assert '"a"' in run_command(*searching, "--filter", "n=1", "--exactness", "exact").stdout
    changing = ("update", "--model", model, "--index", where)
    changed = run_command(*changing, "--remove-id", "a", "--add", tmp_path / "more.txt")
    assert changed.stdout.splitlines() == [f"{address}: 1 removed, 1 added", f"{address}: 2 candidates"]
    lines = run_command("index", "--info", where).stdout.splitlines()
    assert (lines[0], lines[-1]) == (f"{address}: 2 candidates", "search: PostgreSQL, hnsw,ef_construction=128,m=8")
    command_fails(InputError, "no candidate has the id 'a'", *changing, "--remove-id", "a")
    command_fails(ConfigError, "--compact, --words, --faiss, .* are for folders", *changing, "--compact")


def test_what_cannot_be_used_is_an_error_without_the_password(model, tmp_path, where):
    (tmp_path / "texts.txt").write_text("hello\n")
    (tmp_path / "empty.txt").write_text("")
    making = ("index", "--model", model, "-c", tmp_path / "texts.txt", "-o")
    for error, words in [
        (CheckpointError, ("index", "--info", where)),
        (InputError, ("index", "--model", model, "-c", tmp_path / "empty.txt", "-o", where)),
        (ConfigError, (*making, where, "--dtype", "int8")),
        (ConfigError, (*making, where, "--milvus", "flat")),
        (ConfigError, (*making, where.replace("postgres:", "postgress:"))),
        (PolyencoderError, (*making, "postgres://u:secret@127.0.0.1:1/d")),
    ]:
        with pytest.raises(error) as caught:
            run_command(*words)
        assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("forked_commands")
def test_a_build_that_is_killed_leaves_nothing(model, where):
    psycopg = pytest.importorskip("psycopg")
    command = [sys.executable, "-m", "polyencoder", "index", "--model", model, "-c", "-", "-o", where]
    with (
        psycopg.connect(where.partition("#")[0], autocommit=True) as watching,
        subprocess.Popen(command, stdin=subprocess.PIPE) as building,
    ):
        assert building.stdin is not None
        building.stdin.write(b"".join(b"text %d\n" % i for i in range(5000)))
        building.stdin.flush()
        copied, end = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state LIKE 'idle in%'", 120
        while watching.execute(copied).fetchone() == (0,) and (end := end - 0.1) > 0:
            time.sleep(0.1)
        assert end > 0
        building.kill()
    command_fails(CheckpointError, "no index", "index", "--info", where)
