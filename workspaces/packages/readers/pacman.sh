#!/bin/sh
# Prints pacman's index: of each package what its information page says.
set -eu
export LC_ALL=C
pacman -Sy --noconfirm >&2
work=$(mktemp -d)
pacman -Si > "$work/candidates"

echo "svc:architecture $(uname -m)"
echo 'svc:section candidates'
cat "$work/candidates"
echo
echo 'svc:end'
