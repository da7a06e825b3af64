#!/bin/sh
# Creates the user that workspaces run as. Some base images bring a user with its number.
set -eu
for name in $(awk -F: '$3 == 1000 { print $1 }' /etc/passwd); do
    userdel --remove "$name" || userdel "$name"
done
for name in $(awk -F: '$3 == 1000 { print $1 }' /etc/group); do
    groupdel "$name"
done
groupadd --gid 1000 workspace
useradd --uid 1000 --gid 1000 --create-home --home-dir /home/workspace --shell /bin/bash workspace
