# SPDX-License-Identifier: Apache-2.0
"""`veldt evaluate`: returns of fresh episodes with a checkpoint of a run, and a video of one."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from veldt.environments.atari import atari_rules
from veldt.environments.lookup import missing_extra, one_line
from veldt.environments.tasks import scores_by_task
from veldt.errors import ConfigurationError
from veldt.run.best import BEST
from veldt.run.evaluation import Evaluator
from veldt.run.loading import Restored, restored
from veldt.telemetry.progress import task_scores
from veldt.zoo import ZOO

_FRAMES_PER_SECOND = 30


@dataclass(frozen=True)
class EvaluationResult:
    """Returns of fresh episodes; None where no episode ended."""

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
    frames: int | None = None
    """Frames of training before the checkpoint, where a step is several."""
    rules: str | None = None
    """Rules of an Atari score."""
    by_task: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """With several tasks or policies: `mean` and `normalized` return of each."""
    human_normalized: float | None = None
    """The mean on a scale where 0 is a random player and 1 a human, where both are known."""

    def text(self) -> str:
        """The result in a few lines."""
        what = f"{self.architecture} on {self.env} after {self.env_steps:,} env steps"
        lines = [f"{what}: no episode ended; end them with --wrappers time_limit=N when training"]
        if self.returns:
            digits = 1 if max(map(abs, self.returns)) >= 10 else 3
            spread = (
                f"std {self.std:.{digits}f}, min {self.min:.{digits}f}, max {self.max:.{digits}f}"
            )
            mean = f"mean return {self.mean:.{digits}f}"
            lines = [f"{what}: {mean} over {len(self.returns)} episodes ({spread})"]
        lines += [tasks] if (tasks := task_scores(self.by_task)) else []
        if self.human_normalized is not None:
            lines.append(f"human-normalised {self.human_normalized:.2f} (random 0, human 1)")
        if self.rules:
            lines.append(f"after {self.frames:,} frames; {self.rules}")
        return "\n".join([*lines, *([self.video] if self.video else [])])


def evaluate_run(
    run_dir: Path,
    episodes: int = 20,
    seed: int = 0,
    video: bool = False,
    policy: int | None = None,
    trust_code: bool = False,
    checkpoint: str | int = BEST,
    stochastic: bool = False,
    env: str | None = None,
) -> EvaluationResult:
    """Play `episodes` episodes; a video of one more is written to `run_dir`/videos."""
    if episodes < 1:
        raise ConfigurationError(f"episodes is {episodes}; use 1 or more")
    if seed < 0:
        raise ConfigurationError(f"seed is {seed}; use a whole number from 0 on")
    found = restored(run_dir, checkpoint, policy=policy, env=env, trust_code=trust_code)
    parts = found.plan.problem.environment.parts
    if parts:
        episodes = -(-episodes // len(parts)) * len(parts)  # as many of each
    returns, _ = _play(found, episodes, seed, stochastic)
    path = _record(found, seed, stochastic, run_dir) if video else None
    known = returns.size > 0
    rules = atari_rules(found.plan.problem.environment)
    return EvaluationResult(
        found.plan.architecture,
        found.plan.problem.environment.name,
        found.env_steps,
        returns.tolist(),
        mean=float(returns.mean()) if known else None,
        std=float(returns.std()) if known else None,
        min=float(returns.min()) if known else None,
        max=float(returns.max()) if known else None,
        video=str(path) if path else None,
        frames=rules.frames_per_step * found.env_steps if rules else None,
        rules=rules.text() if rules else None,
        by_task=scores_by_task(parts, returns) if returns.size == episodes else {},
        human_normalized=rules.human_normalized(returns.mean()) if rules and known else None,
    )


def _play(
    found: Restored, episodes: int, seed: int, stochastic: bool, render: bool = False
) -> tuple[np.ndarray, list[np.ndarray]]:
    plan = found.plan
    evaluator = Evaluator(
        plan.problem.environment, plan.topology.network, seed, episodes, render, stochastic
    )
    try:
        return evaluator.returns(found.weights.vector), evaluator.frames
    finally:
        evaluator.close()


def _record(found: Restored, seed: int, stochastic: bool, run_dir: Path) -> Path:
    env = found.plan.problem.environment
    try:
        _, frames = _play(found, max(1, len(env.parts)), seed, stochastic, render=True)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        remedy = missing_extra(env.env, error)
        raise ConfigurationError(f"cannot draw {env.name}: {one_line(error)}{remedy}") from error
    if not frames:
        raise ConfigurationError(f"{env.name} cannot draw itself; leave --video out")
    folder = (Path() if run_dir.parent == ZOO else run_dir) / "videos"
    try:
        folder.mkdir(exist_ok=True)
        return _write_video(folder / f"env-steps-{found.env_steps}-seed-{seed}", frames)
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

    path, duration = stem.with_suffix(".gif"), 1000 // _FRAMES_PER_SECOND
    first, *others = map(Image.fromarray, frames)
    first.save(path, save_all=True, append_images=others, duration=duration, loop=0)
    return path
