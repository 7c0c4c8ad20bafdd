# The server, and the `provision` and `run` commands. Build from the repository's root:
#   docker build -f docker/server.Dockerfile -t fedcore-server .
FROM python:3.11-slim AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/fedcore
ENV PATH=/opt/fedcore/bin:$PATH
WORKDIR /src
# The server trains nothing: the CPU build of torch is enough, and a tenth of the size.
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

RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin fedcore \
    && install --directory --owner fedcore --group fedcore --mode 700 /federation
COPY --from=build /opt/fedcore /opt/fedcore
COPY --chown=fedcore examples /apps
ENV PATH=/opt/fedcore/bin:$PATH PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0
USER fedcore
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
