"""`make demo`, made small: it can be run again after the conversation that it invites to."""

from __future__ import annotations

import io
import re

from parlai.scripts.interactive import Interactive

import demo
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.service import Service

SMALL = {"embedding_size": 16, "ffn_size": 16, "n_layers": 1, "n_heads": 2, "text_truncate": 32, "dict_maxtokens": 300}
SMALL |= {"max_train_steps": 2, "validation_max_exs": 20, "short_final_eval": True, "loglevel": "error"}


def test_a_demo_a_conversation_and_a_demo_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "FROM_SCRATCH", {**demo.FROM_SCRATCH, **SMALL})
    (tmp_path / "model_of_mine").mkdir()
    (tmp_path / "models.txt").write_text("important")
    for _ in range(2):
        demo.main(["--folder", str(tmp_path)])
        shown = capsys.readouterr().out
        assert len(re.findall(r"^  [ *] +-?\d+\.\d\d  .+$", shown, flags=re.MULTILINE)) == 15
        assert f"parlai interactive -mf {tmp_path / 'model'}" in shown
        (serving,) = re.findall(r"polyencoder (serve .*)  \(open http://127.0.0.1:8000/\)", shown)
        model, index = re.fullmatch(r"serve -m (\S+) -i (\S+)", serving).groups()
        service = Service.load(ServerConfig(model=model, index=index))
        assert len(service.index) > 20
        service.close()
        monkeypatch.setattr("sys.stdin", io.StringIO("hi !\n"))
        Interactive.main(model_file=str(tmp_path / "model"), loglevel="error")
        assert re.search(r"\[Polyencoder\].*: \w+", capsys.readouterr().out)
    assert any(path.is_dir() for path in tmp_path.glob("model.*")), "what the conversation has left"
    assert (tmp_path / "model_of_mine").is_dir()
    assert (tmp_path / "models.txt").exists()
