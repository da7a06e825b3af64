#!/bin/sh
# Prints apt's index: what it would install, then every version that it could.
# Files between the commands, because a pipe would hide that the first of them failed.
set -eu
apt-get -o Acquire::Retries=3 -o APT::Update::Error-Mode=any update >&2
work=$(mktemp -d)
apt-cache dumpavail > "$work/candidates"
# Not as $(…): the names are for xargs, which reads them from a file.
apt-get indextargets --format '$(FILENAME)' 'Created-By: Packages' > "$work/targets"
[ -s "$work/targets" ] || { echo 'apt has no package archives in its sources' >&2; exit 1; }
xargs /usr/lib/apt/apt-helper cat-file < "$work/targets" > "$work/versions"

echo "svc:architecture $(dpkg --print-architecture)"
echo 'svc:section candidates'
grep -E '^(Package|Version|Architecture|Provides|Filename):|^$' "$work/candidates" || true
echo
echo 'svc:section versions'
grep -E '^(Package|Version|Architecture):|^$' "$work/versions" || true
echo
echo 'svc:end'
