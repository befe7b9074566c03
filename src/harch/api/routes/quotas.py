"""What may tenants hold at this hub, and what do they hold?"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from harch.api.access import tenant_scope
from harch.api.dialects.pages import cut
from harch.api.routes.context import PER_PAGE, Here, PageNumber, PerPage, Viewer, reply
from harch.api.schema import answers
from harch.wire.pages import Page
from harch.wire.quotas import TenantQuota

router = APIRouter(tags=["workloads"])


@router.get(
    "/quotas", responses=answers(Page[TenantQuota]), summary="What tenants hold at this hub, and what they may hold"
)
async def list_quotas(caller: Viewer, here: Here, page: PageNumber = 1, per_page: PerPage = PER_PAGE) -> Response:
    """Of the caller's tenant; operators see all tenants that have work or a quota of their own."""
    scope = tenant_scope(caller)
    return reply(cut(here.hub.quotas(tenant=scope), page=page, per_page=per_page))
