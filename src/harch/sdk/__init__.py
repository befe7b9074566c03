"""How does a program talk to HarchOS? A typed client, sync and async, over one core.

Imports only `harch.base` and `harch.wire`.
"""

from harch.sdk.aio import AsyncClient
from harch.sdk.client import Client
from harch.sdk.exchange import ApiError
from harch.sdk.settings import Settings, settings_from_env
from harch.sdk.types import (
    Checkpoint,
    Event,
    Explanation,
    FederationPage,
    Gpu,
    Hub,
    HubClosure,
    Page,
    SignedCheckpoint,
    SilentHub,
    TenantQuota,
    Workload,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "Checkpoint",
    "Client",
    "Event",
    "Explanation",
    "FederationPage",
    "Gpu",
    "Hub",
    "HubClosure",
    "Page",
    "Settings",
    "SignedCheckpoint",
    "SilentHub",
    "TenantQuota",
    "Workload",
    "settings_from_env",
]
