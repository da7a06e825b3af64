#!/bin/sh
# Installs a harness that comes from npm: the packages of npm.list, without the folders of
# superfluous.list.
set -eu
here=/usr/share/svc/install
set --
while IFS= read -r package; do
    set -- "$@" "$package"
done < "$here/npm.list"
[ "$#" -gt 0 ] || exit 0

export npm_config_prefix=/usr/local npm_config_cache=/tmp/npm-cache
npm install --global --no-audit --no-fund --no-update-notifier -- "$@"
modules=$(npm root --global)
while IFS= read -r folder; do
    rm -rf -- "${modules:?}/$folder"
done < "$here/superfluous.list"
rm -rf /tmp/npm-cache /root/.npm
