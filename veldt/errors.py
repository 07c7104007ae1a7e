# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on."""


class ConfigurationError(ValueError):
    """A bad input, with a remedy; the CLI prints it and exits with 2."""
