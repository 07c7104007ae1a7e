# SPDX-License-Identifier: Apache-2.0
"""The program `veldt`, and `python -m veldt`.

Signals are handled before slow imports, so that a job ended while it starts leaves a result.
"""

import gc
import os
import signal
import sys

from veldt.run.process import OutOfTime, defer_termination, limit_imports, open_closed_streams


def main() -> int:
    open_closed_streams()
    is_run = sys.argv[1:2] in (["train"], ["resume"])
    if is_run:
        defer_termination()
        limit_imports(sys.argv)
        gc.disable()  # imports make objects that stay; collecting takes a tenth of the start
    try:
        from veldt.cli.main import main as command

        code = command()
    except OutOfTime:
        text = "the imports took all of --max-seconds; raise it, or start fewer runs at a time"
        print(f"veldt: nothing was trained: {text}", file=sys.stderr)
        os._exit(2)  # half of the imports would take long to end
    if is_run:  # everything is saved, so another signal must not change the exit code
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(main())
