# SPDX-License-Identifier: Apache-2.0
"""Documentation is tested: snippets, commands, examples, generated pages, links.

Python and sh fences of README.md and docs/ are executed page by page in a folder of their own. The
line before a fence may say otherwise: `<!-- not run: why -->`, or `<!-- file: NAME -->` to save it.
Every `veldt` line is parsed by the real command line, run or not.
"""

import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import veldt
from veldt.architectures import ARCHITECTURES
from veldt.cli import main as cli
from veldt.cli import parsers
from veldt.errors import ConfigurationError

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
SLOW = ("backends.md", "experiments.md", "monitoring.md", "using.md")
OTHERS = [
    ROOT / name for name in ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
]
GENERATED = sorted((ROOT / "docs" / "architectures").glob("*.md"))
EXAMPLES = {
    "own_environment_and_network.py": ("--backend", "serial", "--env-steps", "2000"),
    "read_a_run.py": ("--env-steps", "1000"),
    "lag_dial.py": ("--env-steps", "500", "--seeds", "1", "--lags", "0", "4"),
    "play_onnx.py": ("pole.onnx",),
}
SYSTEMS = {"own_head.py", "own_loss.py", "own_optimizer.py", "own_passes.py"}
"""Architecture files: published systems with one part replaced."""
BESIDE_A_RUN = {"external_cart_pole.py"}
"""Run by tests/faults/test_external_clients.py: they end when a run that they talk to does."""
BEFORE = {
    "play_onnx.py": (
        "train impala --env CartPole-v1 --backend serial --total-env-steps 500 --run-dir runs/pole",
        "export runs/pole --out pole.onnx",
    )
}
"""Commands that make what an example needs."""
_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Snippet:
    """One fence and what its mark says."""

    kind: str
    code: str
    mark: str

    @property
    def runs(self) -> bool:
        is_file = self.mark.startswith("file: ")
        return is_file or (self.kind in ("python", "sh") and not self.mark.startswith("not run: "))


def snippets(page: Path) -> list[Snippet]:
    found = _FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Snippet(each["kind"], each["code"], each["mark"] or "") for each in found]


def commands(snippet: Snippet) -> list[list[str]]:
    """The `veldt` commands of a sh fence, as the shell would split them."""
    joined = snippet.code.replace("\\\n", " ")
    words = [shlex.split(line, comments=True) for line in joined.splitlines()]
    starts = [(line, line.index("veldt")) for line in words if "veldt" in line]
    return [line[start + 1 :] for line, start in starts]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else ()) for page in PAGES],
    ids=lambda page: page.name,
)
def test_snippets_run(page, folder, capsys):
    names: dict[str, object] = {"__name__": "__main__"}
    for snippet in filter(lambda each: each.runs, snippets(page)):
        if snippet.mark.startswith("file: "):
            (folder / snippet.mark.removeprefix("file: ")).write_text(snippet.code)
        elif snippet.kind == "python":
            exec(compile(snippet.code, f"{page.name} snippet", "exec"), names)
        else:
            lines = [line for line in snippet.code.splitlines() if line.strip()]
            assert len(commands(snippet)) == len(lines), "only veldt commands can be run here"
            for command in commands(snippet):
                assert cli.main(command) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_readme_shows_trains(folder):
    """All but the installation, which `make release-check` tries, and TensorBoard's server."""
    install, train, program = [each.code for each in snippets(ROOT / "README.md") if each.kind]
    assert 'install -e ".[' in install
    (folder / "ten_lines.py").write_text(program)
    veldt = f'veldt() {{ "{sys.executable}" -m veldt "$@"; }}'
    script = f'set -e; {veldt}\n{train}veldt plot runs/*\n"{sys.executable}" ten_lines.py'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=280, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.splitlines()[-2].split()[0]) >= 475
    assert list(folder.glob("runs/*/tensorboard/events*"))


def test_every_command_is_one_that_veldt_understands(folder):
    wrong = []
    for page in [*PAGES, *GENERATED]:
        for snippet in snippets(page):
            if snippet.mark.startswith("file: "):
                (folder / snippet.mark.removeprefix("file: ")).write_text(snippet.code)
            for command in commands(snippet) if snippet.kind == "sh" else ():
                try:
                    _parse(command)
                except ConfigurationError as error:
                    wrong.append(f"{page.name}: {shlex.join(command)}: {error}")
    assert not wrong, "\n".join(wrong)


def _parse(command: list[str]) -> None:
    assert command[0] in cli.COMMANDS, command
    if command[0] in ("train", "sweep", "describe"):
        named = command[1:] if not command[1].startswith("-") else ["impala", *command[1:]]
        parsers.run_parser(command[0], named[0]).parse(named)
    elif command[0] != "compare":
        parsers.command_parser(command[0]).parse(command[1:])
    else:
        from veldt.compare.runs import Comparison

        Comparison(**parsers.command_parser("compare").parse(command[1:]))


def test_fences_and_marks_are_known_and_python_compiles():
    for page in [*PAGES, *GENERATED]:
        text = page.read_text(encoding="utf-8")
        assert text.count("```") == 2 * len(snippets(page)), page
        for snippet in snippets(page):
            assert snippet.kind in ("python", "sh", "text", "toml", "mermaid", "yaml"), page
            assert not snippet.mark or snippet.mark.startswith(("not run: ", "file: ")), page
            if snippet.kind == "python":
                compile(snippet.code, f"{page.name} snippet", "exec")


def test_links_lead_somewhere():
    wrong = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*PAGES, *GENERATED, *OTHERS]
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if not target.startswith(("http", "#", "mailto:"))
        and not (page.parent / target.partition("#")[0]).exists()
    ]
    assert not wrong


def test_every_example_is_run():
    known = set(EXAMPLES) | SYSTEMS | BESIDE_A_RUN
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == known


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, folder, monkeypatch, capsys):
    for command in BEFORE.get(name, ()):
        assert cli.main(command.split()) == 0
    monkeypatch.setattr(sys, "argv", [name, *EXAMPLES[name]])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_systems_with_another_part_train(name, folder):
    file = ROOT / "examples" / name
    assert sum(map(bool, file.read_text().splitlines())) <= 40
    short = {"backend": "serial", "total_env_steps": 2000, "evaluation_episodes": 1}
    run = partial(veldt.train, env="CartPole-v1", num_actors=1, envs_per_actor=8, **short)
    (folder / name).write_text(file.read_text())
    own, published = run(name), run("impala" if name == "own_loss.py" else "a2c")
    assert own.updates > 0
    assert own.chosen["preset"] == published.chosen["preset"]
    assert own.parameters_sha256 != published.parameters_sha256


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_what_the_code_says(generate):
    """What was measured is left out: it changes with the machine, not with the code."""
    for name, architecture in ARCHITECTURES.items():
        written = (ROOT / "docs" / "architectures" / f"{name}.md").read_text(encoding="utf-8")
        fresh = generate.page(architecture)
        same = generate.without_measurements(written) == generate.without_measurements(fresh)
        assert same, f"{name}: run: python docs/generate.py --readme"
    assert {path.stem for path in GENERATED} == set(ARCHITECTURES)


def test_the_sentence_of_the_readme_comes_from_the_results(generate, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert generate.fill_readme(readme) == readme, "run: python docs/generate.py --readme"
    assert generate.NOT_MEASURED in generate.fill_readme(readme, tmp_path)


def test_the_lineage_page_is_what_the_code_says(generate):
    written = (ROOT / "docs" / "evolution.md").read_text(encoding="utf-8")
    fresh = generate.evolution_page()
    same = generate.without_measurements(written) == generate.without_measurements(fresh)
    assert same, "run: python docs/generate.py"
    named = {name for old, new, *_ in generate.LINEAGE for name in (old, new)}
    assert named == set(ARCHITECTURES)
