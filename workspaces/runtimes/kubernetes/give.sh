# Gives a workspace the agent's configuration, once: $1 is how long it is on the standard input.
set -eu
umask 077
until [ -e /var/lib/svc/relay.py ]; do sleep 0.02; done
mkdir /var/lib/svc/given || exit 45
head -c "$1" >/etc/svc/boot.new
[ "$(wc -c </etc/svc/boot.new)" -eq "$1" ] || exit 46
mv /etc/svc/boot.new /etc/svc/boot.json
echo >/var/lib/svc/begin
