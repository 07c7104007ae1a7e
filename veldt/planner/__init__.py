# SPDX-License-Identifier: Apache-2.0
"""`veldt plan`: what an architecture would do on a machine one does not have."""
