#!/bin/sh
# Makes the cluster once, then becomes the server.
set -eu
run="setpriv --reuid=postgres --regid=postgres --init-groups"
install -d -o postgres -g postgres -m 0700 "$PGDATA"
install -d -o postgres -g postgres -m 2775 /var/run/postgresql
making="$PGDATA/making"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # Made beside its place, so that one that was interrupted is made anew, without what of it was
    # moved already.
    if [ -d "$making" ]; then
        find "$PGDATA" -mindepth 1 -maxdepth 1 ! -name making -exec rm -rf {} +
        rm -rf "$making"
    elif [ -n "$(find "$PGDATA" -mindepth 1 -maxdepth 1 ! -name lost+found)" ]; then
        echo "$PGDATA has files, and no PG_VERSION: it is left as it is" >&2
        exit 1
    fi
    password=$(mktemp)
    chown postgres "$password"
    printf '%s\n' "${POSTGRES_PASSWORD:?}" > "$password"
    $run initdb -D "$making" -U "${POSTGRES_USER:-postgres}" --pwfile="$password" \
        --auth-local=trust --auth-host=scram-sha-256 -E UTF8 --locale=C.UTF-8 --data-checksums
    rm -f "$password"
    database=${POSTGRES_DB:-${POSTGRES_USER:-postgres}}
    if [ "$database" != postgres ]; then
        printf 'CREATE DATABASE "%s";\n' "$database" \
            | $run postgres --single -D "$making" postgres > /dev/null
    fi
    echo 'host all all all scram-sha-256' >> "$making/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$making/postgresql.conf"
    version=$(cat "$making/PG_VERSION")
    rm "$making/PG_VERSION"
    find "$making" -mindepth 1 -maxdepth 1 -exec mv -f {} "$PGDATA/" \;
    [ -z "$(find "$making" -mindepth 1)" ]
    echo "$version" > "$PGDATA/PG_VERSION"
    chown postgres:postgres "$PGDATA/PG_VERSION"
fi
# Last of all: while it is there and no PG_VERSION, the first start was interrupted.
[ ! -d "$making" ] || rmdir "$making"
exec $run "$@" -D "$PGDATA"
