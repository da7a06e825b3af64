#!/usr/bin/env bash
# Installs the control plane on this machine with Docker Compose, and takes care of it afterwards.
# deploy/README.md, "Installing it", explains; `deploy/install.sh help` lists the commands.
# What is set here is used in deploy/install/*.sh.
# shellcheck disable=SC2034
set -euo pipefail
export LC_ALL=C
umask 077

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
checkout=$(dirname "$here")
home=$here
yes=no
keep_data=no
min_free_mb=4096
wait_seconds=30
readonly HEX_SECRETS="SVC_DB_PASSWORD SVC_RABBITMQ_PASSWORD SVC_REGISTRY_PASSWORD WORKSPACE_SSH_GATEWAY_TOKEN WEB_AUTH_SECRET"
readonly KEY_SECRETS="SVC_CREDENTIALS_KEY SVC_RECORD_SIGNING_KEY"
readonly OURS="e2bfacade previewgateway sshgateway runworker enginerunworkers enginebuildworkers buildworker api egressproxy"

for part in base checks images lifecycle; do
    # shellcheck source=/dev/null
    . "$here/install/$part.sh"
done

usage() {
    cat <<'END'
usage: deploy/install.sh [COMMAND] [OPTIONS]

  install               check, make secrets and images, start; a second time: repair (the default)
  upgrade [VERSION]     finish work under way, back up, migrate, start the new version
  status                what runs, which version, and whether it is ready
  backup                database, secrets, the gateway's host key and the egress journal into backups/
  restore FOLDER        put a backup's database (host key, journal) in place of what is there
  uninstall             remove everything of this installation; asks
  compose ARGUMENTS     any command of Docker Compose with this installation's settings
  check                 the checks of `install`, and nothing else

  --home FOLDER         where .env and backups/ lie (default: deploy/)
  --yes                 do not ask for confirmation
  --keep-data           uninstall: keep volumes, secrets and backups
  --min-free-mb N       room that has to be free (default: 4096)
  --wait SECONDS        how long to wait for another install.sh on the same folder (default: 30)
END
}

command=
arguments=()
while [ $# -gt 0 ]; do
    case "$1" in
        --home) home=${2:?--home needs a folder}; shift ;;
        --yes | -y) yes=yes ;;
        --keep-data) keep_data=yes ;;
        --min-free-mb) min_free_mb=${2:?--min-free-mb needs a number}; shift ;;
        --wait) wait_seconds=${2:?--wait needs a number of seconds}; shift ;;
        -h | --help | help) usage; exit 0 ;;
        compose) command=compose; shift; arguments=("$@"); break ;;
        -*) usage >&2; die "there is no option $1" ;;
        *)
            if [ -z "$command" ]; then command=$1; else arguments+=("$1"); fi ;;
    esac
    shift
done
command=${command:-install}

[ -d "$home" ] || mkdir -p "$home" || die "the folder $home cannot be made"
home=$(cd "$home" && pwd)
[ "$home" != / ] || die "an installation needs a folder of its own"
[[ $wait_seconds =~ ^[0-9]{1,6}$ ]] || die "--wait needs a number of seconds, not $wait_seconds"
env_file=$home/.env
marker=$home/.upgrade

case "$command" in
    install | upgrade | backup | restore | uninstall) only_one ;;
    status | compose | check) ;;
    *) usage >&2; die "there is no command $command" ;;
esac
case "$command" in
    install) do_install ;;
    check) do_check ;;
    upgrade) do_upgrade "${arguments[0]:-}" ;;
    status) do_status ;;
    backup) do_backup ;;
    restore) do_restore "${arguments[0]:-}" ;;
    uninstall) do_uninstall ;;
    compose) do_compose "${arguments[@]}" ;;
esac
