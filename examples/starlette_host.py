"""stretto in Starlette: uvicorn --app-dir examples starlette_host:app, with STRETTO_DATABASE_URL."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import stretto


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Run one component as long as the application."""
    async with stretto.open_component(os.environ["STRETTO_DATABASE_URL"]) as app.state.chat:
        yield


async def answer_problem(_: Request, error: Exception) -> Response:
    """Answer as stretto's own HTTP API does."""
    problem = stretto.problem_of(error)
    return Response(problem.body, problem.status, problem.headers)


async def groups(request: Request) -> Response:
    """Create a group for the user whom the host has authenticated, or list the user's groups."""
    user, chat = request.headers["X-User"], request.app.state.chat
    if request.method == "POST":
        key = request.headers.get("Idempotency-Key", "")
        answer = await chat.create_from(user, key, await request.body())
        return Response(answer.document, 201, answer.headers)
    return JSONResponse([each.name for each in await chat.groups(user)])


ROUTES = [Route("/groups", groups, methods=["GET", "POST"])]
ERRORS = {stretto.StrettoError: answer_problem}
app = Starlette(routes=ROUTES, exception_handlers=ERRORS, lifespan=lifespan)
