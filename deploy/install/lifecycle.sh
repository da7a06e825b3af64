# shellcheck shell=bash disable=SC2154,SC2015
# Install, repair, upgrade, back up, restore, remove.

prepare() {
    secure_env
    find_docker
    find_compose
    check_all
}

settle() {
    local name version
    # First, and not as an argument: there its failure would go unseen, and leave an empty version.
    version=$(setting SVC_VERSION)
    [ -n "$version" ] || version=$(release) || exit 1
    if [ ! -f "$env_file" ]; then
        printf '# Settings and secrets of this installation; deploy/README.md explains. Keep a copy.\n' | write_env
    fi
    [ -n "$(setting SVC_INSTANCE_ID)" ] \
        || put_setting SVC_INSTANCE_ID "svc-$(od -An -tx1 -N4 /dev/urandom | tr -d ' \n')"
    instance > /dev/null
    [ -n "$(setting CONTAINER_SOCKET_PATH)" ] || put_setting CONTAINER_SOCKET_PATH "$socket"
    for name in $HEX_SECRETS; do make_secret "$name" hex; done
    for name in $KEY_SECRETS; do make_secret "$name" key; done
    [ -n "$(setting SVC_VERSION)" ] || put_setting SVC_VERSION "$version"
    [ -n "$(setting SVC_EGRESS_PORT)" ] || put_setting SVC_EGRESS_PORT "$(default_egress_port)"
    bundle_ca
}

do_install() {
    if [ -f "$marker" ]; then
        say "an upgrade was interrupted; finishing it"
        do_upgrade ""
        return
    fi
    prepare
    settle
    all_images "$(setting SVC_VERSION)"
    registry_account "$(setting SVC_VERSION)"
    start
    say "ready: http://$(reach):$(setting SVC_API_PORT 4000)/docs, version $(setting SVC_VERSION)"
}

reach() {
    local host
    host=$(setting SVC_BIND_HOST 127.0.0.1)
    [ "$host" != 0.0.0.0 ] || host=127.0.0.1
    printf '%s' "$host"
}

start() {
    say "starting"
    # Compose waits for each service that another one depends on; its own words only when it fails.
    local log=$home/.start.log
    compose_ up -d --remove-orphans > "$log" 2>&1 || {
        tail -n 20 "$log" >&2
        compose_ logs --tail 60 migrate >&2 || true
        die "the services did not start; deploy/install.sh compose logs"
    }
    rm -f "$log"
    local wanted=(postgres rabbitmq registry api buildworker runworker enginebuildworkers enginerunworkers sshgateway previewgateway)
    [ "$(setting SVC_E2B_PORT 0)" = 0 ] || wanted+=(e2bfacade)
    ! runs_egress || wanted+=(egressproxy)
    wait_healthy "${wanted[@]}"
}

# A newer release or another setting may have its container made anew: it answers afterwards.
start_postgres() {
    compose_ up -d postgres > /dev/null 2>&1 || die "the database does not start"
    wait_healthy postgres
}

wait_healthy() {
    local service id state left=300
    for service in "$@"; do
        while :; do
            id=$(container_of "$service")
            state=
            [ -z "$id" ] || state=$(docker_ inspect --format '{{.State.Health.Status}}' "$id" 2> /dev/null || true)
            [ "$state" != healthy ] || break
            left=$((left - 1))
            if [ "$left" -le 0 ]; then
                [ -z "$id" ] || docker_ logs --tail 20 "$id" >&2 || true
                die "$service is not well (${state:-gone}); deploy/install.sh compose logs $service"
            fi
            sleep 2
        done
    done
}

container_of() {
    docker_ ps -aq --filter "label=com.docker.compose.project=$(instance)" \
        --filter "label=com.docker.compose.service=$1" --filter "label=com.docker.compose.oneoff=False" | head -n 1
}

# ------------------------------------------------------------------------------- upgrade

# The marker says how far it is. Every step may be repeated, so one that was interrupted is done again.
mark() { printf '%s %s %s\n' "$1" "$2" "$3" > "$marker.new" && mv -f "$marker.new" "$marker"; }

do_upgrade() {
    local wanted=$1 from='' to='' step=begun
    [ -f "$env_file" ] || die "nothing is installed in $home"
    if [ -f "$marker" ]; then
        read -r from to step < "$marker"
        [ -z "$wanted" ] || [ "$wanted" = "$to" ] \
            || die "the upgrade to $to was interrupted: finish it first (deploy/install.sh upgrade)"
    else
        from=$(setting SVC_VERSION)
        to=$wanted
        [ -n "$to" ] || to=$(release) || exit 1
        [[ $to =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$ ]] || die "$to is no version"
    fi
    if [ "$from" = "$to" ] && [ ! -f "$marker" ]; then
        say "this is version $to already; looking after it"
        do_install
        return
    fi
    prepare
    settle
    say "from $from to $to"
    all_images "$to"
    registry_account "$to"
    mark "$from" "$to" "$step"
    if [ "$step" = begun ]; then
        start_postgres
        drain
        # In a shell of its own, so that what ends it does not end this one.
        if ! (backup_into "$home/backups/before-$to-$(date -u +%Y%m%dT%H%M%SZ)"); then
            rm -f "$marker"
            start
            die "without a backup nothing is upgraded: version $from goes on"
        fi
        step=drained
        mark "$from" "$to" "$step"
    fi
    put_setting SVC_VERSION "$to"
    start
    rm -f "$marker"
    [ "$from" = "$to" ] || [ -n "$(setting SVC_IMAGE)" ] || remove_image_of "$from"
    say "ready: version $to"
}

# The container that keeps the network rules runs from the old image until the worker has made it anew.
remove_image_of() {
    local image left=30
    image=$(instance)/controlplane:$1
    until docker_ image rm "$image" > /dev/null 2>&1 || ! docker_ image inspect "$image" > /dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { warn "$image is still in use: remove it later"; return; }
        sleep 2
    done
}

# Workers finish what they have begun, as long as SVC_DRAIN_SECONDS; the rest is claimed again later.
drain() {
    local seconds service
    seconds=$(setting SVC_DRAIN_SECONDS 300)
    say "letting work under way finish (at most $seconds s)"
    compose_ stop -t "$seconds" buildworker enginebuildworkers > /dev/null 2>&1 || true
    for service in $OURS; do compose_ stop "$service" > /dev/null 2>&1 || true; done
}

# ------------------------------------------------------------------------------- backup

in_postgres() { compose_ exec -T postgres "$@"; }

backup_into() {
    local folder=$1 made key
    made=$folder.part
    rm -rf "$made"
    mkdir -p "$made" || die "$made cannot be made"
    # What is half there is of no use, and takes the room that is missing.
    # shellcheck disable=SC2064
    trap "rm -rf '$made'" EXIT
    # Before the database, so that no decision is in neither. tar says 1 of files that go while it reads.
    if docker_ volume inspect "$(instance)_egress" > /dev/null 2>&1; then
        in_volume egress sh -c 'cd /var/lib/svc && mkdir -p egress-journal && tar -cf - --exclude=lock egress-journal || [ $? = 1 ]' \
            > "$made/egress-journal.tar" || die "the egress journal could not be copied"
    fi
    if [ -n "$(setting DATABASE_URL)" ]; then
        warn "DATABASE_URL is a database of yours: back it up with its own tools"
    else
        in_postgres pg_dump -U svc -Fc svc > "$made/database.dump" || die "the database could not be copied"
        [ -s "$made/database.dump" ] || die "the copy of the database is empty"
    fi
    cp "$env_file" "$made/env" || die "the secrets could not be copied"
    # A gateway that never ran has none; one that is there and finds no room is no backup.
    key=$(in_volume gateway cat /var/lib/svc/ssh/host_ed25519_key 2> /dev/null) || key=
    [ -z "$key" ] || printf '%s\n' "$key" > "$made/host_ed25519_key" || die "the host key could not be copied"
    mv "$made" "$folder" || die "$folder could not be made"
    trap - EXIT
    say "backup: $folder"
}

# A program with a service's volume, whether the service runs or not.
in_volume() {
    docker_ run --rm -i --network none -v "$(instance)_$1:/var/lib/svc" --label "svc.installation=$(instance)" \
        --entrypoint "$2" "$(setting SVC_IMAGE "$(instance)/controlplane"):$(setting SVC_VERSION)" "${@:3}"
}

do_backup() {
    [ -f "$env_file" ] || die "nothing is installed in $home"
    secure_env
    find_docker
    find_compose
    backup_into "$home/backups/$(date -u +%Y%m%dT%H%M%SZ)"
}

# What was there stays until all of it is.
restore_journal() {
    in_volume egress sh -c 'cd /var/lib/svc && rm -rf restored && mkdir restored && tar -xf - -C restored \
        && rm -rf egress-journal && mv restored/egress-journal . && rmdir restored'
}

# Beside what is there, which stays until all of it is there; then both change names at once.
restore_database() {
    in_postgres dropdb -U svc --if-exists --force svc_restored || return 1
    in_postgres dropdb -U svc --if-exists --force svc_before || return 1
    in_postgres createdb -U svc -T template0 svc_restored || return 1
    if in_postgres pg_restore -U svc --no-owner --exit-on-error --dbname svc_restored < "$1" \
        && in_postgres psql -q -U svc -d postgres -v ON_ERROR_STOP=1 \
            -c 'ALTER DATABASE svc RENAME TO svc_before; ALTER DATABASE svc_restored RENAME TO svc'; then
        return 0
    fi
    # What is half there is of no use, and takes room.
    in_postgres dropdb -U svc --if-exists --force svc_restored || true
    return 1
}

do_restore() {
    local folder=$1 name service stopped
    stopped="the database is the restored one, and the services are stopped: repeat this command, or run deploy/install.sh to go on without"
    [ -z "$(setting DATABASE_URL)" ] || die "DATABASE_URL is a database of yours: restore it with its own tools"
    [ -n "$folder" ] && [ -s "$folder/database.dump" ] || die "restore needs the folder of a backup"
    [ -f "$env_file" ] || die "nothing is installed in $home: install first, with the backup's env as .env"
    prepare
    [ "$yes" = yes ] || ask "This replaces the database by the one of $folder. Go on?"
    say "stopping"
    for service in $OURS; do compose_ stop "$service" > /dev/null 2>&1 || true; done
    start_postgres
    if ! restore_database "$folder/database.dump"; then
        warn "the database could not be put back, or is in use by something else; the one that was there is as it was"
        start
        die "nothing was restored from $folder; the service goes on as it was"
    fi
    in_postgres dropdb -U svc --force svc_before \
        || warn "the database that was there could not be removed: svc_before keeps its room until the next restore"
    if [ -s "$folder/host_ed25519_key" ]; then
        in_volume gateway sh -c 'umask 077; mkdir -p /var/lib/svc/ssh; cat > /var/lib/svc/ssh/host_ed25519_key' < "$folder/host_ed25519_key" \
            || die "the host key could not be put back; $stopped"
    fi
    if [ -s "$folder/egress-journal.tar" ] && docker_ volume inspect "$(instance)_egress" > /dev/null 2>&1; then
        restore_journal < "$folder/egress-journal.tar" || die "the egress journal could not be put back; $stopped"
    fi
    for name in $KEY_SECRETS; do
        [ "$(sed -n "s/^$name=//p" "$folder/env" | tail -n 1)" = "$(setting "$name")" ] \
            || warn "$name differs from the backup's: what was sealed or signed then needs that one"
    done
    start
    say "restored from $folder"
}

# ------------------------------------------------------------------------------- status, removal

do_status() {
    [ -f "$env_file" ] || die "nothing is installed in $home"
    secure_env
    find_docker
    find_compose
    say "installation $(instance), version $(setting SVC_VERSION), in $home"
    [ ! -f "$marker" ] || say "an upgrade was interrupted ($(cat "$marker")): deploy/install.sh upgrade"
    compose_ ps
    local answer
    answer=$(docker_ exec "$(container_of api)" python -c '
import os, sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen("http://127.0.0.1:%s/readyz" % os.environ["SVC_API_PORT"], timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.read().decode())' 2> /dev/null) || answer=
    say "readiness: ${answer:-the API does not answer}"
    [[ $answer == *'"status":"ok"'* ]]
}

ask() {
    local answer=
    [ -t 0 ] || die "nobody is there to answer: --yes"
    read -rp "$1 [y/N] " answer
    [[ $answer == [yY]* ]] || die "nothing was done"
}

do_uninstall() {
    [ -f "$env_file" ] || die "nothing is installed in $home"
    secure_env
    find_docker
    local id label
    id=$(instance)
    [ "$yes" = yes ] || ask "This removes installation $id for good: every workspace, $([ "$keep_data" = yes ] && echo 'but not' || echo 'and') the database, the registry, the secrets and the backups. Go on?"
    say "removing containers"
    # Ours first and the build worker before all: it would start workspaces again.
    remove_each "rm -fv" docker_ ps -aq --filter "label=com.docker.compose.project=$id"
    # The one that keeps network rules takes them out of the kernel of this machine.
    docker_ ps -q --filter "label=svc.instance=$id" --filter label=svc.network-guard | while read -r keeper; do
        docker_ update --restart no "$keeper" && docker_ kill --signal USR1 "$keeper" && docker_ wait "$keeper"
    done > /dev/null 2>&1 || true
    remove_each "rm -fv" docker_ ps -aq --filter "label=svc.installation=$id"
    remove_each "rm -fv" docker_ ps -aq --filter "label=svc.instance=$id"
    say "removing networks and volumes"
    remove_each "network rm" docker_ network ls -q --filter "label=svc.instance=$id"
    remove_each "network rm" docker_ network ls -q --filter "label=com.docker.compose.project=$id"
    if [ "$keep_data" = no ]; then
        remove_each "volume rm" docker_ volume ls -q --filter "label=svc.instance=$id"
        remove_each "volume rm" docker_ volume ls -q --filter "label=com.docker.compose.project=$id"
    fi
    say "removing images"
    remove_images "$id"
    if [ "$keep_data" = yes ]; then
        say "kept: the volumes ${id}_*, those of persistent workspaces, $env_file and $home/backups"
    else
        rm -rf "$home/backups" "$home/.mounted" "$home/.registry"
        rm -f "$env_file" "$home"/.env.?????? "$marker" "$marker.new" "$home/.build.log" "$home/.start.log"
        rm -f "$home/.lock"
        say "nothing of installation $id is left"
    fi
}

# What is listed is removed; what somebody else removed meanwhile is no fault, what stays is one.
remove_each() {
    local how=$1 listed
    shift
    listed=$("$@")
    [ -n "$listed" ] || return 0
    # shellcheck disable=SC2086
    docker_ $how $listed > /dev/null 2>&1 || true
    listed=$("$@")
    [ -z "$listed" ] || die "these could not be removed ($how): $listed"
}

# Names of ours only: an image that somebody else has a name for stays under that name.
remove_images() {
    local id=$1 push reference image label
    push=$(setting REGISTRY_PUSH_REGISTRY "127.0.0.1:$(setting SVC_REGISTRY_PORT 5000)")
    for label in "svc.instance=$id" "svc.installation=$id"; do
        for image in $(docker_ image ls -aq --no-trunc --filter "label=$label" | sort -u); do
            for reference in $(docker_ image inspect --format '{{range .RepoTags}}{{.}} {{end}}{{range .RepoDigests}}{{.}} {{end}}' "$image" 2> /dev/null); do
                case "$reference" in
                    "$push"/* | svc-build/* | "$id"/*) docker_ image rm "$reference" > /dev/null 2>&1 || true ;;
                esac
            done
            [ -n "$(docker_ image inspect --format '{{range .RepoTags}}{{.}}{{end}}' "$image" 2> /dev/null || echo gone)" ] \
                || docker_ image rm "$image" > /dev/null 2>&1 || true
        done
    done
    for reference in $(docker_ image ls --format '{{.Repository}}:{{.Tag}}' --filter "reference=$id/*"); do
        docker_ image rm "$reference" > /dev/null 2>&1 || true
    done
}
