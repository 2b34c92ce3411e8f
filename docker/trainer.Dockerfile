# The trainer: api/ and trainer/ with torch, in a virtual environment of their own, on a Python base.
# Build from the project's root:  buildah bud -f docker/trainer.Dockerfile -t gnnpipe-trainer .
# The wheels of the default index bring CUDA and NCCL along, so the base needs neither: only python3 >= 3.11
# with venv, glibc and CA certificates. The node's container runtime adds the driver.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
# Where torch comes from: the URL of another index (one CUDA version, ROCm or CPU only); empty = pip's default.
ARG TORCH_INDEX=
RUN python3 -m venv /app
WORKDIR /src
COPY constraints.txt ./
# torch by itself, before the sources: a layer of gigabytes that a change of the code need not make anew.
RUN /app/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt \
      ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} torch
COPY pyproject.toml README.md ./
COPY docker/sbom.py docker/sbom.py
COPY api api
COPY trainer trainer
# pip itself goes too: nothing in the finished image can install or build anything.
RUN /app/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[trainer]' \
    && /app/bin/pip uninstall --yes --quiet pip \
    && rm -f /app/bin/gnnpipe-operator \
    && /app/bin/python docker/sbom.py gnnpipe-trainer > /app/sbom.cdx.json

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gnnpipe-trainer" \
      org.opencontainers.image.description="Pipelined full-graph training of deep graph neural networks" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# torch asks for the user's name, so the uid must have one.
RUN groupadd --gid 65532 gnnpipe \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gnnpipe
COPY --from=build /app /app
# Root's file system may be read-only: no bytecode is written, and every cache goes to the writable /tmp.
# OUTDATED_IGNORE: ogb would ask the internet for a newer version at import.
# NVIDIA_VISIBLE_DEVICES is left alone: the device plugin sets it to the GPUs that the pod was given.
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib \
    OUTDATED_IGNORE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
WORKDIR /tmp
EXPOSE 9400 29500
ENTRYPOINT ["gnnpipe"]
