# SPDX-License-Identifier: Apache-2.0
"""The hand-written loop is a fair price tag only if it computes what the framework computes."""

import ast
import sys
from pathlib import Path

import torch

from benchmarks import bare_impala as bare
from veldt.losses.actor_critic import ActorCritic, ActorCriticOptions
from veldt.networks import FlatParameters, NetworkOptions, make_network
from veldt.types import ActionSpec, EnvironmentSpec, ObservationLeaf

STEPS, ENVS = 12, 7


def random_batch():
    """Rows as CartPole's vector environment delivers them: a reset row follows each end."""
    generator = torch.Generator().manual_seed(0)
    batch = {name: buffer[0].clone() for name, buffer in bare.make_buffers(STEPS, ENVS).items()}
    batch["observation"].normal_(generator=generator)
    batch["logits"].normal_(generator=generator)
    batch["reward"].normal_(generator=generator)
    batch["action"].random_(0, 2, generator=generator)
    ended = torch.zeros(ENVS, dtype=torch.bool)
    for t in range(STEPS):
        batch["ignored"][t] = ended
        draw = torch.rand(ENVS, generator=generator).masked_fill(ended, 1.0)
        batch["terminated"][t] = draw < 0.15
        batch["truncated"][t] = (draw > 0.1) & (draw < 0.3)
        ended = batch["terminated"][t] | batch["truncated"][t]
    assert batch["ignored"].any()
    assert (batch["terminated"] & batch["truncated"]).any()
    return batch


def test_loss_and_gradient_are_those_of_the_framework():
    batch = random_batch()
    model = bare.make_model()
    loss = bare.loss_of(model, batch, ~batch["ignored"])
    loss.backward()

    observation = (ObservationLeaf("observation", (4,), "float32", "vector"),)
    spec = EnvironmentSpec("CartPole-v1", observation, ActionSpec("discrete", (2,)))
    network = make_network(NetworkOptions(), spec, "policy_value", 0)
    flat = FlatParameters(network)
    flat.load(bare.parameters_to_vector(model.parameters()).detach())
    options = ActorCriticOptions(
        gamma=bare.GAMMA,
        value_coefficient=bare.VALUE_COEFFICIENT,
        entropy_coefficient=bare.ENTROPY_COEFFICIENT,
        normalize_returns=False,
    )

    def with_last_row(tensor):
        return torch.cat((tensor, torch.zeros_like(tensor[:1])))

    rows = {
        name: tensor if name == "observation" else with_last_row(tensor)
        for name, tensor in batch.items()
    }
    rows["behaviour_logits"] = rows.pop("logits")
    rows["first"] = torch.zeros(STEPS + 1, ENVS, dtype=torch.bool)
    objective = ActorCritic(options)
    objective.open(network)
    total = objective(rows).total
    total.backward()
    torch.testing.assert_close(total, loss)
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    torch.testing.assert_close(flat.gradient, expected, rtol=1e-4, atol=1e-6)


def test_nothing_of_the_framework_is_imported():
    tree = ast.parse(Path(bare.__file__).read_text(encoding="utf-8"))
    names = [n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    roots = {name.partition(".")[0] for name in names}
    assert roots - set(sys.stdlib_module_names) == {"gymnasium", "torch"}
