#!/bin/sh
# trust.sh ANCHORS BUNDLE: makes the system trust the operator's extra certificates, if there are any.
# ANCHORS gets a file for each of them. Where no tool is installed yet that adds them to BUNDLE, the
# package ca-certificates does so when it is installed; until then they are appended.
set -eu
extra=/usr/share/svc/install/extra-ca.crt
[ -s "$extra" ] || exit 0

mkdir -p "$1"
awk -v folder="$1" '
    /-----BEGIN CERTIFICATE-----/ { file = folder "/svc-extra-" ++count ".crt" }
    file                          { print > file }
    /-----END CERTIFICATE-----/   { close(file); file = "" }
' "$extra"

if command -v update-ca-trust > /dev/null; then
    update-ca-trust
elif command -v update-ca-certificates > /dev/null; then
    update-ca-certificates
elif [ -f "$2" ]; then
    cat "$extra" >> "$2"
fi
