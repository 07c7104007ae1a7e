# SPDX-License-Identifier: Apache-2.0
"""Task families, by which presets are chosen: read from the observation and action spaces.

    vectors              numbers, digits, small tables; discrete actions
    continuous           the same with Box actions
    continuous_wide      the same with more than 10 numbers in observation and action: locomotion
    grids                only zeros and ones on grids below 36 x 36, digits beside them or not
    grids_wide           the same with more than 100 cells in all channels: MinAtar's games
    small_images         other images below 36 x 36, with or without further entries
    atari                images of 36 x 36 or more
    perfect_information  the shipped games without hidden information
A network with memory adds "_recurrent", because trajectories must be as long as its memory.
"""

from __future__ import annotations

from math import prod

from veldt.types import EnvironmentSpec, ObservationLeaf

SMALLEST_LARGE_SIDE = 36
"""The Nature network's three convolutions need this many pixels each way."""
FEW_NUMBERS = 10
FEW_CELLS = 100
RECURRENT, ON_CPU = "_recurrent", "_on_cpu"
PERFECT_INFORMATION = "perfect_information"
_NOTHING_HIDDEN = ("veldt:tic_tac_toe", "veldt:connect_four")
_BROADER = {"grids_wide": "grids", "grids": "small_images", "continuous_wide": "continuous"}
FAMILIES = (
    "vectors",
    "continuous",
    "continuous_wide",
    "grids",
    "grids_wide",
    "small_images",
    "atari",
    PERFECT_INFORMATION,
)


def family(spec: EnvironmentSpec, recurrent: str = "none") -> str:
    """The family's name. Images come before actions, because they cost the most to learn from."""
    images = [leaf for leaf in spec.observation if leaf.kind == "image"]
    if any(is_large(leaf) for leaf in images):
        found = "atari"
    elif images:
        others = [leaf for leaf in spec.observation if leaf.kind not in ("image", "discrete")]
        bare = not others and all(leaf.dtype == "bool" for leaf in images)
        cells = sum(prod(leaf.shape) for leaf in images)
        grids = "grids" if cells <= FEW_CELLS else "grids_wide"
        found = grids if bare else "small_images"
    elif spec.id in _NOTHING_HIDDEN:
        found = PERFECT_INFORMATION
    elif spec.action.kind == "box":
        found = "continuous" if num_numbers(spec) <= FEW_NUMBERS else "continuous_wide"
    else:
        found = "vectors"
    return found if recurrent == "none" else found + RECURRENT


def preset_names(found: str, device: str = "cuda") -> list[str]:
    """Names of suitable presets, the best first.

    The family's own, that without memory, those of broader families, then "paper" for large
    images and "control" for all others. On a CPU large images have presets of their own, because a
    batch for a GPU would take a core half a minute."""
    base = found.removesuffix(RECURRENT)
    own = dict.fromkeys((found, base))
    names, broader = list(own), base
    while broader in _BROADER:
        broader = _BROADER[broader]
        names += [name.replace(base, broader) for name in own]
    if base == "atari" and device == "cpu":
        names = [name for plain in names for name in (plain + ON_CPU, plain)]
    names.append("paper" if base == "atari" else "control")
    return names


def is_large(leaf: ObservationLeaf) -> bool:
    return min(leaf.shape[1:]) >= SMALLEST_LARGE_SIDE


def num_numbers(spec: EnvironmentSpec) -> int:
    """Numbers in an observation and a Box action together."""
    return sum(prod(leaf.shape) for leaf in spec.observation) + len(spec.action.low)
