# SPDX-License-Identifier: Apache-2.0
"""Several learners that take every step together over torch.distributed: all of them add up their
gradients and running statistics, and each takes the same step by itself. Only while a group forms
does anything wait in a call: a sum that is under way is looked at between steps, so that a run can
be saved, stopped or go on without a learner that died."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from veldt.context import NodeContext
from veldt.networks import FlatParameters, load_moment_sums, moment_sums
from veldt.optimizers import OptimizerOptions, make_optimizer
from veldt.ports import Gradient, GradientSink
from veldt.role import Arrays
from veldt.roles.gradients.meeting import Meeting

_FORMING_SECONDS = 0.02  # how often a learner that is not yet in a group looks for it
_NCCL_SECONDS = 0.001  # nccl tells nobody when it is done


@dataclass(eq=False)
class AllReduce(GradientSink):
    """One learner of the group. With the reduction "mean" each gradient weighs as much as the rows
    it is the mean of, so that the result is that of one learner with the joined batch; with "sum"
    they are added."""

    optimizer: OptimizerOptions
    meeting: Meeting
    reduction: str = "mean"

    def open(self, context: NodeContext, flat: FlatParameters) -> None:
        self._flat, self._context = flat, context
        self._optimizer = make_optimizer(self.optimizer, flat.vector[: flat.num_trained])
        self._device = str(flat.vector.device)
        self.meeting.open(context, self._device)
        self._is_member = False
        self._under_way: list[dist.Work] = []
        self._version = 0
        self._not_finite = context.telemetry.counter("dropped.not_finite")
        self._lost = context.telemetry.counter("dropped.other_version")
        self._norm = context.telemetry.gauge("gradient_norm")

    def patience_seconds(self) -> float:
        if not self._is_member:
            return _FORMING_SECONDS
        return _NCCL_SECONDS if self._under_way and self._sums.is_cuda else float("inf")

    def begin(self, version: int) -> int | None:
        if not self._is_member:
            self._version = version
            try:
                if not self._join():
                    return None
            except (RuntimeError, OSError):  # somebody died meanwhile
                self._leave()
                return None
            version = self._version
        elif self._under_way:
            stepped = self._finished()
            if stepped is None:
                return None
            version = stepped
        self._before = moment_sums(self._flat.module)  # without the batch that comes now
        return version

    def _join(self) -> bool:
        """Whether this learner is in a group, all of whose members now have the same weights."""
        backend = self.meeting.join()
        if backend is None:
            return False
        # gloo adds up in the host's memory.
        device = self._device if backend == "nccl" else "cpu"
        self._sums = torch.zeros(self._flat.num_trained + 2, device=device)
        self._statistics = moment_sums(self._flat.module).to(device)
        self._take_newest(device)
        self._is_member = True
        return True

    @torch.no_grad()
    def _take_newest(self, device: str) -> None:
        """All go on with what the one of them has that came furthest; among equals, with the
        moments of the one that was not restarted."""
        own = torch.tensor([self._version, -self._context.incarnation], device=device)
        found = [torch.empty_like(own) for _ in range(self.meeting.size)]
        dist.all_gather(found, own)
        furthest = [tuple(entry.tolist()) for entry in found]
        source = furthest.index(max(furthest))
        for vector in (self._flat.vector, self._optimizer.state_vector):
            carried = vector.detach().to(device, copy=True)
            dist.broadcast(carried, source)
            vector.copy_(carried)
        self._version = furthest[source][0]

    def apply(self, gradient: Gradient) -> int | None:
        weight = float(gradient.rows) if self.reduction == "mean" else 1.0
        torch.mul(gradient.vector.to(self._sums.device), weight, out=self._sums[:-2])
        self._sums[-2] = gradient.rows
        self._sums[-1] = gradient.rows * gradient.learning_rate_scale
        self._statistics.copy_(moment_sums(self._flat.module) - self._before)
        # Until the step is taken, this learner is as it was: it may be saved or lose the others.
        load_moment_sums(self._flat.module, self._before)
        self._version = gradient.version
        try:
            self._under_way = [self._begun(self._sums)]
            if self._statistics.numel():
                self._under_way.append(self._begun(self._statistics))
        except RuntimeError:
            self._leave()
            return None
        return self._finished()

    def _begun(self, tensor: torch.Tensor) -> dist.Work:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.get_future().add_done_callback(lambda _: self._context.wake())
        return work

    def _finished(self) -> int | None:
        """The next version, once the sums are there; None while they are not, or never will be."""
        if not all(work.is_completed() for work in self._under_way):
            return None
        try:
            for work in self._under_way:
                work.wait()  # it is done: raises what went wrong, and orders streams on a GPU
        except RuntimeError:
            self._leave()
            return None
        self._under_way = []
        return self._step()

    def _step(self) -> int:
        rows, scaled_rows = self._sums[-2:].tolist()
        total = self._sums[:-2].to(self._device)
        if self.reduction == "mean":
            total.div_(max(1.0, rows))
        if not self._optimizer.step(total, scaled_rows / max(1.0, rows)):
            self._not_finite.add()
        added = self._statistics.cpu()
        # All decide alike; a bad batch would otherwise stay in the statistics for ever.
        is_good = bool(torch.isfinite(added).all())
        load_moment_sums(self._flat.module, self._before + added if is_good else self._before)
        self._norm.set(self._optimizer.last_norm)
        return self._version + 1  # also when nothing changed: the others count it, too

    def _leave(self) -> None:
        """Forget the gradient that was under way, and wait until there is a group again."""
        if self._under_way:
            self._lost.add()
        self._under_way, self._is_member = [], False
        self.meeting.leave()

    def state(self) -> Arrays:
        return {"optimizer": self._optimizer.state_vector.cpu().numpy()}

    def load_state(self, state: Arrays) -> None:
        if "optimizer" in state:  # else it was saved by a learner that did not step itself
            self._optimizer.load(torch.from_numpy(state["optimizer"]))
