# shellcheck shell=bash disable=SC2154,SC2015
# What every command needs: words, settings, secrets, and how Docker and Compose are called.

say() { printf '%s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

only_one() {
    local said
    said=$( (: >> "$home/.lock") 2>&1) || die "nothing can be written to $home: ${said##*: }"
    # Held until this script has ended, however it ends, and what it has started: Compose goes on for
    # a moment when only the script is killed.
    exec 9> "$home/.lock"
    command -v flock > /dev/null || return 0
    flock -n 9 && return 0
    warn "another install.sh, or what one has started, works on $home; waiting for at most $wait_seconds s"
    flock -w "$wait_seconds" 9 || die "another install.sh works on $home"
}

# ------------------------------------------------------------------------------- settings

# The value of a setting in .env: the last line counts, as it does for Compose.
setting() {
    local value=
    [ -f "$env_file" ] && value=$(sed -n "s/^$1=//p" "$env_file" | tail -n 1)
    value=${value%$'\r'}
    case "$value" in
        \"*\") value=${value#\"}; value=${value%\"} ;;
        \'*\') value=${value#\'}; value=${value%\'} ;;
    esac
    printf '%s' "${value:-${2:-}}"
}

# Replaces .env as a whole, so that no moment has half of it.
write_env() {
    local made
    made=$(mktemp "$home/.env.XXXXXX")
    cat > "$made" && chmod 600 "$made" && mv -f "$made" "$env_file" || {
        rm -f "$made"
        die "$env_file could not be written; it is as it was"
    }
}

# Sets NAME to VALUE: in its place, else at the end; a last line without an end of line stays whole.
put_setting() {
    local name=$1 value=$2
    {
        [ ! -f "$env_file" ] || NAME=$name awk 'index($0, ENVIRON["NAME"] "=") != 1' "$env_file"
        printf '%s=%s\n' "$name" "$value"
    } | write_env
}

# A secret is made once. One that is there is never changed, whatever it looks like.
make_secret() {
    local name=$1 kind=$2
    [ -z "$(setting "$name")" ] || return 0
    [ -z "$(setting "${name}_FILE")" ] || die "$name comes from a file: write it into $env_file; the containers do not see that file"
    if [ "$kind" = hex ]; then
        put_setting "$name" "$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')"
    else
        put_setting "$name" "$(head -c 32 /dev/urandom | base64 | tr -d '\n')"
    fi
    say "made $name"
}

secure_env() {
    [ -e "$env_file" ] || [ -L "$env_file" ] || return 0
    [ ! -L "$env_file" ] || die "$env_file is a symbolic link; the secrets have to lie there themselves"
    [ -f "$env_file" ] || die "$env_file is no file"
    local owner mode
    owner=$(stat -c %u "$env_file")
    mode=$(stat -c %a "$env_file")
    [ "$owner" = "$(id -u)" ] || die "$env_file belongs to account $owner and not to you: sudo chown $(id -u) $env_file"
    [ -r "$env_file" ] || chmod 600 "$env_file"
    if [ "$mode" != 600 ]; then
        chmod 600 "$env_file"
        warn "$env_file had mode $mode and has 600 now; whoever could read it may know the secrets"
    fi
}

instance() {
    local id
    id=$(setting SVC_INSTANCE_ID)
    # It is the label that everything is found by, at removal too: never empty, never a pattern.
    [[ $id =~ ^[a-z0-9][a-z0-9-]{0,62}$ ]] || die "SVC_INSTANCE_ID in $env_file is missing or not made of a-z, 0-9 and -"
    printf '%s' "$id"
}

release() {
    local found
    found=$(sed -n 's/^SVC_RELEASE = "\([^"]*\)"$/\1/p' "$checkout/controlplane/settings_fixed.py" 2> /dev/null) || true
    [ -n "$found" ] || die "this checkout does not say which release it is: \
SVC_RELEASE in $checkout/controlplane/settings_fixed.py; put the whole checkout there, or set SVC_VERSION in $env_file"
    printf '%s' "$found"
}

# ------------------------------------------------------------------------------- Docker

find_socket() {
    local socket
    socket=$(setting CONTAINER_SOCKET_PATH)
    if [ -z "$socket" ]; then
        case "${DOCKER_HOST:-}" in
            unix://*) socket=${DOCKER_HOST#unix://} ;;
            '') socket=/var/run/docker.sock ;;
            *) die "DOCKER_HOST is $DOCKER_HOST: the build worker needs an engine with a socket on this machine" ;;
        esac
    fi
    [ -S "$socket" ] || die "no Docker Engine: $socket is no socket. Start Docker or set CONTAINER_SOCKET_PATH in $env_file"
    [ -r "$socket" ] && [ -w "$socket" ] || die "you may not use $socket: become root or join the group that owns it"
    printf '%s' "$socket"
}

docker_() { DOCKER_HOST=unix://$socket DOCKER_BUILDKIT=1 "$docker" "$@"; }

# A client that talks to the engine and can use BuildKit: before 23 built in, later the buildx plugin.
find_docker() {
    local candidate major
    socket=$(find_socket)
    while read -r candidate; do
        # Whoever calls this may have another engine, or none, where the client looks by itself.
        major=$(DOCKER_HOST=unix://$socket "$candidate" version --format '{{.Client.Version}}' 2> /dev/null) || continue
        docker=${docker:-$candidate}
        major=${major%%.*}
        if [ "${major:-99}" -lt 23 ] || DOCKER_HOST=unix://$socket "$candidate" buildx version > /dev/null 2>&1; then
            docker=$candidate
            return 0
        fi
    done < <(if [ -n "${DOCKER_CLI:-}" ]; then echo "$DOCKER_CLI"; else type -ap docker || true; fi)
    [ -n "${docker:-}" ] || die "no Docker client can talk to the engine at $socket: install docker (20.10 or newer)"
    warn "$docker has no BuildKit (the buildx plugin is missing): images cannot be built here"
}

find_compose() {
    if docker_ compose version > /dev/null 2>&1; then
        compose=("$docker" compose)
    elif command -v docker-compose > /dev/null 2>&1; then
        compose=(docker-compose)
    else
        die "Docker Compose is missing: install docker-compose-plugin or docker-compose (1.29 or newer)"
    fi
}

# The names the API answers to. The gateway's container calls it `api`, and its health check 127.0.0.1.
answered_hosts() {
    local url hosts
    url=$(setting SVC_WEB_URL http://localhost)
    url=${url#*://}
    url=${url%%/*}
    hosts=localhost,[::1],$(uname -n),${url%:[0-9]*}
    [ "$(setting SVC_BIND_HOST 127.0.0.1)" = 0.0.0.0 ] || hosts=$hosts,$(setting SVC_BIND_HOST 127.0.0.1)
    printf '%s' "$(setting SVC_ALLOWED_HOSTS "$hosts"),api,127.0.0.1"
}

# The origins of our own pages: no other page reads what is answered here unless .env names it.
own_origins() {
    local port origins=
    for port in $(setting SVC_WEB_PORT 3000) $(setting SVC_API_PORT 4000); do
        [ "$port" = 0 ] || origins=$origins,http://localhost:$port,http://127.0.0.1:$port
    done
    printf '%s' "${origins#,}"
}

# Whether the engine gives containers users of their own: none that has them may have the machine's network.
remaps_users() { [[ $(docker_ info --format '{{.SecurityOptions}}') == *name=userns* ]]; }

# Where the egress proxy listens unless .env says it; 0: nowhere.
default_egress_port() { remaps_users && printf 0 || printf 4053; }

# Whether it runs: it listens on all addresses of the machine, and only our own rules keep others from it.
runs_egress() { [ "$(setting SVC_EGRESS_PORT 0)" != 0 ] && [ "$(setting SVC_NETWORK_GUARD on)" = on ]; }

registry_user() { setting REGISTRY_USERNAME svc; }
registry_password() { setting REGISTRY_PASSWORD "$(setting SVC_REGISTRY_PASSWORD)"; }

# In its container the API listens everywhere; what counts is where the machine does.
owner_required() {
    case "$(setting SVC_BIND_HOST 127.0.0.1)" in
        127.*) setting SVC_REQUIRE_OWNER false ;;
        *) setting SVC_REQUIRE_OWNER true ;;
    esac
}

# Compose with the settings of .env, what follows from them, and nothing of the caller's environment.
compose_() {
    local id url_db url_mq push ca app_key path
    id=$(instance)
    url_db=$(setting DATABASE_URL "postgres://svc:$(setting SVC_DB_PASSWORD)@postgres:5432/svc")
    url_mq=$(setting RABBITMQ_URL "amqp://svc:$(setting SVC_RABBITMQ_PASSWORD)@rabbitmq:5672/%2F")
    push=$(setting REGISTRY_PUSH_REGISTRY "127.0.0.1:$(setting SVC_REGISTRY_PORT 5000)")
    ca=
    [ ! -s "$home/.mounted/extra-ca.crt" ] || ca=/etc/svc/extra-ca.crt
    app_key=$(setting SCM_APP_PRIVATE_KEY)
    path=$(setting SCM_APP_PRIVATE_KEY_PATH)
    if [ -z "$app_key" ] && [ -n "$path" ]; then
        [ -r "$path" ] || die "SCM_APP_PRIVATE_KEY_PATH: $path cannot be read"
        app_key=$(awk '{printf "%s\\n", $0}' "$path")
    fi
    (
        local name
        for name in $(compgen -e); do
            case "$name" in PATH | HOME) ;; *) unset "$name" ;; esac
        done
        # By the environment and not as arguments, which everybody on the machine may read.
        export SVC_HOME=$home SVC_SOCKET_GID CONTAINER_SOCKET_PATH=$socket DOCKER_HOST=unix://$socket
        SVC_SOCKET_GID=$(stat -Lc %g "$socket")
        export SVC_IMAGE SVC_POSTGRES_IMAGE SVC_RABBITMQ_IMAGE SVC_REGISTRY_IMAGE
        SVC_IMAGE=$(setting SVC_IMAGE "$id/controlplane")
        SVC_POSTGRES_IMAGE=$(setting SVC_POSTGRES_IMAGE postgres:15-bookworm)
        SVC_RABBITMQ_IMAGE=$(setting SVC_RABBITMQ_IMAGE rabbitmq:3.13)
        SVC_REGISTRY_IMAGE=$(setting SVC_REGISTRY_IMAGE registry:2)
        export DATABASE_URL=$url_db RABBITMQ_URL=$url_mq REGISTRY_PUSH_REGISTRY=$push SVC_EXTRA_CA_FILE=$ca
        export SVC_ALLOWED_HOSTS SVC_REQUIRE_OWNER SVC_CORS_ALLOWED_ORIGINS
        SVC_REQUIRE_OWNER=$(owner_required)
        SVC_ALLOWED_HOSTS=$(answered_hosts)
        SVC_CORS_ALLOWED_ORIGINS=$(setting SVC_CORS_ALLOWED_ORIGINS "$(own_origins)")
        # From the network of the machine the database beside us is reached by its socket alone.
        export SVC_EGRESS_PORT SVC_EGRESS_DATABASE_URL
        SVC_EGRESS_PORT=$(setting SVC_EGRESS_PORT 0)
        SVC_EGRESS_DATABASE_URL=$(setting DATABASE_URL "postgres://svc:$(setting SVC_DB_PASSWORD)@%2Frun%2Fpostgresql/svc")
        # The account of the registry beside us; another registry has the account that .env names.
        if [ -z "$(setting REGISTRY_BASE_URL)" ]; then
            export REGISTRY_USERNAME REGISTRY_PASSWORD
            REGISTRY_USERNAME=$(registry_user)
            REGISTRY_PASSWORD=$(registry_password)
        fi
        # Without a folder of templates, one that has none.
        export SVC_E2B_TEMPLATES_DIR
        SVC_E2B_TEMPLATES_DIR=$(setting SVC_E2B_TEMPLATES_DIR "$home/.mounted")
        [ -z "$app_key" ] || export SCM_APP_PRIVATE_KEY=$app_key
        local files=(-f "$here/compose.yaml")
        [ "$(setting SVC_WEB_PORT 3000)" = 0 ] || files+=(-f "$here/compose.web.yaml")
        [ "$(setting SVC_ADMIN_PORT 0)" = 0 ] || files+=(-f "$here/compose.admin.yaml")
        [ "$(setting SVC_E2B_PORT 0)" = 0 ] || files+=(-f "$here/compose.e2b.yaml")
        ! runs_egress || files+=(-f "$here/compose.egress.yaml")
        exec "${compose[@]}" --project-name "$id" --project-directory "$here" --env-file "$env_file" \
            "${files[@]}" "$@"
    )
}

do_compose() {
    secure_env
    [ -f "$env_file" ] || die "nothing is installed in $home"
    find_docker
    find_compose
    compose_ "$@"
}
