# SPDX-License-Identifier: Apache-2.0
"""The program `veldt`, and `python -m veldt`.

Signals are handled before slow imports, so that a job ended while it starts leaves a result.
"""

import gc
import signal
import sys

from veldt.run.process import defer_termination, open_closed_streams


def main() -> int:
    open_closed_streams()
    is_run = sys.argv[1:2] in (["train"], ["resume"])
    if is_run:
        defer_termination()
        gc.disable()  # imports make objects that stay; collecting takes a tenth of the start
    from veldt.cli.main import main as command

    code = command()
    if is_run:  # everything is saved, so another signal must not change the exit code
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(main())
