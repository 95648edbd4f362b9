"""What the files of deploy/ say is what the commands, the server and nginx take."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from polyencoder.cli.main import parse
from polyencoder.settings.base import get_flat_values

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "parlai-polyencoder"}
SERVERS = [name for name, service in OURS.items() if service["command"][0] == "serve"]
NGINX = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def instructions(name: str) -> list[str]:
    """The arguments of an instruction of the Dockerfile, wherever it stands."""
    return re.findall(rf"^{name}\s+(.+)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    """A key as in the environment of the compose file."""
    monkeypatch.setenv("POLYENCODER_API_KEY", "a-long-secret")


def options(command: list[str]) -> dict:
    """What `polyencoder` understands; an error where it does not."""
    (settings,) = parse(command)[1].arguments.values()
    return get_flat_values(settings)


@pytest.mark.parametrize(
    "command", [*map(json.loads, instructions("CMD")), *(service["command"] for service in OURS.values())], ids=" ".join
)
def test_commands_have_only_options_that_there_are(command):
    values = options(command)
    assert values["model"] == "/model"
    if command[0] == "serve":
        assert (values["host"], values["port"]) == ("0.0.0.0", 8000)  # of the health check, and of the balancer


def test_servers_search_the_index_that_is_made():
    assert len(SERVERS) == 2
    folder = options(OURS["index"]["command"])["out"]
    assert {options(OURS[name]["command"])["index"] for name in SERVERS} == {folder}


def test_what_commands_read_is_mounted():
    for service in OURS.values():
        mounted = {volume.rsplit(":", 2)[1] for volume in service["volumes"]}
        values = options(service["command"])
        assert mounted == {str(values[name]) for name in ("model", "candidates") if values.get(name)}


def test_the_slim_image_is_polyencoder_runtime():
    """The stage of the slim image takes nothing of the stage with torch; the last stage is the whole image."""
    stages = dict(re.findall(r"^FROM (?:\S+)(?: AS (\S+))?\n(.+?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
    assert list(stages) == ["build", "build-slim", "server", "slim", ""]
    assert "--from=build-slim " in stages["slim"]
    assert "torch" not in stages["build-slim"] + stages["slim"]
    assert "ARG EXTRAS=serve\n" in stages["build-slim"]
    assert '"/src/runtime[$EXTRAS]"' in stages["build-slim"]
    assert "[project.optional-dependencies]\nserve = [" in (ROOT / "runtime" / "pyproject.toml").read_text("utf-8")
    command = json.loads(re.search(r"^CMD (.+)", stages["slim"], re.MULTILINE)[1])
    assert options(command)["backend"] == "onnx-int8"


def test_variables_of_the_environment_are_read():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "projects").rglob("*.py"))
    for service in OURS.values():
        for name in service["environment"]:
            assert f'"{name}"' in sources


def test_only_the_balancer_is_reached_from_outside_and_servers_need_a_key():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["balancer"]
    for name in SERVERS:
        assert OURS[name]["environment"]["POLYENCODER_API_KEY"].startswith("${POLYENCODER_API_KEY:?")


def test_dependencies_and_volumes_are_named():
    for service in SERVICES.values():
        assert set(service.get("depends_on", ())) <= set(SERVICES)
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith("$") or (DEPLOY / source).is_file()


def test_the_image_is_made_of_what_there_is_and_runs_as_nobody():
    for sources in instructions("COPY"):
        if not sources.startswith("--from"):
            assert all((ROOT / source).exists() for source in sources.split()[:-1])
    assert instructions("USER") == ["nobody"]
    assert "http://127.0.0.1:8000/health" in instructions("HEALTHCHECK")[0]
    for service in OURS.values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")


def test_the_image_has_what_opens_every_model_and_index():
    """docs/deployment.md mounts any of them; faiss and onnx are asked for when a search or a graph is opened."""
    extras = re.search(r"/src\[([\w,-]+)\]", DOCKERFILE)[1].split(",")
    assert set(extras) == {"serve", "faiss", "milvus", "onnx"}


def test_the_balancer_asks_the_servers():
    assert re.findall(r"^\s+server (\S+);", NGINX, re.MULTILINE) == [f"{name}:8000" for name in SERVERS]
    assert f"listen {SERVICES['balancer']['ports'][0].rsplit(':', 1)[1]};" in NGINX


def test_nginx_understands_its_configuration(tmp_path):
    if (nginx := shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")) is None:
        pytest.skip("no nginx here")
    conf = tmp_path / "nginx.conf"  # with addresses for names that only compose knows, and files of its own
    conf.write_text(re.sub(r"server\d:8000", "127.0.0.1:8000", NGINX).replace(" /tmp/", f" {tmp_path}/"))
    done = subprocess.run([nginx, "-t", "-c", conf], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr
