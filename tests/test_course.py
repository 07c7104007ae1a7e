# SPDX-License-Identifier: Apache-2.0
"""The course: checkers accept right answers and reject wrong ones; notebooks run."""

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import veldt
from veldt.architectures import load

nbformat = pytest.importorskip("nbformat", reason="the extra docs is not installed")
pytest.importorskip("nbclient", reason="the extra docs is not installed")
COURSE = Path(veldt.__file__).parent.parent / "docs" / "course"
sys.path.insert(0, str(COURSE))
import checkers  # noqa: E402
from execute import execute  # noqa: E402

NOTEBOOKS = sorted(COURSE.glob("*.ipynb"))
RIGHT = """
def td_targets(rewards, terminated, truncated, next_q, gamma):
    return rewards + gamma * np.where(terminated, 0.0, next_q.max(axis=1))


def serve(weights, gradients, learning_rate, max_age):
    version, dropped = 0, 0
    for seen, gradient in gradients:
        if version - seen > max_age:
            dropped += 1
            continue
        weights = weights - learning_rate * gradient
        version += 1
    return weights, version, dropped


def n_step_returns(rewards, terminated, last_value, gamma):
    returns, after = np.zeros(len(rewards)), last_value
    for t in reversed(range(len(rewards))):
        after = returns[t] = rewards[t] + gamma * (0.0 if terminated[t] else after)
    return returns


def actor_critic_loss(log_probs, values, returns, value_coefficient):
    advantages = returns - values
    policy = -(log_probs * advantages.detach()).mean()
    return policy + value_coefficient * 0.5 * (advantages**2).mean()


def tune(setting, measure, changes):
    best = measure(setting)
    for name, change in changes:
        tried = {**setting, name: setting[name] + change}
        if tried[name] < 1:
            continue
        rate = measure(tried)
        if rate >= best:
            setting, best = tried, rate
    return setting


def clipped_objective(ratio, advantage, epsilon):
    clipped = np.clip(ratio, 1 - epsilon, 1 + epsilon)
    return np.minimum(ratio * advantage, clipped * advantage)


def vtrace_targets(ratios, rewards, values, last_value, gamma, rho_bar, c_bar):
    following = np.append(values[1:], last_value)
    errors = np.minimum(ratios, rho_bar) * (rewards + gamma * following - values)
    targets, after = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        after = errors[t] + gamma * min(ratios[t], c_bar) * after
        targets[t] = values[t] + after
    return targets


def forward_passes(arrivals, enough, patience):
    passes, waiting = [], []
    for time in arrivals:
        if waiting and time > waiting[0] + patience:
            passes.append((waiting[0] + patience, len(waiting)))
            waiting = []
        waiting.append(time)
        if len(waiting) == enough:
            passes.append((time, len(waiting)))
            waiting = []
    if waiting:
        passes.append((waiting[0] + patience, len(waiting)))
    return passes


def seconds_per_round(step, inference, groups):
    return step + inference if groups == 1 else max(step, 2 * inference)


def pfsp(win_rates):
    weights = (1 - win_rates) ** 2
    if weights.sum() == 0:
        return np.full(len(weights), 1 / len(weights))
    return weights / weights.sum()
"""
WRONG = {
    "td_targets": [
        (".max(axis=1)", ".mean(axis=1)"),
        ("(terminated,", "(terminated | truncated,"),
        ("np.where(terminated, 0.0, next_q.max(axis=1))", "next_q.max(axis=1)"),
        ("next_q.max(axis=1)", "np.maximum(next_q.max(axis=1), 0.0)"),
    ],
    "serve": [
        ("> max_age", ">= max_age"),
        ("dropped += 1", "version += 1"),
        ("            continue\n", ""),
        ("        version += 1", "        pass"),
    ],
    "n_step_returns": [
        ("last_value\n", "0.0\n"),
        ("(0.0 if terminated[t] else after)", "after"),
        ("gamma * (0.0", "(0.0"),
    ],
    "actor_critic_loss": [
        (".detach()", ""),
        ("policy = -(", "policy = ("),
        ("(log_probs * advantages.detach()).mean()", "(log_probs * advantages.detach()).sum()"),
        ("(log_probs * advantages.detach())", "(log_probs * returns)"),
    ],
    "tune": [
        ("rate >= best", "rate > best"),
        ("        if rate >= best:\n            setting, best =", "        setting, best ="),
        ("setting, best = tried, rate", "setting = tried\n        best = rate"),
        ("tried[name] < 1", "tried[name] < 0"),
    ],
    "clipped_objective": [
        ("np.minimum(ratio * advantage, clipped * advantage)", "clipped * advantage"),
        ("1 + epsilon", "np.inf"),
        ("np.minimum(ratio * advantage, clipped * advantage)", "min(ratio, clipped) * advantage"),
    ],
    "vtrace_targets": [
        ("np.minimum(ratios, rho_bar)", "ratios"),
        ("min(ratios[t], c_bar)", "ratios[t]"),
        ("min(ratios[t], c_bar)", "min(ratios[t], rho_bar)"),
        ("gamma * min", "min"),
    ],
    "forward_passes": [
        ("waiting[0] + patience, len", "waiting[-1] + patience, len"),
        ("== enough", "== enough + 1"),
        ("len(waiting)))\n            waiting = []\n    if", "len(waiting)))\n    if"),
        ("if waiting and time > waiting[0] + patience", "if False"),
    ],
    "seconds_per_round": [
        ("max(step, 2 * inference)", "max(step, inference)"),
        ("max(step, 2 * inference)", "max(step, step / 2 + inference)"),
        ("step + inference if", "max(step, inference) if"),
        ("if groups == 1 else max(step, 2 * inference)", "/ groups"),
    ],
    "pfsp": [
        ("** 2", ""),
        ("return weights / weights.sum()", "return weights"),
        ("weights.sum() == 0", "False"),
        ("(1 - win_rates) ** 2", "win_rates * (1 - win_rates)"),
    ],
}  # fmt: skip
"""Changes of the right answers that make them wrong."""


def source(name: str) -> str:
    found = re.search(rf"^def {name}\(.*?(?=^def |\Z)", RIGHT, re.M | re.S)
    return found[0].rstrip()


def judged(name: str, code: str) -> str:
    names: dict[str, Any] = {}
    exec(f"import numpy as np\n{code}", names)
    return getattr(checkers, name)(names[name])


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def exercise(notebook) -> str:
    """The name of the function in the last cell of code."""
    return re.match(r"def (\w+)\(", code_cells(notebook)[-1].source)[1]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", WRONG)
def test_a_checker_accepts_the_right_answer_and_rejects_wrong_ones(name):
    right = source(name)
    assert judged(name, right) == checkers.RIGHT
    hints = set()
    for old, new in WRONG[name]:
        assert right.count(old) >= 1, old
        hint = judged(name, right.replace(old, new, 1))
        assert hint.startswith("Not yet: wrong for "), (old, new, hint)
        assert "\n" not in hint
        hints.add(hint)
    assert len(hints) >= 2  # it says more than that the answer is wrong


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("raise NotImplementedError", "write your code"),
        ("pass", "returned None"),
        ("return unknown", "raised NameError"),
    ],
)
@pytest.mark.parametrize("name", WRONG)
def test_a_checker_explains_an_answer_without_a_result(name, body, hint):
    assert hint in judged(name, f"def {name}(*arguments):\n    {body}")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_drawing_exercise_and_figures(path):
    notebook = nbformat.read(path, as_version=4)
    texts = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    drawing = re.search(r"```text\n(.*?)\n```", texts, re.S)[1]
    described = sys.modules[load(path.stem).build.__module__].__doc__
    assert textwrap.indent(drawing, "    ") in described
    assert "In this notebook you will" in notebook.cells[0].source
    assert "## Read next" in notebook.cells[-1].source
    assert getattr(checkers, exercise(notebook)).__doc__.startswith(f"{path.stem}: ")
    outputs = [each for cell in code_cells(notebook) for each in cell.outputs]
    assert any("image/png" in each.get("data", {}) for each in outputs)
    assert outputs[-1].text.startswith("Not yet: write your code")
    assert path.stat().st_size < 150_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_exercise_can_be_solved(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    stored = [[each.output_type for each in cell.outputs] for cell in code_cells(notebook)]
    name = exercise(notebook)
    solved = f"{source(name)}\n\nprint(checkers.{name}({name}))"
    notebook.cells.append(nbformat.v4.new_code_cell(solved))
    execute(notebook, tmp_path)
    *cells, last = code_cells(notebook)
    assert [[each.output_type for each in cell.outputs] for cell in cells] == stored
    assert last.outputs[0].text == checkers.RIGHT + "\n"
