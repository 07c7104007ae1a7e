# SPDX-License-Identifier: Apache-2.0
"""`python -m veldt` is `veldt`."""

import sys

from veldt.command_line.main import main

if __name__ == "__main__":
    sys.exit(main())
