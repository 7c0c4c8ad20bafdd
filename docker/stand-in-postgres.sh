#!/bin/sh
# Starts PostgreSQL as the image `postgres` of Docker's hub does, and makes its database if there is none.
set -eu
data=/var/lib/postgresql/data
if [ ! -e "$data/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    initdb -D "$data" -U "$POSTGRES_USER" -A scram-sha-256 --pwfile /tmp/password -E UTF8 --no-locale
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
    pg_ctl -D "$data" -w -o "-c listen_addresses= -c unix_socket_directories=/tmp" start
    PGPASSWORD="$POSTGRES_PASSWORD" createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -D "$data" -w stop
fi
exec postgres -D "$data" -c "listen_addresses=*" -c unix_socket_directories=/run/postgresql
