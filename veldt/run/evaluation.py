# SPDX-License-Identifier: Apache-2.0
"""Fresh episodes with a finished or running run's newest checkpoint, and a video of one."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from veldt.checkpoints.store import Checkpoint, CheckpointError, CheckpointStore
from veldt.environments.lookup import missing_extra, one_line
from veldt.errors import ConfigurationError
from veldt.roles.evaluator import Evaluator
from veldt.run.checkpoints import weights_in
from veldt.run.directory import CHECKPOINTS, CONFIG_FILE
from veldt.run.plan import Plan, make_plan
from veldt.run.saved_options import saved_options
from veldt.types import Parameters

_FRAMES_PER_SECOND = 30


@dataclass(frozen=True)
class EvaluationResult:
    """Returns of fresh episodes, likeliest action each time; None where no episode ended."""

    architecture: str
    env: str
    env_steps: int
    """Age of the weights: env steps of training before the checkpoint."""
    returns: list[float]
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    video: str | None = None

    def text(self) -> str:
        """The result in a line or two."""
        what = f"{self.architecture} on {self.env} after {self.env_steps:,} env steps"
        lines = [f"{what}: no episode ended; end them with --time-limit when training"]
        if self.returns:
            spread = f"std {self.std:.1f}, min {self.min:.1f}, max {self.max:.1f}"
            lines = [
                f"{what}: mean return {self.mean:.1f} over {len(self.returns)} episodes ({spread})"
            ]
        return "\n".join([*lines, *([self.video] if self.video else [])])


def evaluate_run(
    run_dir: Path,
    episodes: int = 20,
    seed: int = 0,
    video: bool = False,
    policy: int | None = None,
    trust_code: bool = False,
) -> EvaluationResult:
    """Play `episodes` episodes side by side; the video shows one more, in `run_dir`/videos."""
    if episodes < 1:
        raise ConfigurationError(f"episodes is {episodes}; use 1 or more")
    if seed < 0:
        raise ConfigurationError(f"seed is {seed}; use a whole number from 0 on")
    checkpoint = newest_checkpoint(run_dir)
    plan, weights = restored(run_dir, checkpoint, policy, trust_code)
    returns, _ = _play(plan, weights, episodes, seed)
    path = _record(plan, weights, seed, run_dir, checkpoint.step) if video else None
    known = returns.size > 0
    return EvaluationResult(
        plan.architecture,
        plan.problem.environment.name,
        checkpoint.step,
        returns.tolist(),
        mean=float(returns.mean()) if known else None,
        std=float(returns.std()) if known else None,
        min=float(returns.min()) if known else None,
        max=float(returns.max()) if known else None,
        video=str(path) if path else None,
    )


def newest_checkpoint(run_dir: Path) -> Checkpoint:
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigurationError(
            f"{run_dir} is not a run directory: it has no {CONFIG_FILE}; give the directory that"
            " 'veldt train' printed"
        )
    try:
        checkpoint = CheckpointStore(run_dir / CHECKPOINTS).newest()
    except CheckpointError as error:
        raise ConfigurationError(str(error)) from error
    if checkpoint is None:
        raise ConfigurationError(
            f"{run_dir} has no checkpoint yet; wait for the first one or let the run end"
        )
    return checkpoint


def restored(
    run_dir: Path, checkpoint: Checkpoint, policy: int | None = None, trust_code: bool = False
) -> tuple[Plan, Parameters]:
    """The run's plan and the checkpoint's weights, for this machine whatever the run's was."""
    try:
        architecture, options, own = saved_options(run_dir, trust_code)
        weights = weights_in(checkpoint, policy)
    except ConfigurationError:
        raise
    except (KeyError, TypeError, ValueError, CheckpointError) as error:
        raise ConfigurationError(
            f"{run_dir} cannot be read ({one_line(error)}); was it written by this version?"
        ) from error
    for name in (options.env, options.network):
        module, _, function = str(name).partition(":")
        if module == "__main__" or "<" in function:
            raise ConfigurationError(
                f"the run used {name}, which cannot be imported here; define it at the top level of"
                " a module and train with module:function to evaluate later"
            )
    options = replace(options, backend="serial", device="cpu", run_dir=None)
    plan = make_plan(architecture, options, own)
    expected = plan.topology.num_weights
    if weights.vector.size != expected:
        raise ConfigurationError(
            f"the checkpoint has {weights.vector.size:,} weights but {CONFIG_FILE} describes"
            f" {expected:,}; the environment or the network has changed since"
        )
    return plan, weights


def _play(
    plan: Plan, weights: Parameters, episodes: int, seed: int, render: bool = False
) -> tuple[np.ndarray, list[np.ndarray]]:
    network = plan.topology.network
    evaluator = Evaluator(plan.problem.environment, network, seed, episodes, render)
    try:
        return evaluator.returns(weights.vector), evaluator.frames
    finally:
        evaluator.close()


def _record(plan: Plan, weights: Parameters, seed: int, run_dir: Path, env_steps: int) -> Path:
    env = plan.problem.environment
    try:
        _, frames = _play(plan, weights, 1, seed, render=True)
    except ImportError as error:
        remedy = missing_extra(env.env, error)
        raise ConfigurationError(f"cannot draw {env.name}: {one_line(error)}{remedy}") from error
    if not frames:
        raise ConfigurationError(f"{env.name} cannot draw itself; leave --video out")
    folder = run_dir / "videos"
    try:
        folder.mkdir(exist_ok=True)
        return _write_video(folder / f"env-steps-{env_steps}-seed-{seed}", frames)
    except OSError as error:
        raise ConfigurationError(f"cannot write the video: {one_line(error)}") from error


def _write_video(stem: Path, frames: list[np.ndarray]) -> Path:
    """An mp4 with the extra "video"; else a GIF, for which Pillow (with TensorBoard) is enough."""
    if importlib.util.find_spec("imageio") and importlib.util.find_spec("imageio_ffmpeg"):
        import imageio

        path = stem.with_suffix(".mp4")
        options: dict[str, Any] = {"fps": _FRAMES_PER_SECOND, "macro_block_size": 2}
        imageio.mimwrite(path, frames, **options)  # type: ignore[arg-type]
        return path
    from PIL import Image

    path = stem.with_suffix(".gif")
    pictures = [Image.fromarray(frame) for frame in frames]
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=1000 // _FRAMES_PER_SECOND, loop=0
    )
    return path
