# SPDX-License-Identifier: Apache-2.0
"""The tasks of the scoreboard: what solves each, and who is asked to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """An environment with its defaults. `peers` are Stable-Baselines3's algorithms; where rl-zoo
    has no settings for the task they run with their own defaults."""

    env: str
    target: float | None
    """None: what is asked for is the score after `steps`."""
    veldt: tuple[str, ...]
    """Architectures, with further words of the command line where the task needs them."""
    peers: tuple[str, ...] = ()
    max_seconds: float = 120.0
    steps: int = 0

    @property
    def contestants(self) -> tuple[str, ...]:
        return (*(f"veldt {each}" for each in self.veldt), *(f"sb3 {each}" for each in self.peers))


_LSTM = "--env-options delay_env_steps=20 --recurrent lstm"
_PACED = ("sebulba", "areal", "pqn")
TASKS = (
    Task("CartPole-v1", 475.0, ("impala", "ppo", "sample_factory", *_PACED), ("ppo", "dqn"), 60.0),
    Task("Acrobot-v1", -100.0, ("impala", "ppo", "sample_factory", *_PACED), ("ppo", "dqn"), 60.0),
    Task("veldt/Catch-v0", 0.95, ("ppo", "sample_factory", "impala", *_PACED), (), 60.0),
    Task("FrozenLake-v1", 0.7, ("ppo", "sample_factory"), ("ppo",), 60.0),
    Task("CliffWalking-v1", -15.0, ("impala", "dqn", "ppo"), ("ppo",), 90.0),
    Task("Taxi-v4", 7.0, ("ppo", "sample_factory"), ("ppo",), 90.0),
    Task("veldt/Memory-v0", 0.9, (f"ppo {_LSTM}", f"sample_factory {_LSTM}"), (), 90.0),
    Task("MountainCar-v0", -130.0, ("dqn", "apex"), ("dqn", "ppo"), 120.0),
    Task(
        "Pendulum-v1",
        -200.0,
        ("sample_factory", "ppo", "sac", "sebulba", "areal"),
        ("sac", "ppo"),
        90.0,
    ),
    Task("MountainCarContinuous-v0", 90.0, ("ppo", "sample_factory", "sac"), ("ppo", "sac"), 120.0),
    Task("veldt/NestedDict-v0", 19.0, ("sample_factory", "impala", "ppo"), (), 120.0),
    Task("LunarLander-v3", 200.0, ("ppo", "sample_factory"), ("ppo", "dqn"), 180.0),
    Task("LunarLanderContinuous-v3", 200.0, ("ppo", "sample_factory"), ("ppo", "sac"), 180.0),
    Task("Hopper-v5", 2_500.0, ("ppo", "sample_factory"), ("ppo", "sac"), 300.0),
    # Steps are what counts here, and one update a step takes its time.
    Task("HalfCheetah-v5", 4_000.0, ("ppo", "sac"), ("ppo", "sac"), 5_400.0),
    *(
        Task(
            f"MinAtar/{game}-v1",
            None,
            ("ppo", "sample_factory", *(_PACED if game == "Breakout" else ())),
            ("ppo", "ppo_defaults"),
            7_200.0,
            3_000_000,
        )
        for game in ("Breakout", "Asterix", "SpaceInvaders", "Freeway")
    ),
)
