# The operator: api/ and operator/ in a virtual environment of their own, on a Python base.
# Build from the project's root:  buildah bud -f docker/operator.Dockerfile -t gnnpipe-operator .
# BASE_IMAGE needs python3 >= 3.11 with venv, glibc and CA certificates; any Debian with python3-venv will do.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS requirements
WORKDIR /src
COPY pyproject.toml docker/requirements.py ./
RUN python3 requirements.py operator > requirements.txt

# Made anew only when a dependency changes. pip stays outside of /app: what runs can install or build nothing.
FROM ${BASE_IMAGE} AS dependencies
RUN python3 -m venv /pip && python3 -m venv --without-pip /app
COPY constraints.txt ./
COPY --from=requirements /src/requirements.txt ./
RUN /pip/bin/pip --python /app/bin/python install --no-cache-dir --disable-pip-version-check \
      -c constraints.txt -r requirements.txt

FROM dependencies AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY operator operator
COPY docker/sbom.py docker/sbom.py
RUN /pip/bin/pip --python /app/bin/python install --no-cache-dir --disable-pip-version-check \
      --no-deps --prefix /gnnpipe . \
    && rm /gnnpipe/bin/gnnpipe \
    && PYTHONPATH="$(echo /gnnpipe/lib/python3*/site-packages)" \
       /app/bin/python docker/sbom.py gnnpipe-operator > /gnnpipe/sbom.cdx.json

FROM ${BASE_IMAGE}
RUN groupadd --gid 65532 gnnpipe \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gnnpipe
COPY --from=dependencies /app /app
COPY --from=build /gnnpipe /app
# Root's file system may be read-only: no bytecode is written, and HOME is the one folder that is mounted writable.
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 8081 9401
ENTRYPOINT ["gnnpipe-operator"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gnnpipe-operator" \
      org.opencontainers.image.description="Kubernetes operator for GNNPipeJobs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
