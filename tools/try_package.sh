#!/usr/bin/env bash
# Installs the Debian package in a clean Debian 12, serves from it as its own user, asks, and purges it again.
# Needs root and debootstrap; the clean system is made once and kept.
#
# usage: tools/try_package.sh PLUMB.deb MODEL FOLDER [MIRROR]
set -euo pipefail
deb=$(realpath "$1")
model=$(realpath "$2")
base=$(realpath -m "$3")
mirror=${4:-http://deb.debian.org/debian}
port=${PORT:-18631}

[ -e "$base/clean/etc/debian_version" ] || debootstrap --variant=minbase bookworm "$base/clean" "$mirror"
root=$base/try
rm -rf "$root"
cp -a --reflink=auto "$base/clean" "$root"
cp "$deb" "$root/tmp/plumb.deb"
mkdir -p "$root/srv/model"
cp "$model"/* "$root/srv/model/"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

inside apt-get update -q
inside apt-get install -q -y --no-install-recommends /tmp/plumb.deb
inside plumb --version
inside getent passwd plumb
sed -i 's|^#model = .*|model = /srv/model|; s|^port = .*|port = '"$port"'|' "$root/etc/plumb/plumb.conf"
inside runuser -u plumb -- plumb serve --config /etc/plumb/plumb.conf --print-config | grep -v default

inside runuser -u plumb -- plumb serve --config /etc/plumb/plumb.conf 2> "$base/serve.log" &
runner=$!
for _ in $(seq 300); do
  curl -fs "http://127.0.0.1:$port/health" > /dev/null && break
  sleep 0.2
done
curl -fs "http://127.0.0.1:$port/health"
echo
curl -fs "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' -d '{"temperature": 0,
  "messages": [{"role": "user", "content": "What is 2+2? Answer briefly."}], "chat_template_kwargs": {"enable_thinking": false}}'
echo
server=$(pgrep -f -u "$(stat -c %u "$root/var/lib/plumb")" 'plumb serve --config /etc/plumb/plumb.conf' | tail -n 1)
echo "runs as user $(stat -c %u "/proc/$server") (plumb is $(inside id -u plumb)), files: $(grep 'open files' "/proc/$server/limits" | tr -s ' ')"
[ "$(stat -c %u "/proc/$server")" = "$(inside id -u plumb)" ]
kill -TERM "$server"
wait "$runner"
echo "ended with exit code 0 after SIGTERM"
cat "$base/serve.log"

inside apt-get purge -q -y plumb
for left in /usr/bin/plumb /etc/plumb /var/lib/plumb /lib/systemd/system/plumb.service; do
  [ ! -e "$root$left" ] || { echo "$left was left behind"; exit 1; }
done
if inside getent passwd plumb; then echo "the user was left behind"; exit 1; fi
echo "installed, served and purged"
