"""How does a program talk to HarchOS? A typed client, sync and async, over one core. Imports only `harch.base`."""

from harch.sdk.aio import AsyncClient
from harch.sdk.client import Client
from harch.sdk.exchange import ApiError
from harch.sdk.settings import Settings, settings_from_env
from harch.sdk.types import Event, Explanation, Gpu, Hub, Page, Workload

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "Event",
    "Explanation",
    "Gpu",
    "Hub",
    "Page",
    "Settings",
    "Workload",
    "settings_from_env",
]
