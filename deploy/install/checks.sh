# shellcheck shell=bash disable=SC2154,SC2015
# What has to be so before anything is started.

# Whether it is one; else that is a fault.
is_port() {
    [[ $2 =~ ^[0-9]{1,5}$ ]] && [ "$2" -ge 1 ] && [ "$2" -le 65535 ] && return
    faults+=("$1: $2 is no port")
    return 1
}

check_port() {
    local name=$1 host=$2 port=$3
    is_port "$name" "$port" || return 0
    # Our own containers may hold it: then this is a repair.
    [ -z "$(docker_ ps -q --filter "label=com.docker.compose.project=$(setting SVC_INSTANCE_ID)" \
        --filter "publish=$port")" ] || return 0
    [ "$host" != 0.0.0.0 ] || host=127.0.0.1
    if (exec 3<> "/dev/tcp/$host/$port") 2> /dev/null; then
        faults+=("$name: something else listens on $host port $port; stop it or set $name in $env_file")
    fi
}

# What Compose publishes ports on; it understands no names.
is_ipv4() {
    local part
    [[ $1 =~ ^([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})$ ]] || return 1
    for part in "${BASH_REMATCH[@]:1}"; do [ "$part" -le 255 ] || return 1; done
}

check_room() {
    local folder=$1 what=$2 free
    [ -d "$folder" ] || return 0
    free=$(df -Pm "$folder" | awk 'NR == 2 { print $4 }')
    [ "${free:-0}" -ge "$min_free_mb" ] \
        || faults+=("$what ($folder) has $free MB free, $min_free_mb are needed (--min-free-mb)")
}

# A job is acknowledged when it is over; the broker must not take it away before.
check_times() {
    local longest=0 pair allowed value wrong=
    for pair in RABBITMQ_CONSUMER_TIMEOUT_MS:14400000 WORKSPACE_SOURCE_TIMEOUT_MS:300000 WORKSPACE_BUILD_TIMEOUT_MS:1800000 \
        WORKSPACE_PUSH_TIMEOUT_MS:900000 WORKSPACE_LAUNCH_TIMEOUT_MS:3600000; do
        value=$(setting "${pair%:*}" "${pair#*:}")
        if ! [[ $value =~ ^[1-9][0-9]{0,14}$ ]]; then
            faults+=("${pair%:*}: $value is no number of milliseconds")
            wrong=yes
        elif [ "${pair%:*}" = RABBITMQ_CONSUMER_TIMEOUT_MS ]; then
            allowed=$value
        else
            longest=$((longest + value))
        fi
    done
    [ -z "$wrong" ] || return 0
    [ "$allowed" -ge "$longest" ] \
        || faults+=("RABBITMQ_CONSUMER_TIMEOUT_MS is $allowed, the longest job takes $longest")
}

check_secrets() {
    local name value
    for name in $HEX_SECRETS; do
        value=$(setting "$name")
        # It stands in addresses and in headers: what has to be escaped there is refused here.
        [[ -z $value || $value =~ ^[A-Za-z0-9_.~-]+$ ]] \
            || faults+=("$name may hold letters, digits and . _ ~ - only")
    done
    value=$(setting WEB_AUTH_SECRET)
    [ -z "$value" ] || [ ${#value} -ge 32 ] || faults+=("WEB_AUTH_SECRET has fewer than 32 characters")
    # Without its secrets a database is lost; new ones would only lock it.
    if [ -z "$(setting SVC_DB_PASSWORD)" ] && [ -n "$(setting SVC_INSTANCE_ID)" ] \
        && docker_ volume inspect "$(setting SVC_INSTANCE_ID)_postgres" > /dev/null 2>&1; then
        faults+=("SVC_DB_PASSWORD is gone from $env_file, but its database is there: put the old one back (backups/)")
    fi
}

check_e2b() {
    local folder
    [ "$(setting SVC_E2B_PORT 0)" != 0 ] || return 0
    check_port SVC_E2B_PORT "$1" "$(setting SVC_E2B_PORT 0)"
    folder=$(setting SVC_E2B_TEMPLATES_DIR)
    [ -z "$folder" ] || [ -d "$folder" ] || faults+=("SVC_E2B_TEMPLATES_DIR: $folder is no folder")
    case "$1" in
        127.*) ;;
        *) [ -n "$(setting SVC_TRUSTED_OWNER_HEADER)" ] || faults+=("SVC_E2B_PORT: with SVC_BIND_HOST=$1 \
everybody who reaches it would act as the same owner; set SVC_TRUSTED_OWNER_HEADER") ;;
    esac
}

# The egress proxy listens in the network of the machine, whose rules drop whoever would try its port.
check_egress() {
    local port at
    [ "$(setting SVC_NETWORK_GUARD on)" = on ] || return 0
    port=$(setting SVC_EGRESS_PORT "$(default_egress_port)")
    [ "$port" != 0 ] && is_port SVC_EGRESS_PORT "$port" || return 0
    ! remaps_users || faults+=("SVC_EGRESS_PORT: with userns-remap, as this engine has it, the egress \
proxy cannot have the machine's network; set SVC_EGRESS_PORT=0 in $env_file")
    [ -z "$(docker_ ps -q --filter "label=com.docker.compose.project=$(setting SVC_INSTANCE_ID)" \
        --filter "label=svc.egress-port=$port")" ] || return 0
    at=$(printf ':%04X' "$((10#$port))")
    if { cat /proc/net/{tcp,tcp6,udp,udp6} 2> /dev/null || true; } \
        | awk -v at="$at" '$4 ~ /^0[A7]$/ && substr($2, length($2) - 4) == at { found = 1 } END { exit !found }'; then
        faults+=("SVC_EGRESS_PORT: something else listens on port $port; stop it or set SVC_EGRESS_PORT in $env_file, 0 for no egress policies")
    fi
}

check_all() {
    faults=()
    local version host told
    if [ -z "$(setting SVC_VERSION)" ] && ! told=$(release 2>&1); then faults+=("${told#install.sh: }"); fi
    version=$(docker_ version --format '{{.Server.Version}}')
    [ "${version%%.*}" -ge 20 ] || faults+=("the Docker Engine $version is too old: 20.10 is needed")
    [ "$(docker_ version --format '{{.Server.Os}}')" = linux ] || faults+=("the Docker Engine does not run Linux containers")
    host=$(setting SVC_BIND_HOST 127.0.0.1)
    if ! is_ipv4 "$host"; then
        faults+=("SVC_BIND_HOST: $host is no IPv4 address of this machine; 0.0.0.0 is all of them")
        host=127.0.0.1
    fi
    check_port SVC_API_PORT "$host" "$(setting SVC_API_PORT 4000)"
    [ "$(setting SVC_WEB_PORT 3000)" = 0 ] || check_port SVC_WEB_PORT "$host" "$(setting SVC_WEB_PORT 3000)"
    [ "$(setting SVC_ADMIN_PORT 0)" = 0 ] \
        || check_port SVC_ADMIN_PORT "$(setting SVC_ADMIN_BIND_HOST 127.0.0.1)" "$(setting SVC_ADMIN_PORT 0)"
    check_e2b "$host"
    check_egress
    check_port SVC_SSH_PORT "$host" "$(setting SVC_SSH_PORT 2222)"
    check_port SVC_PREVIEW_PORT "$host" "$(setting SVC_PREVIEW_PORT 4080)"
    check_port SVC_REGISTRY_PORT 127.0.0.1 "$(setting SVC_REGISTRY_PORT 5000)"
    check_room "$home" "the installation's folder"
    check_room "$(docker_ info --format '{{.DockerRootDir}}')" "the engine's folder"
    check_times
    check_secrets
    if [ ${#faults[@]} -gt 0 ]; then
        printf 'install.sh: %s\n' "${faults[@]}" >&2
        exit 1
    fi
}

do_check() {
    secure_env
    find_docker
    find_compose
    check_all
    say "nothing stands in the way"
}
