# SPDX-License-Identifier: Apache-2.0
"""The live display of a run on a terminal: a few rows, redrawn in place."""

from __future__ import annotations

import math
from collections import Counter
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from veldt.telemetry.aggregate import RunTelemetry
from veldt.telemetry.progress import PlainProgress, RunGoal, clock, closing_lines, number
from veldt.telemetry.result import RunResult

_BAR_WIDTH, _NARROWEST_BAR = 24, 6
_OTHER_COLUMNS_WIDTH = 68
_TREND_POINTS = 20
_BLOCKS = "▁▂▃▄▅▆▇█"
_ACCENT, _DONE = "cyan", "green"


class _Console(Console):
    """Rich ends the process when its reader has gone; training must continue."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class LiveProgress(PlainProgress):
    """Return, speed, lag, queues and busy shares. Rich's refresh thread is not used."""

    every_seconds = 0.5

    def __init__(self, goal: RunGoal, stream: TextIO, console: Console | None = None) -> None:
        super().__init__(goal, stream)
        self._console = console or _Console(file=stream, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)
        self._trend: list[float] = []
        self._frames, self._frames_per_point = 0, 1
        self._first_return: float | None = None

    def _show(self, run: RunTelemetry, elapsed_seconds: float) -> None:
        try:
            if not self._live.is_started:
                self._live.start()
            self._live.update(self.frame(run, elapsed_seconds), refresh=True)
        except (OSError, ValueError):  # the terminal has gone
            self._can_write = False

    def _print(self, text: str, style: str = "dim") -> None:
        try:
            self._console.print(Text(text, style=style), soft_wrap=True)
        except (OSError, ValueError):
            self._can_write = False

    def note(self, text: str) -> None:
        self._print(text, "yellow")

    def finish(self, result: RunResult) -> None:
        self._close()
        first, *others = (f"  {line}" for line in closing_lines(result))
        self._print(f"\n{first}", f"bold {_DONE}" if result.reached_target else "bold")
        self._print("\n".join(others), "")

    def _close(self) -> None:
        try:
            self._live.stop()
        except (OSError, ValueError):
            self._can_write = False

    def frame(self, run: RunTelemetry, elapsed_seconds: float) -> RenderableType:
        """The display as one renderable."""
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(min_width=10, style="dim", no_wrap=True)
        rows.add_column(min_width=9, justify="right", no_wrap=True)
        rows.add_column(min_width=_TREND_POINTS, no_wrap=True)
        rows.add_column()
        rows.add_column(style="dim", no_wrap=True)
        self._add_return(rows, run)
        self._add_speed(rows, run)
        for name, fill in run.queue_fill.items():
            rows.add_row("queue", f"{fill:.0%}", Text(name, "dim"), self._bar(fill))
        self._add_busy(rows, run)
        return Padding(Group(self._title(run, elapsed_seconds), "", rows), (1, 0, 0, 2))

    def _title(self, run: RunTelemetry, elapsed_seconds: float) -> Text:
        goal, left = self.goal, self.goal.seconds_left(run, elapsed_seconds)
        title = Text(goal.architecture, f"bold {_ACCENT}").append(f"  {goal.env}", "bold")
        title.append(f"  {goal.backend}, seed {goal.seed}", "dim")
        title.append(f"  {clock(elapsed_seconds)}", "not dim")
        return title if left is None else title.append(f", {clock(left)} left", "dim")

    def _add_return(self, rows: Table, run: RunTelemetry) -> None:
        value, target = run.mean_return_100, self.goal.target_return
        if math.isfinite(value):
            self._remember(value)
        cells: list[RenderableType] = [Text(number(value), "bold"), Text(self._sparkline())]
        if target is not None:
            first = value if self._first_return is None else self._first_return
            way = (value - first) / max(target - first, 1e-9)
            cells += [self._bar(1.0 if value >= target else way), f"target {target:g}"]
        rows.add_row("return", *cells)

    def _remember(self, value: float) -> None:
        """Add a point of the trend over the whole run; when it is full, halve its points."""
        if self._first_return is None:
            self._first_return = value
        if self._frames % self._frames_per_point == 0:
            self._trend.append(value)
        self._frames += 1
        if len(self._trend) > _TREND_POINTS:
            self._trend, self._frames_per_point = self._trend[::2], 2 * self._frames_per_point

    def _sparkline(self) -> str:
        values = self._trend
        if len(values) < 2 or not self._console.encoding.startswith("utf"):
            return ""
        low, high = min(values), max(values)
        scale = (len(_BLOCKS) - 1) / ((high - low) or 1.0)
        return "".join(_BLOCKS[round((value - low) * scale)] for value in values)

    def _add_speed(self, rows: Table, run: RunTelemetry) -> None:
        steps, total, lag = run.env_steps, self.goal.total_env_steps, run.lag
        budget = (self._bar(steps / total), f"{total:,}") if total else ()
        rows.add_row("env steps", f"{steps:,}", _per_second(run.rate("env_steps")), *budget)
        rows.add_row("updates", f"{run.updates:,}", _per_second(run.rate("updates")))
        if lag.count:
            rows.add_row("policy lag", number(lag.mean), Text(f"mean, max {lag.max}", "dim"))

    def _add_busy(self, rows: Table, run: RunTelemetry) -> None:
        nodes, shares = Counter(run.kinds.values()), run.busy_shares()
        for kind, mean in run.kind_busy_shares().items():
            own = [share for name, share in shares.items() if run.kinds[name] == kind]
            spread = f"busy, {min(own):.0%} to {max(own):.0%}" if len(own) > 1 else "busy"
            label = kind.replace("_", " ") + (f" x{nodes[kind]}" if nodes[kind] > 1 else "")
            rows.add_row(label, f"{mean:.0%}", Text(spread, "dim"), self._bar(mean))

    def _bar(self, share: float) -> RenderableType:
        width = min(_BAR_WIDTH, self._console.width - _OTHER_COLUMNS_WIDTH)
        if width < _NARROWEST_BAR or not math.isfinite(share):
            return ""
        return ProgressBar(
            total=1.0,
            completed=min(1.0, max(0.0, share)),
            width=width,
            style="bright_black",
            complete_style=_ACCENT,
            finished_style=_DONE,
        )


def _per_second(rate: float) -> Text:
    return Text(f"{rate:,.0f}/s", "dim")
