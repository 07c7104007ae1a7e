# SPDX-License-Identifier: Apache-2.0
"""What the site is built from: every page is in its menu, every public name explains
itself. `make docs` builds it, strictly."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import veldt
import veldt.extend
from veldt.architectures import ARCHITECTURES
from veldt.cli.main import COMMANDS

yaml = pytest.importorskip("yaml", reason="the extra docs is not installed")

ROOT = Path(veldt.__file__).parent.parent
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8").replace("!!python/name:", ""))


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "hooks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(menu: object) -> list[str]:
    if isinstance(menu, str):
        return [menu]
    inner = menu.values() if isinstance(menu, dict) else menu
    return [page for each in inner for page in entries(each)]


def test_the_menu_has_every_page_once():
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    notebooks = [*DOCS.glob("notebooks/*.ipynb"), *DOCS.glob("course/*.ipynb")]
    pages += [path.relative_to(DOCS).with_suffix(".md").as_posix() for path in notebooks]
    assert sorted(entries(SITE["nav"])) == sorted(pages)


@pytest.mark.parametrize(("page", "names"), [("commands", COMMANDS), ("options", ARCHITECTURES)])
def test_the_reference_is_filled_when_the_site_is_built(page, names):
    written = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    shown = hook("command_pages").on_page_markdown(written)
    assert all(f"\n## {name}\n" in shown for name in names)
    assert f"<!-- {page} -->" not in shown


@pytest.mark.parametrize("module", [veldt, veldt.extend], ids=lambda module: module.__name__)
def test_every_public_name_explains_itself(module):
    public = [getattr(module, name) for name in module.__all__]
    named = [each for each in public if inspect.isclass(each) or inspect.isfunction(each)]
    assert named
    assert [each for each in named if not inspect.getdoc(each)] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_site_builds_strictly(tmp_path):
    """Also checks links and anchors between pages."""
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "index.html").is_file()
