# A client: it makes outgoing connections only, so it publishes no port. Build from the repository's root:
#   docker build -f docker/client.Dockerfile -t fedcore-client .
# The image by its digest, so that a build does not change by itself. To take a newer one:
#   docker buildx imagetools inspect python:3.11-slim, and --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:...
# This digest is one that other public projects pin; it was not pulled when this was written.
ARG PYTHON_IMAGE=python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
FROM $PYTHON_IMAGE AS build

# Behind a proxy that reads TLS: --build-arg CA_BUNDLE=site-ca.pem, its authority in PEM form in a file of this folder.
ARG CA_BUNDLE=docker/no-ca.pem
COPY $CA_BUNDLE /opt/build-ca/site.pem
RUN cat /etc/ssl/certs/ca-certificates.crt /opt/build-ca/site.pem > /opt/build-ca/all.pem
ENV PIP_CERT=/opt/build-ca/all.pem PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# A mirror of the package index is --build-arg PIP_INDEX_URL=..., and one of PyTorch's TORCH_INDEX=...
ARG PIP_INDEX_URL=https://pypi.org/simple
RUN python -m venv /opt/fedcore
ENV PATH=/opt/fedcore/bin:$PATH
WORKDIR /src
# For a client with GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --index-url "$TORCH_INDEX" torch==2.13.0
COPY requirements-extras.lock ./
RUN pip install --no-deps --require-hashes -r requirements-extras.lock
COPY pyproject.toml setup.py README.md LICENSE ./
COPY fedcore fedcore
COPY server_app server_app
COPY client_app client_app
RUN pip install --no-deps --no-build-isolation .

FROM $PYTHON_IMAGE

RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin fedcore
COPY --from=build /opt/fedcore /opt/fedcore
# The app is part of the image: a client runs only what its owner put there, and the user that runs it cannot write it.
COPY --chown=root:root examples /apps
RUN chmod -R a=rX,u+w /apps
ENV PATH=/opt/fedcore/bin:$PATH PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0
USER 10001:10001
WORKDIR /home/fedcore

# A client serves nothing that could be asked; it is well while its process, the first of the container, is its own.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 CMD ["python", "-c", "\
import pathlib, sys; \
sys.exit(b'fedcore' not in pathlib.Path('/proc/1/cmdline').read_bytes())"]

ENTRYPOINT ["fedcore"]
CMD ["client", "--kit", "/kit", "--app", "/apps/digits"]
