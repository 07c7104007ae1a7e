# SPDX-License-Identifier: Apache-2.0
"""Copies between host and accelerator, and waiting for it without using a core."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

import numpy as np
import torch

from veldt.types import Batch

_WORTH_LOCKING_BYTES = 1 << 20
_PAGE = 4096

RECORDING = threading.RLock()
"""Held while a CUDA graph is recorded, and for work that must not be part of it.

Threads of one process share the device."""


class Completion:
    """Sleeps until the work queued on a device is done; on the CPU it returns at once.

    CUDA's own waits spin, which takes a core from the environments; a blocking event does not."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(blocking=True) if device.type == "cuda" else None

    def wait(self) -> None:
        if self._event is not None:
            self._event.record()
            self._event.synchronize()


class Upload:
    """Copies batches to a device.

    Memory that stays allocated is page-locked on first use, so that the device reads it directly;
    other memory is copied once more by a core."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seen: set[int] = set()
        self._locked: dict[int, range] = {}
        """The pages of what is locked, by its address."""

    def __call__(self, batch: Batch) -> dict[str, torch.Tensor]:
        tensors = {name: torch.from_numpy(array) for name, array in batch.arrays.items()}
        if self._device.type == "cpu":
            return tensors
        if batch.memory_stays and self._device.type == "cuda":
            for tensor in tensors.values():
                self._lock(tensor)
        return {name: t.to(self._device, non_blocking=True) for name, t in tensors.items()}

    def _lock(self, tensor: torch.Tensor) -> None:
        address = tensor.data_ptr()
        if tensor.nbytes < _WORTH_LOCKING_BYTES or address in self._seen:
            return
        self._seen.add(address)
        pages = range(address // _PAGE, (address + tensor.nbytes - 1) // _PAGE + 1)
        locked = self._locked.values()
        # A page cannot be locked twice: an array that shares one with another is copied as before.
        if any(max(pages[0], other[0]) <= min(pages[-1], other[-1]) for other in locked):
            return
        try:
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, tensor.nbytes, 0))
            self._locked[address] = pages
        except RuntimeError:  # copied as before; clear the error, or the next launch reports it
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)

    def close(self) -> None:
        """Unlock everything, before the memory is freed."""
        for address in self._locked:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._locked.clear()


class Download:
    """Copies a vector from a device to page-locked memory; one on the host is not copied."""

    def __init__(self, device: torch.device) -> None:
        self._completion = Completion(device)
        self._memory: torch.Tensor | None = None

    def __call__(self, tensor: torch.Tensor) -> np.ndarray:
        if not tensor.is_cuda:
            return tensor.numpy()
        if self._memory is None:
            self._memory = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._memory.copy_(tensor, non_blocking=True)
        self._completion.wait()
        return self._memory.numpy()


@dataclass(frozen=True)
class Compute:
    """Where and with how many CPU threads a learner computes."""

    device: str = "cpu"
    threads: int = 1
