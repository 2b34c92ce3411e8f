# The trainer: api/ and trainer/ with torch, in a virtual environment of their own, on a Python base.
# Build from the project's root:  buildah bud -f docker/trainer.Dockerfile -t gnnpipe-trainer .
# The wheels of the default index bring CUDA and NCCL along, so the base needs neither: only python3 >= 3.11
# with venv, glibc and CA certificates, and gcc or apt to get it while building. The node's container runtime adds the
# driver.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS requirements
WORKDIR /src
COPY pyproject.toml docker/requirements.py ./
RUN python3 requirements.py trainer > requirements.txt

# Gigabytes, made anew only when a dependency changes. pip stays outside of /app: what runs can install or build
# nothing.
FROM ${BASE_IMAGE} AS dependencies
# Where torch comes from: the URL of another index (one CUDA version, ROCm or CPU only); empty = pip's default.
ARG TORCH_INDEX=
RUN python3 -m venv /pip && python3 -m venv --without-pip /app
COPY constraints.txt ./
COPY --from=requirements /src/requirements.txt ./
RUN /pip/bin/pip --python /app/bin/python install --no-cache-dir --disable-pip-version-check \
      -c constraints.txt -r requirements.txt ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"}

# A compiler for the loops in trainer/gnnpipe_trainer/kernels: without them CPUs are slower, and round otherwise than the
# laptop that a job was tried on. The image itself gets none.
FROM dependencies AS build
RUN command -v gcc || { apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev; }
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY trainer trainer
COPY docker/sbom.py docker/sbom.py
RUN /pip/bin/pip --python /app/bin/python install --no-cache-dir --disable-pip-version-check \
      --no-deps --prefix /gnnpipe . \
    && ls /gnnpipe/lib/python3*/site-packages/gnnpipe_trainer/kernels/_loops*.so \
    && rm /gnnpipe/bin/gnnpipe-operator \
    && PYTHONPATH="$(echo /gnnpipe/lib/python3*/site-packages)" \
       /app/bin/python docker/sbom.py gnnpipe-trainer > /gnnpipe/sbom.cdx.json

FROM ${BASE_IMAGE}
# torch asks for the user's name, so the uid must have one.
RUN groupadd --gid 65532 gnnpipe \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gnnpipe
COPY --from=dependencies /app /app
COPY --from=build /gnnpipe /app
# Root's file system may be read-only: no bytecode is written, and every cache goes to the writable /tmp.
# OUTDATED_IGNORE: ogb would ask the internet for a newer version at import.
# MALLOC_, THP_: what ranks want of the C library when they start; without them `gnnpipe worker` starts twice.
# NVIDIA_VISIBLE_DEVICES is left alone: the device plugin sets it to the GPUs that the pod was given.
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib \
    OUTDATED_IGNORE=1 \
    MALLOC_MMAP_THRESHOLD_=1073741824 \
    MALLOC_TRIM_THRESHOLD_=4294967296 \
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
WORKDIR /tmp
EXPOSE 9400 29500
ENTRYPOINT ["gnnpipe"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gnnpipe-trainer" \
      org.opencontainers.image.description="Pipelined full-graph training of deep graph neural networks" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
