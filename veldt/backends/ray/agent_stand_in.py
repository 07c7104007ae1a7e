# SPDX-License-Identifier: Apache-2.0
"""A program in the place of Ray's agents, which serve a dashboard and environments made to order: a
raylet will not live without them. This one does nothing, and ends with its raylet."""

import os
import time

_LOOK_SECONDS = 1.0


def main() -> None:
    raylet = os.getppid()
    while os.getppid() == raylet:
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main()
