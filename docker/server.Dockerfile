# The server, and the `provision` and `run` commands. Build from the repository's root:
#   docker build -f docker/server.Dockerfile -t fedcore-server .
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
# The server trains nothing: the CPU build of torch is enough, and a tenth of the size.
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

RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin fedcore \
    && install --directory --owner fedcore --group fedcore --mode 700 /federation
COPY --from=build /opt/fedcore /opt/fedcore
COPY --chown=root:root examples /apps
RUN chmod -R a=rX,u+w /apps
ENV PATH=/opt/fedcore/bin:$PATH PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0
USER 10001:10001
WORKDIR /home/fedcore
VOLUME /federation
EXPOSE 8443

# The certificate is the federation's own, and names the host that the clients use.
ENV FEDCORE_HEALTH_HOST=localhost FEDCORE_HEALTH_CA=/federation/pilot/server/ca.crt
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["python", "-c", "\
import os, ssl, urllib.request as request; \
context = ssl.create_default_context(cafile=os.environ['FEDCORE_HEALTH_CA']); \
url = 'https://' + os.environ['FEDCORE_HEALTH_HOST'] + ':8443/healthz'; \
request.urlopen(url, timeout=4, context=context)"]

ENTRYPOINT ["fedcore"]
CMD ["server", "--federation", "/federation/pilot"]
