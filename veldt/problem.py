# SPDX-License-Identifier: Apache-2.0
"""The environment, the network and the size of a run, which no architecture decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from veldt.devices import Compute
from veldt.environments import EnvironmentFactory, Environments
from veldt.environments.lookup import ExternalEndpoint, external_address
from veldt.errors import ConfigurationError
from veldt.losses import LossOptions
from veldt.networks import FirstWeights, Network, NetworkFactory, NetworkOptions
from veldt.optimizers import Schedule
from veldt.types import DISCOUNTED_RETURN, EnvironmentSpec, Field, Layout, trajectory_layout


@dataclass(frozen=True)
class Problem:
    """An environment, a network for it, and the size of the run."""

    environment: EnvironmentFactory
    spec: EnvironmentSpec
    shape: NetworkOptions
    """Options of the network."""
    seed: int = 0
    num_actors: int = 1
    envs_per_actor: int = 8
    compute: Compute = Compute()
    schedule: Schedule | None = None
    """What part of the run has passed; None where its end is not known."""
    first: FirstWeights | None = None
    """Weights of a trained network to begin with."""
    heads: Mapping[str, type[Network]] = field(default_factory=dict)
    """Networks of your own in place of those of a head, by its name."""

    def network(self, head: str, loss: LossOptions, *, dueling: bool = False) -> NetworkFactory:
        """The network with this head ("policy_value", "q", "dpg", "sac" or "td3") for `loss`."""
        shape = loss.network_options(replace(self.shape, dueling=dueling), self.spec)
        network = NetworkFactory(
            shape, self.spec, self.heads.get(head, head), self.seed, self.first
        )
        network.require_memory()
        if head in self.heads:
            network.require_outputs(head)
        return network

    def environments(self, num_groups: int = 1) -> Environments:
        """The environments of one actor, in groups that it steps in turn."""
        if self.envs_per_actor % num_groups:
            raise ConfigurationError(
                f"{self.envs_per_actor} environments per actor do not split into {num_groups} equal"
                " groups; choose a multiple with --envs-per-actor, or other groups_per_actor"
            )
        return Environments(self.environment, self.envs_per_actor, num_groups)

    def external_endpoint(self) -> ExternalEndpoint:
        """The endpoint that external simulators connect to."""
        interface, has_masks = self.environment.interface(), self.spec.action_mask_size > 0
        return ExternalEndpoint(
            external_address(self.environment.name).listen, interface, has_masks
        )

    def trajectory_layout(
        self,
        network: NetworkFactory,
        num_steps: int,
        environments: Environments,
        outputs: Sequence[str] = (),
    ) -> Layout:
        """Slots for `num_steps` of a group of environments, with the outputs of the network's
        actors and further scalar `outputs`."""
        made = network.outline()
        stored = {**made.output_fields(), **made.input_fields()}
        stored |= dict.fromkeys(outputs, Field((), "float32"))
        if made.return_moments is not None:
            stored[DISCOUNTED_RETURN] = Field((), "float32")
        width = environments.width
        return trajectory_layout(self.spec, num_steps, width, stored, made.state_fields())

    def per_learner(self, num_learners: int, replay_fraction: float = 0.0) -> Problem:
        """With at least one actor per learner, and the schedule of one learner, whose steps include
        replayed ones."""
        actors, schedule = max(self.num_actors, num_learners), self.schedule
        if schedule is not None:
            schedule = schedule.divided(num_learners * (1.0 - replay_fraction))
        return replace(self, num_actors=actors, schedule=schedule)

    def with_learning_seats(self) -> Problem:
        """With one column per game, of the seat that learns, whose every row is a decision."""
        return replace(self, spec=replace(self.spec, rows_per_env_step=1))

    def in_one_actor(self) -> Problem:
        """With the environments of all actors in a single one."""
        total = self.num_actors * self.envs_per_actor
        return replace(self, num_actors=1, envs_per_actor=total)

    @property
    def frame_stack(self) -> int:
        """Frames in an image observation; a replay keeps each of them once."""
        environment = self.environment
        if environment.is_atari and environment.frame_stack == 1:
            return int(dict(environment.options).get("stack_num", 4))
        return environment.frame_stack

    def require_actions(self, architecture: str, *kinds: str) -> None:
        if self.spec.action.kind not in kinds:
            raise ConfigurationError(
                f"{architecture} needs {' or '.join(kinds)} actions, but {self.spec.id} has"
                f" {self.spec.action.kind} actions; try impala, which takes any"
            )

    def require_no_memory(self, architecture: str) -> None:
        """Refuse recurrent networks, which a replay of single transitions has no states for."""
        asked = [("recurrent", self.shape.recurrent != "none")]
        asked += [("last_action_and_reward", self.shape.last_action_and_reward)]
        for option, given in asked:
            if given:
                raise ConfigurationError(
                    f"{architecture} learns from single transitions, so {option} does not go with"
                    " it; use r2d2, which replays sequences"
                )
