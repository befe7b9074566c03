"""How does a hub without a certificate ask one question? A TLS connection, one frame each way, with a deadline."""

from __future__ import annotations

import asyncio
import ssl

from harch.base.errors import HarchError
from harch.federation.identity.members import Address
from harch.federation.identity.names import HubName
from harch.federation.links.connection import peer_certificate
from harch.federation.links.frames import FrameReader, Kind, frame

ANSWERED_WITHIN_S = 15.0
ANSWER_BYTES_MAX = 1024 * 1024
_READ_BYTES = 64 * 1024


async def ask_as_stranger(
    address: Address, context: ssl.SSLContext, expected: HubName | None, question: bytes
) -> bytes:
    """The answer. Raises E0802 if nobody answers, E0110 before asking if it is another hub than `expected`."""
    try:
        async with asyncio.timeout(ANSWERED_WITHIN_S):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname="", ssl_shutdown_timeout=1.0
            )
            try:
                _check(address, expected, writer.get_extra_info("peercert"))
                writer.write(frame(Kind.STRANGER, question))
                return await _answer(reader)
            finally:
                writer.close()
    except ssl.SSLError as error:
        raise HarchError(
            "E0110", f"{address} is not a hub of that federation: {error.reason or error}", hint="check the invitation"
        ) from error
    except (OSError, TimeoutError, EOFError) as error:
        raise HarchError(
            "E0802", f"no answer from {address}: {error}", hint="is the hub that holds the authority being served?"
        ) from error


def _check(address: Address, expected: HubName | None, shown: dict[str, object] | None) -> None:
    certificate = peer_certificate(shown) if shown else None
    if expected is not None and (certificate is None or certificate.name != expected):
        raise HarchError("E0110", f"the hub at {address} is not {expected.hub_id}", hint="ask for a new invitation")


async def _answer(reader: asyncio.StreamReader) -> bytes:
    frames = FrameReader()
    frames.body_bytes_max = ANSWER_BYTES_MAX
    while not frames.fault and (data := await reader.read(_READ_BYTES)):
        for kind, body in frames.feed(data):
            if kind == Kind.STRANGER:
                return body
    raise EOFError(frames.fault or "it closed the connection")
