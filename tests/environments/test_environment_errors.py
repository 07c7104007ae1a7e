# SPDX-License-Identifier: Apache-2.0
"""Bad inputs end in one line that names the remedy, before anything runs."""

import sys
from functools import partial

import gymnasium
import pytest
from counting_environments import CountingVectorEnvironment
from gymnasium.vector import AutoresetMode

from veldt.environments import EnvironmentFactory
from veldt.errors import ConfigurationError


def not_an_environment():
    return 3


def vector_without_mode(num_envs):
    class Silent(gymnasium.vector.VectorEnv):
        metadata = {}  # noqa: RUF012

    return Silent()


vector_without_resets = partial(CountingVectorEnvironment, autoreset_mode=AutoresetMode.DISABLED)


def refusal(env, **settings) -> str:
    with pytest.raises(ConfigurationError) as caught:
        EnvironmentFactory(env, **settings).spec()
    message = str(caught.value)
    assert "\n" not in message
    return message


def forget_minatar(monkeypatch) -> None:
    """As if nobody had asked for one of its games yet."""
    for known in [name for name in gymnasium.registry if name.startswith("MinAtar/")]:
        monkeypatch.delitem(gymnasium.registry, known)
    for loaded in [name for name in sys.modules if name.split(".")[0] == "minatar"]:
        monkeypatch.delitem(sys.modules, loaded)


@pytest.mark.parametrize(
    ("env", "remedy"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole", "CartPole-v"),
        ("CartPole-v9", "CartPole-v1"),
        ("veldt/Memry-v0", "veldt/Memory-v0"),
        ("ALE/Brekout-v5", "ALE/Breakout-v5"),
        ("Pong-v5", "ALE/Pong-v5"),
        ("MinAtar/Brekout-v1", "MinAtar/Breakout-v1"),
        ("Zzyzx", "module:function"),
        ("counting_environments:Missing", "check the function's name"),
        ("no_such_module_here:make", "PYTHONPATH"),
        (f"{__name__}:refusal.__name__", "name a function"),
    ],
)
def test_unknown_names(env, remedy):
    if remedy.startswith(("ALE/", "MinAtar/")):
        pytest.importorskip("ale_py" if remedy.startswith("ALE/") else "minatar")
    assert remedy in refusal(env)


@pytest.mark.parametrize(
    ("env", "module", "extra"),
    [
        ("ALE/Pong-v5", "ale_py", "veldt[atari]"),
        ("envpool:Pong-v5", "envpool", "veldt[envpool]"),
        ("MinAtar/Breakout-v1", "minatar", "veldt[minatar]"),
        ("HalfCheetah-v5", "mujoco", "veldt[mujoco]"),
        ("LunarLander-v3", "Box2D", "veldt[box2d]"),
    ],
)
def test_missing_extras_name_the_command(monkeypatch, env, module, extra):
    forget_minatar(monkeypatch)
    monkeypatch.setitem(sys.modules, module, None)
    for loaded in list(sys.modules):
        if loaded.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d", module + ".")):
            monkeypatch.delitem(sys.modules, loaded)
    assert f'pip install "{extra}"' in refusal(env)


@pytest.mark.parametrize(
    ("env", "settings", "remedy"),
    [
        ("CartPole-v1", {"options": {"gravty": 3}}, "gravty"),
        ("ALE/Pong-v5", {"vectorization": "in_process"}, "leave vectorization at auto"),
        ("tests/Counting-v0", {"time_limit": 5}, "time_limit"),
        (not_an_environment, {}, "gymnasium.Env"),
        (vector_without_mode, {}, "metadata['autoreset_mode']"),
        (vector_without_resets, {}, "NEXT_STEP or SAME_STEP"),
        (vector_without_mode, {"vectorization": "in_process"}, "auto"),
    ],
)
def test_settings_that_do_not_fit(env, settings, remedy):
    assert remedy in refusal(env, **settings)


def test_no_environments_are_refused():
    with pytest.raises(ConfigurationError, match="num_envs"):
        EnvironmentFactory("CartPole-v1").make(0, seed=0)
