"""How strict are the connections? TLS 1.3 only, both sides show a certificate of the federation's authority.

Host names are not compared: a hub is who its certificate names as a URI, wherever it stands. The links do that check.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from harch.base.errors import HarchError


def server_context(authority: bytes, hub_file: Path, *, admits_strangers: bool) -> ssl.SSLContext:
    """`admits_strangers`: hubs that want to join have no certificate yet. One that is shown must hold all the same."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, authority)
    context.verify_mode = ssl.CERT_OPTIONAL if admits_strangers else ssl.CERT_REQUIRED
    context.num_tickets = 0  # a resumed session would skip the check of the certificate
    _load(context, hub_file)
    return context


def client_context(authority: bytes, hub_file: Path | None) -> ssl.SSLContext:
    """Without `hub_file`: for a hub that is about to join and has no certificate yet."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, authority)
    if hub_file is not None:
        _load(context, hub_file)
    return context


def _load(context: ssl.SSLContext, hub_file: Path) -> None:
    """Raises E1005 for a key and a certificate that do not fit together."""
    try:
        context.load_cert_chain(hub_file)
    except (ssl.SSLError, OSError) as error:
        hint = "restore it, or remove the folder and join again"
        raise HarchError("E1005", f"{hub_file} cannot be used", hint=hint) from error


def _context(protocol: int, authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=authority)
    return context
