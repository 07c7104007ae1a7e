# SPDX-License-Identifier: Apache-2.0
"""What a run prints: a live display on a terminal, plain lines, JSON lines, or nothing.

A display that cannot be written falls silent and never stops training.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
from collections.abc import Iterator
from typing import TextIO

from veldt.options import RunOptions
from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.result import RunResult, dumps

_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[0m"
_BAR_WIDTH = 18
_LONG_START = 0.2  # of the whole time
_STOPPED = {
    "target": "target reached",
    "env_steps": "env step budget used",
    "seconds": "time used",
    "callback": "ended by a callback",
    "interrupt": "interrupted",
    "failure": "failed",
}


def seconds_left(options: RunOptions, run: RunTelemetry, elapsed_seconds: float) -> float | None:
    """Seconds until the first budget is used, at the present rate; None without a budget."""
    left = []
    if options.max_seconds is not None:
        left.append(options.max_seconds - elapsed_seconds)
    rate = run.rate("env_steps")
    if options.total_env_steps is not None and rate > 0:
        left.append((options.total_env_steps - run.env_steps) / rate)
    return max(0.0, min(left)) if left else None


class Progress:
    """The silent display, and the base class of the others."""

    every_seconds = 5.0

    def __init__(self, title: str, options: RunOptions, stream: TextIO) -> None:
        self._title, self._options, self._stream = title, options, stream
        self._can_write = True
        self._last_shown = -math.inf

    def update(self, run: RunTelemetry, elapsed_seconds: float) -> None:
        """Show the run's state if `every_seconds` have passed; cheap at any rate."""
        if self._can_write and elapsed_seconds - self._last_shown >= self.every_seconds:
            self._last_shown = elapsed_seconds
            self._show(run, elapsed_seconds)

    def begin(self, text: str, chosen: dict[str, object]) -> None:
        """Show what was chosen for the run, in a line or by name."""

    def note(self, text: str) -> None:
        """Show one line about something unusual: a restart, a failed write."""

    def finish(self, result: RunResult) -> None:
        """Show how the run ended."""

    def _show(self, run: RunTelemetry, elapsed_seconds: float) -> None: ...

    def _print(self, text: str) -> None:
        try:
            print(text, file=self._stream, flush=True)
        except (OSError, ValueError):  # the reader of a pipe has gone, or the stream is closed
            self._can_write = False


Fact = tuple[str, str, float | None]
"""Label, value, and the share that a bar shows."""


class PlainProgress(Progress):
    """One line every few seconds."""

    def _show(self, run: RunTelemetry, elapsed_seconds: float) -> None:
        facts = (f"{label} {value}" for label, value, _ in self._facts(run, elapsed_seconds))
        self._print("  ".join([f"[{clock(elapsed_seconds)}]", *facts]))

    def _facts(self, run: RunTelemetry, elapsed_seconds: float) -> Iterator[Fact]:
        goal, lag, steps = self._options, run.lag, run.env_steps
        target = "" if goal.target_return is None else f"/{goal.target_return:g}"
        yield "return", f"{number(run.mean_return_100)}{target}", None
        for name, mean in run.returns_by_task().items():
            yield name, number(mean), None
        total = "" if goal.total_env_steps is None else f"/{goal.total_env_steps:,}"
        done = steps / goal.total_env_steps if goal.total_env_steps else None
        yield "env steps", f"{steps:,}{total} ({run.rate('env_steps'):,.0f}/s)", done
        yield "updates", f"{run.updates:,} ({run.rate('updates'):,.0f}/s)", None
        if lag.count:
            yield "lag", f"{lag.mean:.1f} (max {lag.max})", None
        for name, fill in run.queue_fill.items():
            yield f"{name} filled", f"{fill:.0%}", fill
        for kind, share in run.kind_busy_shares().items():
            yield f"{kind} busy", f"{share:.0%}", share
        left = seconds_left(goal, run, elapsed_seconds)
        if left is not None:
            yield "time left", clock(left), None

    def begin(self, text: str, chosen: dict[str, object]) -> None:
        self._print(text)

    def note(self, text: str) -> None:
        self._print(text)

    def finish(self, result: RunResult) -> None:
        problems = result.problems()
        lines = (self._red(line) if line in problems else line for line in closing_lines(result))
        self._print("\n".join(lines))

    def _red(self, text: str) -> str:
        return text


class LiveProgress(PlainProgress):
    """A few rows on a terminal, redrawn in place."""

    every_seconds = 0.5

    def __init__(self, title: str, options: RunOptions, stream: TextIO) -> None:
        super().__init__(title, options, stream)
        self._rows_drawn = 0
        self._bar_part = "█" if (stream.encoding or "").lower().startswith("utf") else "#"

    def _show(self, run: RunTelemetry, elapsed_seconds: float) -> None:
        columns, lines = shutil.get_terminal_size()
        rows = [f"{self._title}  {clock(elapsed_seconds)}"]
        for label, value, share in self._facts(run, elapsed_seconds):
            bar = "" if share is None else self._bar_part * round(_BAR_WIDTH * min(1.0, share))
            rows.append(f"{label:<22}{value:<30}{bar}")
        rows = [row[: columns - 1].rstrip() for row in rows[: lines - 1]]
        self._print("\n".join([f"{_BOLD}{rows[0]}{_PLAIN}", *rows[1:]]))
        self._rows_drawn = len(rows)

    def finish(self, result: RunResult) -> None:
        self._rows_drawn = 0  # the last rows stay
        super().finish(result)

    def _red(self, text: str) -> str:
        return text if "NO_COLOR" in os.environ else f"{_RED}{text}{_PLAIN}"

    def _print(self, text: str) -> None:
        erase = f"\x1b[{self._rows_drawn}F\x1b[J" if self._rows_drawn else ""
        self._rows_drawn = 0
        super()._print(erase + text)


class JsonResult(Progress):
    """Only the final JSON object: --json with --quiet."""

    def finish(self, result: RunResult) -> None:
        self._event("result", **vars(result))

    def _event(self, event: str, **content: object) -> None:
        self._print(dumps({"event": event, **content}))


class JsonProgress(JsonResult):
    """JSON objects, one per line, with an "event": begin, progress, note or result."""

    def _show(self, run: RunTelemetry, elapsed_seconds: float) -> None:
        self._event(
            "progress",
            seconds=round(elapsed_seconds, 3),
            env_steps=run.env_steps,
            **run.metrics(),
            seconds_left=seconds_left(self._options, run, elapsed_seconds),
        )

    def begin(self, text: str, chosen: dict[str, object]) -> None:
        self._event("begin", text=text, **chosen)

    def note(self, text: str) -> None:
        self._event("note", text=text)


def make_progress(title: str, options: RunOptions, stream: TextIO) -> Progress:
    """The display that fits the options and the terminal."""
    kind: type[Progress] = PlainProgress
    if options.json:
        kind = JsonResult if options.quiet else JsonProgress
    elif options.quiet:
        kind = Progress
    elif stream.isatty() and os.environ.get("TERM") != "dumb":
        kind = LiveProgress
    return kind(title, options, stream)


def task_scores(scores: dict[str, dict[str, float | None]]) -> str:
    """The scores in one line."""
    parts = []
    for name, score in scores.items():
        known = score["normalized"]
        parts.append(f"{name} {score['mean']:.4g}" + ("" if known is None else f" ({known:.0%})"))
    return ", ".join(parts)


def closing_lines(result: RunResult) -> list[str]:
    """The end of a run in a few lines: outcome, problems, work, bottleneck, what to do next."""
    # Not only the known reasons, because result.json may come from a newer version.
    outcome = _STOPPED.get(result.stopped_by, str(result.stopped_by))
    outcome += f" after {result.seconds_to_target or result.wall_seconds:.1f} s"
    start = result.start_seconds or 0.0
    if start > _LONG_START * result.wall_seconds:
        outcome += f" ({start:.1f} s of them the start)"
    outcome += f": mean return {number(result.mean_return_100)}"
    if result.evaluation_return is not None:
        outcome += f", evaluation {number(result.evaluation_return)}"
        if result.evaluation_env_steps not in (None, result.env_steps):
            outcome += f" after {result.evaluation_env_steps:,} env steps"
    tasks = task_scores(result.evaluation_by_task)
    frames = f" ({result.frames:,} frames)" if result.frames != result.env_steps else ""
    work = f"{result.env_steps:,} env steps{frames}"
    if result.env_steps_per_second is not None and math.isfinite(result.env_steps_per_second):
        work += f", {result.env_steps_per_second:,.0f}/s"
    lag = result.policy_lag
    work += f", {result.updates:,} updates, policy lag mean {number(lag['mean'])} max {lag['max']}"
    collapse = ""
    if result.collapsed:
        collapse = (
            f"collapsed: the best was {number(result.best_return)} after"
            f" {result.best_env_steps:,} env steps, and those weights are kept; veldt evaluate"
            f" {result.run_dir} --checkpoint best plays them"
        )
    troubles = [f"restarts: {result.restarts}"] if result.restarts else []
    troubles += [f"{count:,} dropped ({why})" for why, count in result.dropped.items() if count]
    repeat = f"repeat it: {result.command}" if result.command else ""
    lines = [outcome, *result.problems(), tasks, collapse, work, ", ".join(troubles)]
    return [
        line
        for line in (*lines, result.bottleneck, repeat, *_next_commands(result), result.run_dir)
        if line
    ]


def _next_commands(result: RunResult) -> list[str]:
    """What can be done with the run now."""
    run = shlex.quote(result.run_dir)
    if not result.run_dir or result.stopped_by == "failure":
        return []
    if result.stopped_by == "interrupt":
        return [f"continue it: veldt resume {run}"]
    more = f"--total-env-steps {2 * result.env_steps}"
    if result.stopped_by == "seconds":
        more = f"--max-seconds {2 * math.ceil(result.wall_seconds)}"
    return [
        f"look at it: veldt evaluate {run}, or veldt watch {run}",
        f"use it: veldt export {run} --out policy.onnx, or veldt resume {run} {more}",
    ]


def number(value: float | None) -> str:
    """A return or a lag in few characters; a dash while it is not known."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
