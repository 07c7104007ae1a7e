# SPDX-License-Identifier: Apache-2.0
"""Which kind of task this is, from its spaces: what a preset is chosen by.

    vectors        numbers, digits, small tables; discrete actions
    continuous     the same with Box actions
    continuous_wide  the same with more than 10 numbers in observation and action together: bodies
    grids          zeros and ones on grids below 36 x 36 and nothing else, such as MinAtar's
    small_images   other images below 36 x 36, whatever stands beside them
    atari          images of 36 x 36 or more
    perfect_information  the shipped games in which nothing is hidden
A network with memory adds "_recurrent": trajectories must then be as long as what it remembers.
"""

from __future__ import annotations

from math import prod

from veldt.types import EnvironmentSpec, ObservationLeaf

SMALLEST_LARGE_SIDE = 36
"""The Nature network's three convolutions need this many pixels each way."""
FEW_NUMBERS = 10
RECURRENT, ON_CPU = "_recurrent", "_on_cpu"
PERFECT_INFORMATION = "perfect_information"
_NOTHING_HIDDEN = ("veldt:tic_tac_toe", "veldt:connect_four")
_BROADER = {"grids": "small_images", "continuous_wide": "continuous"}
FAMILIES = (
    "vectors",
    "continuous",
    "continuous_wide",
    "grids",
    "small_images",
    "atari",
    PERFECT_INFORMATION,
)


def family(spec: EnvironmentSpec, recurrent: str = "none") -> str:
    """The family's name. Images decide before actions do: what is seen costs the most to learn."""
    images = [leaf for leaf in spec.observation if leaf.kind == "image"]
    if any(is_large(leaf) for leaf in images):
        found = "atari"
    elif images:
        bare = all(leaf.kind == "image" and leaf.dtype == "bool" for leaf in spec.observation)
        found = "grids" if bare else "small_images"
    elif spec.id in _NOTHING_HIDDEN:
        found = PERFECT_INFORMATION
    elif spec.action.kind == "box":
        found = "continuous" if num_numbers(spec) <= FEW_NUMBERS else "continuous_wide"
    else:
        found = "vectors"
    return found if recurrent == "none" else found + RECURRENT


def preset_names(found: str, device: str = "cuda") -> list[str]:
    """Presets that would do for a family, the best first: its own, that without memory, those of
    the broader family, then the paper's for large images and that of small control tasks for all
    else. Where the learner's device is a CPU, large
    images have sizes of their own: a batch that a GPU learns from in a moment takes a core half a
    minute."""
    base = found.removesuffix(RECURRENT)
    names = list(dict.fromkeys((found, base)))
    if base in _BROADER:
        names += [name.replace(base, _BROADER[base]) for name in names]
    if base == "atari" and device == "cpu":
        names = [name for plain in names for name in (plain + ON_CPU, plain)]
    names.append("paper" if base == "atari" else "control")
    return names


def is_large(leaf: ObservationLeaf) -> bool:
    return min(leaf.shape[1:]) >= SMALLEST_LARGE_SIDE


def num_numbers(spec: EnvironmentSpec) -> int:
    """In an observation and a Box action together."""
    return sum(prod(leaf.shape) for leaf in spec.observation) + len(spec.action.low)
