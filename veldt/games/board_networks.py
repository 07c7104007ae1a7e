# SPDX-License-Identifier: Apache-2.0
"""Networks that see a board as a board, for `--network veldt.games.board_networks:connect_four`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veldt.games.connect_four import CELLS, COLUMNS, ROWS, cell_windows
from veldt.types import EnvironmentSpec

_MAPS = 11
_SUMMARIES = 4


class FourInARow(nn.Module):
    """Knows the rules, and learns what follows from them: two layers over maps of the board that
    say where a stone would make four, and where three or two could still grow to four. What can be
    won or must be stopped at once, column by column, also goes past the layers to the heads."""

    places: Tensor
    """float32 [42, 69]: 1 where a cell belongs to a place for four in a row."""

    def __init__(self, sizes: tuple[int, int] = (128, 128)) -> None:
        super().__init__()
        self.register_buffer("places", torch.from_numpy(cell_windows()).float())
        self.hidden = nn.Sequential(
            nn.Linear(_MAPS * CELLS, sizes[0]), nn.ReLU(), nn.Linear(*sizes), nn.ReLU()
        )

    def forward(self, board: Tensor) -> Tensor:
        maps, summaries = self._maps(board)
        features: Tensor = self.hidden(maps)
        return torch.cat([features, summaries], dim=1)

    @torch.no_grad()
    def _maps(self, board: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 11 * 42] and [N, 4 * 7]."""
        planes = board.view(-1, 3, CELLS)
        empty, stones = planes[:, :1], planes[:, 1:]
        maps = board.new_empty(len(planes), _MAPS, CELLS)
        playable, urgent = maps[:, 2:3], maps[:, -_SUMMARIES:]
        maps[:, :2] = stones
        playable.copy_(empty)
        playable[:, :, COLUMNS:] -= empty[:, :, :-COLUMNS]
        # Nobody can fill a place that both have stones in: 24 is three alone, 16 two alone.
        counts = stones @ self.places
        counts = 8 * counts + counts.flip(1)
        alone = torch.cat([counts == 24, counts == 16], dim=1).to(board.dtype)
        growing = alone @ self.places.T * empty
        threats = growing[:, :2].clamp_(max=1.0)
        maps[:, 3:7] = growing
        torch.mul(threats, playable, out=urgent[:, :2])
        # One row up: where the other may play once a stone has been put below.
        urgent[:, 2:, :COLUMNS] = 0.0
        torch.mul(threats[:, :, COLUMNS:], playable[:, :, :-COLUMNS], out=urgent[:, 2:, COLUMNS:])
        summaries = urgent.view(-1, _SUMMARIES, ROWS, COLUMNS).amax(dim=2)
        return maps.flatten(1), summaries.flatten(1)


def connect_four(spec: EnvironmentSpec) -> nn.Module:
    if spec.id != "veldt:connect_four":
        raise ValueError(f"this network plays veldt:connect_four, not {spec.id}; use mlp or auto")
    return FourInARow()
