# SPDX-License-Identifier: Apache-2.0
"""Slow transcriptions of each game's rules in plain Python, to check the vectorised games by.

A state is the list of moves and the cards; everything is worked out again from them each time.
"""

import itertools


class SlowKuhn:
    """ "p" and "b" in a string; the five ends are listed one by one."""

    actions = "pb"
    deals = tuple(itertools.permutations("JQK", 2))

    def __init__(self, deal):
        self.cards, self.history = self.deals[deal], ""

    def play(self, action):
        self.history += self.actions[action]

    @property
    def over(self):
        return self.history in ("pp", "bp", "bb", "pbp", "pbb")

    @property
    def turn(self):
        return len(self.history) % 2

    def legal(self):
        return [0, 1]

    def rewards(self):
        higher = 0 if "JQK".index(self.cards[0]) > "JQK".index(self.cards[1]) else 1
        winner, amount = {
            "pp": (higher, 1),
            "bp": (0, 1),
            "bb": (higher, 2),
            "pbp": (1, 1),
            "pbb": (higher, 2),
        }[self.history]
        return (amount, -amount) if winner == 0 else (-amount, amount)

    def observation(self, player):
        seen = [float(player == 0), float(player == 1)]
        seen += [float(self.cards[player] == card) for card in "JQK"]
        for place in range(3):
            move = self.history[place] if place < len(self.history) else None
            seen += [float(move == "p"), float(move == "b")]
        return seen


class SlowLeduc:
    """Rounds are cut out of the string of moves: a round ends with a call that is not its first."""

    actions = "fcr"
    deals = tuple(itertools.permutations(["J1", "J2", "Q1", "Q2", "K1", "K2"], 3))

    def __init__(self, deal):
        self.cards, self.history = self.deals[deal], ""

    def play(self, action):
        self.history += self.actions[action]

    def rounds(self):
        rounds = [""]
        for move in self.history:
            rounds[-1] += move
            if move == "c" and len(rounds[-1]) > 1:
                rounds.append("")
        return rounds

    def pot(self):
        """What each has paid, and whose turn it is."""
        paid = [1, 1]
        for number, moves in enumerate(self.rounds()[:2]):
            turn = 0
            for move in moves:
                if move != "f":
                    paid[turn] = max(paid) + (0 if move == "c" else (2, 4)[number])
                turn = 1 - turn
        return paid, turn

    @property
    def over(self):
        return "f" in self.history or len(self.rounds()) == 3

    @property
    def turn(self):
        return self.pot()[1]

    def legal(self):
        paid, turn = self.pot()
        legal = [1]
        if paid[turn] < paid[1 - turn]:
            legal.append(0)
        if self.rounds()[-1].count("r") < 2:
            legal.append(2)
        return sorted(legal)

    def rewards(self):
        paid, turn = self.pot()
        if "f" in self.history:
            winner = turn
        else:
            hands = []
            for card in self.cards[:2]:
                hands.append((card[0] == self.cards[2][0], "JQK".index(card[0])))
            if hands[0] == hands[1]:
                return (0, 0)
            winner = 0 if hands[0] > hands[1] else 1
        amount = paid[1 - winner]
        return (amount, -amount) if winner == 0 else (-amount, amount)

    def observation(self, player):
        names = ["J1", "J2", "Q1", "Q2", "K1", "K2"]
        rounds = self.rounds()
        seen = [float(player == 0), float(player == 1)]
        seen += [float(self.cards[player] == card) for card in names]
        seen += [float(len(rounds) > 1 and self.cards[2] == card) for card in names]
        for number in range(2):
            moves = rounds[number] if number < len(rounds) else ""
            for place in range(4):
                move = moves[place] if place < len(moves) else None
                seen += [float(move == "c"), float(move == "r")]
        return seen


class _SlowBoard:
    """A grid of " ", "x" and "o"; `length` in any direction wins."""

    rows = columns = length = 3

    def __init__(self, deal=0):
        self.grid = [[" "] * self.columns for _ in range(self.rows)]
        self.history = []

    @property
    def turn(self):
        return len(self.history) % 2

    def place(self, action):
        raise NotImplementedError

    def play(self, action):
        row, column = self.place(action)
        assert self.grid[row][column] == " "
        self.grid[row][column] = "xo"[self.turn]
        self.history.append(action)

    def wins(self, mark):
        for row, column in itertools.product(range(self.rows), range(self.columns)):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + down * i, column + right * i) for i in range(self.length)]
                if all(
                    0 <= r < self.rows and 0 <= c < self.columns and self.grid[r][c] == mark
                    for r, c in cells
                ):
                    return True
        return False

    @property
    def over(self):
        return self.wins("x") or self.wins("o") or len(self.history) == self.rows * self.columns

    def rewards(self):
        if self.wins("x"):
            return (1, -1)
        return (-1, 1) if self.wins("o") else (0, 0)

    def observation(self, player):
        cells = [cell for row in self.grid for cell in row]
        marks = (" ", "xo"[player], "xo"[1 - player])
        return [float(cell == mark) for mark in marks for cell in cells]


class SlowTicTacToe(_SlowBoard):
    def place(self, action):
        return divmod(action, 3)

    def legal(self):
        return [action for action in range(9) if action not in self.history]


class SlowConnectFour(_SlowBoard):
    """Row 0 is the bottom."""

    rows, columns, length = 6, 7, 4

    def place(self, action):
        return self.history.count(action), action

    def legal(self):
        return [column for column in range(7) if self.history.count(column) < 6]
