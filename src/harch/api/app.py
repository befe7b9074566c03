"""What does one hub serve over HTTP? The application, put together from its routes."""

from __future__ import annotations

from fastapi import FastAPI

from harch.api.front import Front
from harch.api.hub_port import HubPort
from harch.api.limits import Limits
from harch.api.streams import Streams


def create_app(hub: HubPort, *, limits: Limits | None = None) -> Front:
    """The ASGI application of `hub`."""
    limits = limits or Limits()
    inner = FastAPI()
    return Front(hub, inner, limits, Streams(limits))
