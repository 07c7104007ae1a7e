# SPDX-License-Identifier: Apache-2.0
"""Networks that see a board as a board, for `--network veldt.games.board_networks:connect_four`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veldt.games.connect_four import COLUMNS, ROWS
from veldt.types import EnvironmentSpec

_FOUR = 4
_PLANES = 3


class FourInARow(nn.Module):
    """A convolution over all squares of 4 x 4 cells, which hold every place for four in a row, and
    two layers over what it finds and the board itself."""

    def __init__(self, filters: int = 32, sizes: tuple[int, int] = (128, 128)) -> None:
        super().__init__()
        self.squares = nn.Conv2d(_PLANES, filters, _FOUR)
        found = filters * (ROWS - _FOUR + 1) * (COLUMNS - _FOUR + 1) + _PLANES * ROWS * COLUMNS
        self.hidden = nn.Sequential(
            nn.Linear(found, sizes[0]), nn.ReLU(), nn.Linear(sizes[0], sizes[1]), nn.ReLU()
        )

    def forward(self, board: Tensor) -> Tensor:
        seen = torch.relu(self.squares(board.view(-1, _PLANES, ROWS, COLUMNS)))
        features: Tensor = self.hidden(torch.cat([seen.flatten(1), board], dim=1))
        return features


def connect_four(spec: EnvironmentSpec) -> nn.Module:
    if spec.id != "veldt:connect_four":
        raise ValueError(f"this network plays veldt:connect_four, not {spec.id}; use mlp or auto")
    return FourInARow()
