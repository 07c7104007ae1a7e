# SPDX-License-Identifier: Apache-2.0
"""TLeague (Sun et al., 2020).

    actor x N --trajectories--> queue --batch--> learner --frozen models--> pool (files)
       ^  ^  |                                      |  ^                      |
       |  |  +----- results -----> manager --orders-|--+                      |
       |  +---- whom to play ---------+             |                         |
       +----------------- weights ------------------+    opponents <----------+

New since IMPALA: the environment has several seats. One of them learns; the others are played by
models of a pool, which grows as learning players are frozen into it. A manager keeps the payoff of
all pairs, chooses opponents, and orders freezing and resets (match-making `latest`, `uniform`,
`pfsp`, or `alphastar` with exploiters). Each learning player has a learner and actors of its own.
One datum: actor -> queue -> learner; its result: actor -> manager -> who plays whom.
Lag: as in IMPALA. Opponents change between two games only; seats alternate.
Deviation: actors hold the opponents' models themselves, a few at a time, with one forward pass per
model for all games against it; TLeague has inference servers for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from veldt.architectures import Architecture, one_actor_per_core
from veldt.league.manager import League
from veldt.league.players import EntropySchedule, LeagueActor, LeagueLearner
from veldt.league.state import LeagueOptions
from veldt.losses.actor_critic import ActorCritic
from veldt.losses.ppo import PPO, SynchronousOptions
from veldt.optimizers import OptimizerOptions, Schedule
from veldt.options.checked import Count, Options, Positive
from veldt.options.groups import LOSS_OPTIONS
from veldt.options.presets import presets
from veldt.problem import Problem
from veldt.roles.gradients import LocalOptimizer
from veldt.roles.policies import LocalPolicy
from veldt.topology import Topology


@dataclass(frozen=True)
class Config(Options):
    """Defaults suit small games with hidden information, where self-play with little entropy cycles
    around the equilibrium; the preset `perfect_information` learns as PPO does."""

    loss: SynchronousOptions = SynchronousOptions(
        gamma=1.0, entropy_coefficient=0.3, normalize_returns=True
    )
    optimizer: OptimizerOptions = OptimizerOptions(
        "adam", 3e-3, decay_learning_rate=True, max_grad_norm=2.0
    )
    trajectory_steps: Count = 8
    """Decisions of the learning player per trajectory."""
    batch_trajectories: Count = 2
    """Trajectories joined into one batch."""
    queue_trajectories: Count = 4
    """Trajectories per actor in flight to the learner."""
    final_entropy: Annotated[Positive | None, LOSS_OPTIONS] = 0.1
    """Entropy coefficient at the end of --total-env-steps or --max-seconds; none: it does not
    change."""
    league: LeagueOptions = LeagueOptions()

    def entropy(self, schedule: Schedule | None) -> EntropySchedule | None:
        start = self.loss.entropy_coefficient
        if self.final_entropy is None or schedule is None or start == 0.0:
            return None
        return EntropySchedule(start, self.final_entropy, schedule)


def build(config: Config, problem: Problem) -> Topology:
    problem = problem.with_learning_seats().per_learner(len(config.league.kinds))
    network = problem.network("policy_value", config.loss)
    environments = problem.environments()
    layout = problem.trajectory_layout(network, config.trajectory_steps, environments)

    topology = Topology(network)
    league = League(topology, problem, config.league)
    slots = config.queue_trajectories * math.ceil(problem.num_actors / league.size)
    trajectories = topology.several_queues("trajectories", layout, slots, league.size)
    for index in range(problem.num_actors):
        player = index % league.size
        topology.add(
            "actor",
            LeagueActor(
                environments,
                LocalPolicy(network, league.weights[player].source()),
                trajectories[player].sink,
                gamma=config.loss.gamma,
                opponents=league.opponents(player),
            ),
        )
    topology.add("manager", league.manager())
    for player, weights in enumerate(league.weights):
        topology.add(
            "learner",
            LeagueLearner(
                league.networks[player],
                trajectories[player].source(config.batch_trajectories),
                PPO(config.loss) if config.loss.ppo.has_passes else ActorCritic(config.loss),
                LocalOptimizer(config.optimizer),
                weights.source(),
                weights.sink,
                decay=config.optimizer.decays_over(problem.schedule),
                compute=problem.compute,
                player=player,
                matches=league.matches_source(),
                generation=league.generations[player].sink,
                known_generation=league.generations[player].source(),
                entropy=config.entropy(problem.schedule),
            ),
        )
    return topology


ARCHITECTURE = Architecture(
    "league", Config, build, presets("league", Config()), default_actors=one_actor_per_core
)
