# SPDX-License-Identifier: Apache-2.0
"""What listens to Sample Factory's runner; in a file of its own because of its base classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import referee
import torch
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.action_distributions import argmax_actions
from sample_factory.algo.utils.misc import EPISODIC, LEARNER_ENV_STEPS
from sample_factory.algo.utils.rl_utils import prepare_and_normalize_obs
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from signal_slot.signal_slot import EventLoopObject


class Watch(AlgoObserver, EventLoopObject):
    """Lives in the runner's process, reads the shared weights when there is something to judge."""

    def __init__(self, runner: Runner, watch: referee.Referee) -> None:
        EventLoopObject.__init__(self, runner.event_loop, "watch")
        self._runner, self._watch = runner, watch
        self._weights: dict[str, torch.Tensor] | None = None
        self._model: Any = None

    def on_connect_components(self, runner: Runner) -> None:
        runner.learners[0].model_initialized.connect(self.on_model_initialized)
        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(self._on_trained)
        runner.policy_msg_handlers[EPISODIC].append(self._on_episode)

    def on_model_initialized(self, state: tuple[Any, ...]) -> None:
        self._weights = state[1]

    def _on_trained(self, _: Runner, message: dict[str, Any], __: int) -> None:
        if message[LEARNER_ENV_STEPS]:
            self._watch.trained(message[LEARNER_ENV_STEPS])
        self._end_if_over()

    def _on_episode(self, _: Runner, message: dict[str, Any], __: int) -> None:
        self._watch.finished(np.atleast_1d(message[EPISODIC]["reward"]))
        if self._watch.wants_evaluation():
            self._watch.evaluated(self._evaluate())
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._watch.is_over():
            self._runner._stop_training()

    def _evaluate(self) -> float:
        import gymnasium

        cfg, info = self._runner.cfg, self._runner.env_info
        if self._model is None:
            self._model = create_actor_critic(cfg, info.obs_space, info.action_space)
            self._model.eval()
        server = self._runner.learners[0].param_server
        shared = self._weights or server.actor_critic.state_dict()
        with server.policy_lock:
            self._model.load_state_dict(shared)

        @torch.no_grad()
        def act(rows: np.ndarray) -> np.ndarray:
            batch = prepare_and_normalize_obs(self._model, {"obs": torch.from_numpy(rows)})
            self._model(batch, torch.zeros(len(rows), get_rnn_size(cfg)))
            return argmax_actions(self._model.action_distribution()).numpy()

        make = lambda: gymnasium.make(cfg.env)  # noqa: E731
        return referee.mean_return(make, act, self._watch.evaluation_seed())
