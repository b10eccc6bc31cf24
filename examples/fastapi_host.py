"""stretto in FastAPI: uvicorn --app-dir examples fastapi_host:app, with STRETTO_DATABASE_URL."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response

import stretto


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run one component as long as the application."""
    async with stretto.open_component(os.environ["STRETTO_DATABASE_URL"]) as app.state.chat:
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(stretto.StrettoError)
async def answer_problem(_: Request, error: Exception) -> Response:
    """Answer as stretto's own HTTP API does."""
    problem = stretto.problem_of(error)
    return Response(problem.body, problem.status, problem.headers)


@app.post("/groups")
async def create(request: Request) -> Response:
    """Create a group for the user whom the host has authenticated; here a header names it."""
    user, key = request.headers["X-User"], request.headers.get("Idempotency-Key", "")
    answer = await request.app.state.chat.create_from(user, key, await request.body())
    return Response(answer.document, 201, answer.headers)


@app.get("/groups")
async def list_groups(request: Request) -> list[str]:
    """Return the names of the user's groups."""
    return [each.name for each in await request.app.state.chat.groups(request.headers["X-User"])]
