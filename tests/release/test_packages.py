# SPDX-License-Identifier: Apache-2.0
"""What is shipped: wheel and sdist hold everything the package reads, and say what they are.

The wheel is also tried away from the tree, with the libraries of this environment; `make
release-check` installs those too."""

import os
import re
import site
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import veldt

pytestmark = pytest.mark.slow
ROOT = Path(veldt.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("veldt/", "veldt_zoo/")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist of the tree, made from a copy so that the tree stays as it is."""
    folder = tmp_path_factory.mktemp("built")
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    shipped = [name for name in tracked if name.startswith(PACKAGES) or "/" not in name]
    for name in shipped:
        if (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist")]
    done = subprocess.run([*build, str(folder / "tree")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next((folder / "dist").glob("*.whl")), next((folder / "dist").glob("*.tar.gz"))


def test_the_wheel_holds_what_the_package_reads(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    ours = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert ours <= names
    info = f"veldt-{veldt.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"veldt", "veldt_zoo", info}


@pytest.mark.timeout(150)
def test_the_wheel_trains_away_from_the_tree(built, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "fresh"], cwd=tmp_path, check=True
    )
    python = tmp_path / "fresh/bin/python"
    install = ["install", "--no-deps", "--no-index", "--quiet", built[0]]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    # Paths in such a file are only searched, so what is installed here for editing is not found.
    packages = next(tmp_path.glob("fresh/lib/python*/site-packages"))
    (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    trial = [python, str(ROOT / "tests/release/trial.py")]
    done = subprocess.run(trial, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"works on Python {sys.version.split()[0]}, from {packages}" in done.stdout


def test_the_page_of_the_index_has_no_relative_links():
    page = (ROOT / PROJECT["readme"]).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert links
    assert all(link.startswith("https://") for link in links)


def test_the_sdist_can_be_built_from(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    data = {"veldt/py.typed", "veldt/dashboard/style.css", "veldt_zoo/cart_pole/card.json"}
    assert {"pyproject.toml", "README.md", PROJECT["readme"], "LICENSE"} | data <= names


def test_the_version_is_told_alike_where_it_is_told():
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    [date] = re.findall(r"^date-released: (.+)$", citation, re.M)
    assert re.findall(r"^version: (.+)$", citation, re.M) == [veldt.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entry = changes.partition(f"\n## [{veldt.__version__}] - {date}\n")[2].partition("\n## [")[0]
    assert 0 < len(entry.splitlines()) <= 60


def test_every_version_that_is_promised_is_tried():
    folder = ROOT / ".github/workflows"
    workflow = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yml")))
    tried = re.findall(r"python: \[(.*)\]", workflow)
    named = [entry for entry in PROJECT["classifiers"] if "Python :: 3." in entry]
    assert tried
    for matrix in tried:
        versions = matrix.replace('"', "").split(", ")
        assert [f"Programming Language :: Python :: {one}" for one in versions] == named
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(re.findall(r"run: make ([\w-]+)", workflow)) <= set(targets)
