# SPDX-License-Identifier: Apache-2.0
"""Access to streams: a token for every client, and TLS between machines."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from veldt.errors import ConfigurationError

TOKEN_HEADER = "veldt-token"
TLS_NAME = "veldt"
"""The name in the certificate, which holds no address because server addresses change."""
_CURVE = "ec_paramgen_curve:P-256"


@dataclass(frozen=True)
class Security:
    """A run's token, and its certificate where TLS is used; its repr shows neither."""

    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    admits_all: bool = False
    """No token is needed: only for addresses that other machines cannot reach."""

    def for_clients(self) -> Security:
        """A copy without the server's private key."""
        return Security(self.token, self.certificate)

    def admits(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether a caller sent the token; compared in constant time."""
        if self.admits_all:
            return True
        given = next((value for name, value in metadata if name == TOKEN_HEADER), "")
        text = given if isinstance(given, bytes) else given.encode()
        return bool(self.token) and hmac.compare_digest(text, self.token.encode())


def is_on_this_machine(address: str) -> bool:
    """Whether a gRPC address is a Unix socket or a loopback interface."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(address: str, security: Security) -> None:
    """Refuse an address that other machines can reach without token and TLS."""
    if is_on_this_machine(address):
        return
    if not (security.token and security.certificate and security.key):
        raise ConfigurationError(
            f"{address} can be reached from other machines without token and TLS; set VELDT_TOKEN,"
            " VELDT_CERTIFICATE and VELDT_KEY (docs/serving.md), or listen on 127.0.0.1 and let"
            " clients come over ssh -L"
        )


def from_environment(address: str) -> Security:
    """The security of external clients: $VELDT_TOKEN, $VELDT_CERTIFICATE and $VELDT_KEY (files).

    All three are required where other machines can reach `address`."""
    token = os.environ.get("VELDT_TOKEN", "")
    files = [os.environ.get(name) for name in ("VELDT_CERTIFICATE", "VELDT_KEY")]
    try:
        certificate, key = (Path(file).read_bytes() if file else None for file in files)
    except OSError as error:
        raise ConfigurationError(f"the certificate or its key cannot be read: {error}") from error
    security = Security(token, certificate, key, admits_all=not token)
    check_address(address, security)
    return security


def with_certificate(security: Security) -> Security:
    """`security` with a new key and a self-signed certificate, the only one its clients trust."""
    with tempfile.TemporaryDirectory(prefix="veldt-") as directory:
        key, certificate = Path(directory, "key"), Path(directory, "certificate")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", _CURVE, "-nodes"]
        command += ["-days", "365", "-subj", f"/CN={TLS_NAME}"]
        command += ["-addext", f"subjectAltName=DNS:{TLS_NAME}"]
        command += ["-keyout", str(key), "-out", str(certificate)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigurationError(
                "central inference between machines needs TLS, and no certificate could be made"
                f" ({error}); install openssl, or keep all nodes on one machine"
            ) from error
        return replace(security, certificate=certificate.read_bytes(), key=key.read_bytes())
