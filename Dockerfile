# The server as an image: `cpu` (the default target), `slim` (without compiled loops) and `cuda` (with NVIDIA GPUs).
# Build: docker build --tag tensorpost .                        or: docker build --target cuda --tag tensorpost:cuda .
# Run, for this machine only: docker run --publish 127.0.0.1:8000:8000 --env TENSORPOST_ALLOW_ANONYMOUS=1 tensorpost
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

# ---- Packages, each set on top of the one before; nothing but pinned files with known hashes is installed ------------
FROM ${PYTHON_IMAGE} AS packages-slim
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /build && python -m venv --without-pip /opt/tensorpost && mkdir /opt/tensorpost/kernels
COPY requirements/build.txt requirements/slim.txt requirements/
RUN /build/bin/pip install --require-hashes --requirement requirements/build.txt \
 && /build/bin/pip --python /opt/tensorpost install --require-hashes --requirement requirements/slim.txt \
 && find /opt/tensorpost/lib -type d -name tests -prune -exec rm -r {} +  # NumPy's own tests: a tenth of the whole

FROM packages-slim AS packages-cpu
COPY requirements/server.txt requirements/
RUN /build/bin/pip --python /opt/tensorpost install --require-hashes --requirement requirements/server.txt \
 && find /opt/tensorpost/lib -type d -name tests -prune -exec rm -r {} +

FROM packages-cpu AS packages-cuda
COPY requirements/cuda.txt requirements/
RUN /build/bin/pip --python /opt/tensorpost install --require-hashes --requirement requirements/cuda.txt \
 && find /opt/tensorpost/lib -type d -name tests -prune -exec rm -r {} + \
 && find /opt/tensorpost/lib -name 'libnvrtc*.alt.so*' -delete  # a second build of NVRTC, which CuPy does not load

# ---- This project, as one wheel for all of them ----------------------------------------------------------------------
FROM packages-slim AS wheel
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY client client
COPY app app
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheel .

FROM packages-slim AS build-slim
COPY --from=wheel /wheel /wheel
RUN /build/bin/pip --python /opt/tensorpost install --no-deps /wheel/*.whl

# The loops are compiled for every CPU since about 2013, not for the one that builds. A server loads them with llvmlite
# and never compiles, so that of numba only its version is left.
FROM packages-cpu AS build-cpu
COPY --from=wheel /wheel /wheel
RUN /build/bin/pip --python /opt/tensorpost install --no-deps /wheel/*.whl \
 && NUMBA_CACHE_DIR=/opt/tensorpost/kernels /opt/tensorpost/bin/tensorpost warmup \
 && rm -r /opt/tensorpost/lib/python3*/site-packages/numba

FROM packages-cuda AS build-cuda
COPY --from=wheel /wheel /wheel
COPY --from=build-cpu /opt/tensorpost/kernels /opt/tensorpost/kernels
RUN /build/bin/pip --python /opt/tensorpost install --no-deps /wheel/*.whl \
 && NUMBA_CACHE_DIR=/opt/tensorpost/kernels CUPY_CACHE_DIR=/opt/tensorpost/kernels \
    /opt/tensorpost/bin/tensorpost warmup --cuda \
 && rm -r /opt/tensorpost/lib/python3*/site-packages/numba

# ---- What is run: Python, /opt/tensorpost, no compiler, nothing that has to be written to -----------------------------
FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tensorpost" \
      org.opencontainers.image.description="POST a DirectML operator and a tensor, get the result back as raw bytes." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# In a container loopback is the container's own, so it listens on every address, and what can reach it is decided by what
# is published. The image cannot know that, so it starts with TENSORPOST_KEYS_FILE or TENSORPOST_ALLOW_ANONYMOUS only.
ENV PATH=/opt/tensorpost/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/opt/tensorpost/kernels TENSORPOST_HOST=0.0.0.0
RUN install -d -o 10001 -g 10001 /var/lib/tensorpost  # so that a volume here is the user's: for keys
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
  CMD ["python", "-m", "tensorpost_server.health_probe"]
ENTRYPOINT ["tensorpost", "serve"]

FROM runtime AS slim
COPY --from=build-slim /opt/tensorpost /opt/tensorpost

# CuPy keeps what it compiles itself in memory, since the root may be read-only; our kernels are files here.
FROM runtime AS cuda
ENV CUPY_CACHE_DIR=/opt/tensorpost/kernels CUPY_CACHE_IN_MEMORY=1
COPY --from=build-cuda /opt/tensorpost /opt/tensorpost

FROM runtime AS cpu
COPY --from=build-cpu /opt/tensorpost /opt/tensorpost
