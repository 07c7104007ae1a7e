# SPDX-License-Identifier: Apache-2.0
"""Environment specs and random inputs that the network tests share."""

import torch

from veldt.types import ACTION_MASK, ActionSpec, EnvironmentSpec, ObservationLeaf

DISCRETE = ActionSpec("discrete", (3,))
MULTI_DISCRETE = ActionSpec("multi_discrete", (2, 3), shape=(2,))
BOX = ActionSpec("box", (), (-2.0, 0.0), (2.0, 1.0), (2,))


def vector(size=4, name="observation"):
    return ObservationLeaf(name, (size,), "float32", "vector")


def image(side=84, channels=4, name="observation"):
    return ObservationLeaf(name, (channels, side, side), "uint8", "image")


def discrete(categories, name="observation", shape=()):
    return ObservationLeaf(name, shape, "int64", "discrete", categories)


def make_spec(*leaves, action=DISCRETE, action_mask_size=0):
    return EnvironmentSpec("Test-v0", leaves or (vector(),), action, action_mask_size)


def random_observations(spec, *rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    observations = {}
    for leaf in spec.observation:
        shape = (*rows, *leaf.shape)
        if leaf.kind == "vector":
            observations[leaf.name] = torch.randn(shape, generator=generator)
        else:
            high = leaf.categories or 256
            values = torch.randint(0, high, shape, generator=generator)
            observations[leaf.name] = values.to(getattr(torch, leaf.dtype))
    if spec.action_mask_size:
        mask = torch.rand((*rows, spec.action_mask_size), generator=generator) < 0.5
        mask[..., 0] = True
        observations[ACTION_MASK] = mask
    return observations


def make_linear_encoder(spec):
    """A user's own factory, as "module:function" names it."""
    return torch.nn.Linear(spec.observation[0].shape[0], 7)
