"""stretto in Django: uvicorn --app-dir examples --lifespan on django_host:application."""

import os
from typing import Any

from django import conf, http, urls
from django.core.asgi import get_asgi_application

import stretto

conf.settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=[])
django_application, running = get_asgi_application(), dict[str, stretto.Handle]()


async def groups(request: Any) -> Any:
    """Create a group for the user whom the host has authenticated, or list the user's groups."""
    user, key = request.headers["X-User"], request.headers.get("Idempotency-Key", "")
    try:
        if request.method == "POST":
            answer = await running["chat"].create_from(user, key, request.body)
            return http.HttpResponse(answer.document, status=201, headers=answer.headers)
        found = await running["chat"].groups(user)
        return http.JsonResponse([each.name for each in found], safe=False)
    except stretto.StrettoError as error:
        problem = stretto.problem_of(error)
        return http.HttpResponse(problem.body, status=problem.status, headers=problem.headers)


async def application(scope: Any, receive: Any, send: Any) -> Any:
    """Run one component as long as the server; Django itself has no lifespan."""
    if scope["type"] != "lifespan":
        return await django_application(scope, receive, send)
    await receive()
    async with stretto.open_component(os.environ["STRETTO_DATABASE_URL"]) as running["chat"]:
        await send({"type": "lifespan.startup.complete"})
        await receive()
    return await send({"type": "lifespan.shutdown.complete"})


urlpatterns = [urls.path("groups", groups)]
