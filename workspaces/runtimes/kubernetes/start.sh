# What a workspace's Pod begins with: $1 is the relay, $2 the agent.
# The agent's configuration has secrets, so it is in no object of the cluster: it comes over an exec.
set -eu
umask 077
chmod 0755 /var/lib/svc
[ ! -d /run/svc ] || chmod 0711 /run/svc
mkdir -p /etc/svc
mkfifo /var/lib/svc/begin
printf '%s' "$1" >/var/lib/svc/relay.new
mv /var/lib/svc/relay.new /var/lib/svc/relay.py
read -r _ </var/lib/svc/begin
rm /var/lib/svc/begin
umask 022
exec "$2" boot
