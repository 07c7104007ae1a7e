# SPDX-License-Identifier: Apache-2.0
"""Waiting for an accelerator without wasting a core on it."""

from __future__ import annotations

import torch


class Completion:
    """Sleeps until the work queued on a device is done.

    CUDA's own waits spin, which takes a whole core from the environments; a blocking event does
    not. On the CPU there is nothing to wait for."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(blocking=True) if device.type == "cuda" else None

    def wait(self) -> None:
        if self._event is not None:
            self._event.record()
            self._event.synchronize()
