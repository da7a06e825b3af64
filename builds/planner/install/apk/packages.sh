#!/bin/sh
# packages.sh LIST: installs the packages that LIST names, one to a line.
set -eu
list=$1
set --
while IFS= read -r package; do
    set -- "$@" "$package"
done < "$list"
[ "$#" -gt 0 ] || exit 0

apk add --no-cache "$@"
