"""`make docs`: the site builds without a warning, has every page, and its reference has the public names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cyclopts.ext.mkdocs import process_cyclopts_directives
from fastapi import FastAPI
from markdown.extensions.toc import slugify

import polyencoder.index
import polyencoder.training
from polyencoder.cli.main import COMMANDS, get_flags
from polyencoder.serving.app import add_routes

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_site_builds_and_is_whole(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "are not included in the" not in run.stderr, run.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert (tmp_path / ("index.html" if name.name == "index" else f"{name}/index.html")).is_file()
    assert "GatedEncoder" in (tmp_path / "examples" / "index.html").read_text(encoding="utf-8")
    reference = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "reference").rglob("*.html"))
    public = {f"polyencoder.{name}" for name in polyencoder.__all__ if name != "__version__"}
    public |= {f"polyencoder.index.{name}" for name in polyencoder.index.__all__}
    public |= {f"polyencoder.training.{name}" for name in polyencoder.training.__all__}
    assert [name for name in sorted(public) if f'id="{name}"' not in reference] == []


def test_the_site_is_built_from_pages_and_pictures_that_are_drawn_anew():
    for file in ("Makefile", ".github/workflows/docs.yml"):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert 0 < text.find("benchmarks.reproduce all --write-docs") < text.find("mkdocs build"), file


@pytest.mark.slow
def test_the_site_lists_each_command_with_its_flags():
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    generated = process_cyclopts_directives(page, None)
    assert "::: cyclopts" not in generated
    for command in COMMANDS:
        _, _, section = generated.partition(f"\n### polyencoder {command}\n")
        section = section.partition("\n### ")[0]
        assert [
            flag for flag in get_flags(command).values() if f"`{flag}" not in section and f", {flag}" not in section
        ] == []


def test_the_page_of_the_server_names_each_route():
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    assert [path for path in add_routes(FastAPI()).openapi()["paths"] if path.partition("/{")[0] not in page] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt"])
def test_links_beside_the_site_lead_somewhere(name):
    """mkdocs checks the links of docs/ alone."""
    for target in re.findall(r"\]\(([^):\s]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        page = ROOT / (path or name)
        assert page.exists(), target
        headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {slugify(heading, "-") for heading in headings}, target


def test_llms_txt_has_a_title_a_summary_and_each_page():
    """The form of llmstxt.org."""
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# .+\n\n> .+\n", text)
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in sorted(pages) if f"]({page})" not in text] == []


def test_the_skill_says_what_it_is_for():
    _, head, _ = (ROOT / "skills/polyencoder/SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts.keys() == {"name", "description"}
    assert facts["name"] == "polyencoder"
    assert len(facts["description"]) < 1024


def test_links_to_source_files_lead_somewhere():
    for page in (ROOT / "docs").rglob("*.md"):
        for target in re.findall(r"\]\(((?:\.\./)+(?:projects|examples)/[^)]*)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_hooks_import_nothing_that_the_workflow_does_not_install():
    """It installs the packages of requirements.txt whose names begin with mkdocs, and mike."""
    (hooks,) = re.findall(r"^hooks: \[(.*)\]$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    workflow = (ROOT / ".github/workflows/docs.yml").read_text(encoding="utf-8")
    assert "grep -E '^(mkdocs|mike)' requirements.txt" in workflow
    for hook in hooks.split(", "):
        for node in ast.walk(ast.parse((ROOT / hook).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "mkdocs"}
