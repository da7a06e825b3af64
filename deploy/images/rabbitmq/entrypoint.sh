#!/bin/sh
# Writes the configuration from the variables, then becomes the broker.
set -eu
chown rabbitmq:rabbitmq /var/lib/rabbitmq
umask 077
cat > /etc/rabbitmq/rabbitmq.conf <<END
default_user = ${RABBITMQ_DEFAULT_USER:-guest}
default_pass = ${RABBITMQ_DEFAULT_PASS:-guest}
loopback_users = none
log.console = true
log.console.level = warning
log.file = false
END
chown rabbitmq:rabbitmq /etc/rabbitmq/rabbitmq.conf
# The script then becomes the Erlang machine instead of staying its parent.
export RUNNING_UNDER_SYSTEMD=true RABBITMQ_LOG_BASE=/var/lib/rabbitmq
exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups "$@"
