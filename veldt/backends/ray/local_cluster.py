# SPDX-License-Identifier: Apache-2.0
"""The program that runs a Ray cluster on this machine for one run, until its standard input closes.

It prints one line: "address HOST:PORT" or "failed CAUSE". Its environment says that the cluster
listens on loopback only and requires a token.
"""

from __future__ import annotations

import logging
import signal
import sys


def main() -> None:
    _ignore_signals()
    import ray

    try:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:
        print(f"failed {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        return
    _ignore_signals()  # ray.init installs handlers of its own
    print(f"address {ray.get_runtime_context().gcs_address}", flush=True)
    sys.stdin.buffer.read()
    ray.shutdown()


def _ignore_signals() -> None:
    """The run handles them, and needs its nodes until they are saved."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not inherited by Ray's processes


if __name__ == "__main__":
    main()
