# SPDX-License-Identifier: Apache-2.0
"""Several architectures and seeds on one environment under one budget, and a report about them."""
