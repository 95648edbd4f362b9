"""A package's names are imported when they are asked for."""

from __future__ import annotations

import compileall
import shutil
import sys
from importlib import import_module

import pytest

import polyencoder.export.onnx
import polyencoder.index
import polyencoder.text
from polyencoder.lazy import lazy_names
from polyencoder.text.tokens import pad


def test_a_name_is_that_of_its_module():
    get, _ = lazy_names("polyencoder.text")
    assert get("pad") is pad is polyencoder.text.pad
    with pytest.raises(AttributeError, match="module 'polyencoder.text' has no attribute 'pads'"):
        get("pads")


def test_a_name_is_asked_for_once(monkeypatch):
    monkeypatch.delattr(polyencoder.text, "pad", raising=False)
    assert polyencoder.text.pad is vars(polyencoder.text)["pad"]


def test_a_module_is_an_attribute_as_of_any_package():
    """`polyencoder.text.options`, although nothing has imported it."""
    import polyencoder.text.options as options

    get, _ = lazy_names("polyencoder.text")
    assert get("options") is options


@pytest.mark.parametrize("package", [polyencoder, polyencoder.text, polyencoder.index, polyencoder.export.onnx])
def test_every_name_is_there(package):
    assert {*package.__all__, "__name__"} <= {*dir(package)}  # tab completion
    for name in package.__all__:
        assert getattr(package, name) is not None


@pytest.mark.parametrize("kind", ["zip", "compiled"])
def test_a_package_without_source_files(kind, tmp_path, monkeypatch):
    """In a zip file, as Spark sends packages to its workers, and compiled, as in programs that are frozen."""
    name = f"lazy_{kind}"
    (folder := tmp_path / "src" / name).mkdir(parents=True)
    (folder / "part.py").write_text("thing = 1\n")
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nfrom polyencoder.lazy import lazy_names\n"
        f"if TYPE_CHECKING:\n    from {name}.part import thing\n"
        '__all__ = ["thing"]\n__getattr__, __dir__ = lazy_names(__name__)\n'
    )
    path = folder.parent
    if kind == "zip":
        path = shutil.make_archive(str(tmp_path / "packed"), "zip", path)
    else:
        compileall.compile_dir(folder, quiet=1, legacy=True)
        for file in folder.glob("*.py"):
            file.unlink()
    monkeypatch.syspath_prepend(path)
    assert import_module(name).thing == 1
    for one in (name, f"{name}.part"):
        monkeypatch.delitem(sys.modules, one)
