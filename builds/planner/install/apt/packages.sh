#!/bin/sh
# packages.sh LIST: installs the packages that LIST names, one to a line.
set -eu
list=$1
set --
while IFS= read -r package; do
    set -- "$@" "$package"
done < "$list"
[ "$#" -gt 0 ] || exit 0

# Nothing that is installed may start a service while the image is built.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod 0755 /usr/sbin/policy-rc.d
fi

export DEBIAN_FRONTEND=noninteractive
apt-get -o Acquire::Retries=3 -o APT::Update::Error-Mode=any update
# Pattern-Only: a name that does not exist is an error and never a regular expression.
apt-get -o Acquire::Retries=3 -o APT::Cmd::Pattern-Only=true \
    install -y --no-install-recommends --allow-downgrades -- "$@"
apt-get clean
rm -rf /var/lib/apt/lists/*
