# The operator: api/ and operator/ in a virtual environment of their own, on a Python base.
# Build from the project's root:  buildah bud -f docker/operator.Dockerfile -t gnnpipe-operator .
# BASE_IMAGE needs python3 >= 3.11 with venv, glibc and CA certificates; any Debian with python3-venv will do.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
RUN python3 -m venv /app
WORKDIR /src
COPY constraints.txt pyproject.toml README.md ./
COPY docker/sbom.py docker/sbom.py
COPY api api
COPY operator operator
# pip itself goes too: nothing in the finished image can install or build anything.
RUN /app/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[operator]' \
    && /app/bin/pip uninstall --yes --quiet pip setuptools \
    && rm -f /app/bin/gnnpipe \
    && /app/bin/python docker/sbom.py gnnpipe-operator > /app/sbom.cdx.json

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gnnpipe-operator" \
      org.opencontainers.image.description="Kubernetes operator for GNNPipeJobs" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 65532 gnnpipe \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gnnpipe
COPY --from=build /app /app
# Root's file system may be read-only: no bytecode is written, and HOME is the one folder that is mounted writable.
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 8081 9401
ENTRYPOINT ["gnnpipe-operator"]
