# The server on the CPU. Build: docker build --tag tensorpost .
# Run, for this machine only: docker run --publish 127.0.0.1:8000:8000 --env TENSORPOST_ALLOW_ANONYMOUS=1 tensorpost
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /source
RUN python -m venv /build && python -m venv --without-pip /opt/tensorpost
COPY requirements/build.txt requirements/server.txt requirements/
RUN /build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement requirements/build.txt \
 && /build/bin/pip --python /opt/tensorpost install --no-cache-dir --disable-pip-version-check --require-hashes --requirement requirements/server.txt
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY app app
RUN PYTHONPATH=$(echo /build/lib/python3*/site-packages) /build/bin/pip --python /opt/tensorpost install --no-cache-dir \
      --disable-pip-version-check --no-deps --no-build-isolation . \
 && find /opt/tensorpost/lib -type d -name tests -prune -exec rm -r {} +  # NumPy's own tests: a tenth of the whole

# For every CPU since about 2013, not for the one that builds; the file may be read-only where it is used.
RUN NUMBA_CACHE_DIR=/opt/tensorpost/kernels /opt/tensorpost/bin/tensorpost warmup

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="tensorpost" \
      org.opencontainers.image.description="POST a DirectML operator and a tensor, get the result back as raw bytes." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/tensorpost /opt/tensorpost
ENV PATH=/opt/tensorpost/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/opt/tensorpost/kernels
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["tensorpost", "healthcheck"]
# In a container loopback is the container's own, so it listens on every address, and what can reach it is decided by what
# is published. The image cannot know that, so it starts with TENSORPOST_KEYS_FILE or TENSORPOST_ALLOW_ANONYMOUS only.
ENTRYPOINT ["tensorpost", "serve", "--host", "0.0.0.0"]
