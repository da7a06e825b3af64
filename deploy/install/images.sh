# shellcheck shell=bash disable=SC2154,SC2015
# The images: pulled where a public registry answers, else built from Debian's packages. What is built
# has this installation's name in front, so that removing it takes nothing from anybody else.

have_image() { docker_ image inspect "$1" > /dev/null 2>&1; }

# Whether it is there or can be had.
pull() {
    have_image "$1" || timeout 300 env DOCKER_HOST="unix://$socket" "$docker" pull -q "$1" > /dev/null 2>&1
}

base_image() {
    local given own
    given=$(setting SVC_BASE_IMAGE)
    own=$(instance)/debian:bookworm
    if [ -n "$given" ]; then
        pull "$given" || die "SVC_BASE_IMAGE: $given is not in the engine and cannot be pulled"
        printf '%s' "$given"
    elif have_image "$own"; then
        printf '%s' "$own"
    elif have_image svc-base/debian:bookworm; then
        docker_ tag svc-base/debian:bookworm "$own"
        printf '%s' "$own"
    elif pull debian:bookworm-slim; then
        printf 'debian:bookworm-slim'
    else
        command -v mmdebstrap > /dev/null \
            || die "debian:bookworm-slim cannot be pulled: set SVC_BASE_IMAGE, or install mmdebstrap to build it from Debian's archive"
        say "building a Debian base image from its archive" >&2
        # shellcheck disable=SC2046
        mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io bookworm - $(setting SVC_DEBIAN_MIRROR) \
            | docker_ import --change 'CMD ["bash"]' - "$own" > /dev/null \
            || die "the Debian base image could not be built"
        printf '%s' "$own"
    fi
}

# A service's image under its public name, else one of our own in its place.
service_image() {
    local name=$1 kind=$2 public=$3 own
    [ -z "$(setting "$name")" ] || {
        have_image "$(setting "$name")" || pull "$(setting "$name")" || build_service_image "$kind" "$(setting "$name")"
        return
    }
    if pull "$public"; then
        put_setting "$name" "$public"
    else
        own=$(instance)/$public
        build_service_image "$kind" "$own"
        put_setting "$name" "$own"
    fi
}

build_service_image() {
    case "$2" in
        "$(instance)"/*) ;;
        *) die "$2 is not in the engine and cannot be pulled" ;;
    esac
    say "building $2 from Debian's packages"
    build --build-arg BASE_IMAGE="$(base_image)" -t "$2" "$here/images/$1"
}

build() {
    local log=$home/.build.log
    docker_ build --progress=plain --build-arg INSTANCE="$(instance)" "$@" > "$log" 2>&1 || {
        tail -n 30 "$log" >&2
        die "an image could not be built; all of it: $log"
    }
    rm -f "$log"
}

# The image of one version of ours.
own_image() {
    local version=$1 name secret=()
    name=$(setting SVC_IMAGE "$(instance)/controlplane"):$version
    ! have_image "$name" || return 0
    if [ -n "$(setting SVC_IMAGE)" ]; then
        pull "$name" || die "$name cannot be pulled"
        return
    fi
    say "building $name"
    [ ! -s "$home/.mounted/extra-ca.crt" ] || secret=(--secret "id=ca,src=$home/.mounted/extra-ca.crt")
    build "${secret[@]}" --build-arg BASE_IMAGE="$(base_image)" --build-arg VERSION="$version" \
        -f "$here/Dockerfile" -t "$name" "$checkout"
}

# Authorities that the operator added to this machine are trusted by our processes too.
bundle_ca() {
    local given made
    mkdir -p "$home/.mounted"
    chmod 755 "$home/.mounted"
    given=$(setting SVC_EXTRA_CA_FILE)
    made=$home/.mounted/extra-ca.crt
    if [ -n "$given" ]; then
        [ -r "$given" ] || die "SVC_EXTRA_CA_FILE: $given cannot be read"
        cat "$given" > "$made"
    else
        cat /usr/local/share/ca-certificates/*.crt > "$made" 2> /dev/null || rm -f "$made"
    fi
    [ ! -e "$made" ] || chmod 644 "$made"
}

all_images() {
    local base
    base=$(base_image)
    service_image SVC_POSTGRES_IMAGE postgres postgres:15-bookworm
    service_image SVC_RABBITMQ_IMAGE rabbitmq rabbitmq:3.13
    service_image SVC_REGISTRY_IMAGE registry registry:2
    [ -n "$(setting SVC_BASE_IMAGE_DEBIAN)" ] || put_setting SVC_BASE_IMAGE_DEBIAN "$base"
    own_image "$1"
}

# Who may use the registry. It reads the file again when that has changed.
registry_account() {
    local place=$home/.registry image
    image=$(setting SVC_IMAGE "$(instance)/controlplane"):$1
    mkdir -p "$place"
    # The container's root has to pass, whoever that is on this machine; what lies there is a hash.
    chmod 755 "$place"
    registry_password | docker_ run --rm -i --network none --entrypoint python "$image" \
        -m deploy.services.htpasswd "$(registry_user)" > "$place/htpasswd.new" \
        && mv -f "$place/htpasswd.new" "$place/htpasswd" \
        || die "the registry's account could not be made"
}
