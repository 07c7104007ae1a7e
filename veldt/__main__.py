# SPDX-License-Identifier: Apache-2.0
"""The program `veldt`, and `python -m veldt`: it listens for signals before it imports anything
that takes time, so that a job that is ended while it starts still leaves a result."""

import gc
import signal
import sys

from veldt.run.process import defer_termination


def main() -> int:
    is_run = sys.argv[1:2] in (["train"], ["resume"])
    if is_run:
        defer_termination()
        gc.disable()  # imports only make objects that stay; looking through them takes a tenth
    from veldt.cli.main import main as command

    code = command()
    if is_run:  # all is saved: another signal may not change what the exit code says
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(main())
