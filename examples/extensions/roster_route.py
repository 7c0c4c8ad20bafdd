"""A route for operators: who belongs to the federation."""

from fastapi import APIRouter

from server_app.http.audience import ForOperators
from server_app.routes.access import AnyServices

router = APIRouter(prefix="/v1", route_class=ForOperators)


@router.get("/roster")
async def roster(services: AnyServices) -> dict[int, str]:
    """Number and name of each member."""
    return {member.id: member.name for member in services.roster.members}
