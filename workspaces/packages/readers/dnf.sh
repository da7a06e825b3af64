#!/bin/sh
# Prints dnf's index: what it would install, then every version that it could.
# Read by dnf 4 and dnf 5; only the first ends each answer with a newline by itself.
set -eu
architecture=$(uname -m)
dnf -q makecache >&2
work=$(mktemp -d)
ask() {
    dnf -q repoquery --available --arch="$architecture,noarch" "$@"
}
ask --latest-limit=1 \
    --queryformat 'svc-package|%{name}|%{epoch}|%{version}|%{release}|%{repoid}|%{provides}\n' \
    > "$work/candidates"
ask --queryformat 'svc-package|%{name}|%{epoch}|%{version}|%{release}|%{repoid}|\n' \
    > "$work/versions"

echo "svc:architecture $architecture"
echo 'svc:section candidates'
cat "$work/candidates"
echo
echo 'svc:section versions'
cat "$work/versions"
echo
echo 'svc:end'
