OPENAPI: dict[str, object] = {}
