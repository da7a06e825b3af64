#!/bin/sh
# packages.sh LIST: installs the packages that LIST names, one to a line.
set -eu
list=$1
set --
while IFS= read -r package; do
    set -- "$@" "$package"
done < "$list"
[ "$#" -gt 0 ] || exit 0

# The download sandbox of pacman 7 needs rights that a build does not have.
sed -i 's/^DownloadUser/#DownloadUser/' /etc/pacman.conf
# A rolling release knows no partial upgrade: what is there is brought up to date as well.
pacman -Syu --noconfirm --needed -- "$@"
rm -rf /var/cache/pacman/pkg/* /var/lib/pacman/sync/*
