# A client: it makes outgoing connections only, so it publishes no port. Build from the repository's root:
#   docker build -f docker/client.Dockerfile -t fedcore-client .
FROM python:3.11-slim AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/fedcore
ENV PATH=/opt/fedcore/bin:$PATH
WORKDIR /src
# For a client with GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --index-url "$TORCH_INDEX" torch==2.13.0
COPY requirements.lock ./
RUN pip install -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY fedcore fedcore
COPY server_app server_app
COPY client_app client_app
RUN pip install --no-deps --no-build-isolation .

FROM python:3.11-slim

RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin fedcore
COPY --from=build /opt/fedcore /opt/fedcore
# The app is part of the image: a client runs only what its owner put there.
COPY --chown=fedcore examples /apps
ENV PATH=/opt/fedcore/bin:$PATH PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0
USER fedcore
WORKDIR /home/fedcore

# A client serves nothing that could be asked; it is well while its process, the first of the container, is its own.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 CMD ["python", "-c", "\
import pathlib, sys; \
sys.exit(b'fedcore' not in pathlib.Path('/proc/1/cmdline').read_bytes())"]

ENTRYPOINT ["fedcore"]
CMD ["client", "--kit", "/kit", "--app", "/apps/digits"]
