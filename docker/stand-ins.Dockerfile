# What compose-replicas.yaml takes from Docker's hub, of Debian's packages, for machines that do not reach the hub:
# docker/build-bare.sh everything. The variables and the folder of the database are those of the image `postgres`.
# hadolint ignore=DL3006
FROM localhost/fedcore-base AS postgres

# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql \
    && rm -rf /var/lib/apt/lists/* /usr/share/doc/* /usr/share/locale/* \
    && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ \
    && install --directory --owner postgres --group postgres --mode 700 /var/lib/postgresql/data
COPY --chmod=755 stand-in-postgres.sh /usr/local/bin/docker-entrypoint.sh
# hadolint ignore=DL3066
USER postgres
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["docker-entrypoint.sh"]

# hadolint ignore=DL3006
FROM localhost/fedcore-base AS nginx

# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends nginx-light \
    && rm -rf /var/lib/apt/lists/* /usr/share/doc/*
