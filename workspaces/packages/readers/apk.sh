#!/bin/sh
# Prints apk's index: the indexes of its repositories, which apk keeps as it fetched them.
set -eu
apk update >&2
work=$(mktemp -d)
for index in /var/cache/apk/APKINDEX.*.tar.gz /etc/apk/cache/APKINDEX.*.tar.gz; do
    [ -f "$index" ] || continue
    tar -xzO -f "$index" APKINDEX >> "$work/candidates"
    echo >> "$work/candidates"
done
[ -s "$work/candidates" ] || { echo 'apk has kept no index' >&2; exit 1; }

echo "svc:architecture $(apk --print-arch)"
echo 'svc:section candidates'
grep -E '^[PVAp]:|^$' "$work/candidates" || true
echo
echo 'svc:end'
