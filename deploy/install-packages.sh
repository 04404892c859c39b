#!/bin/sh
# Install the Debian packages listed in a file, if that is possible here; else say which they are.
# A missing one never stops the set-up: the server says at start what it does without.
set -u
missing=""
for package in $(sed 's/#.*//' "$1"); do
    # A command of the same name does as well, wherever it came from (node's own npm, say).
    dpkg -s "$package" >/dev/null 2>&1 || command -v "$package" >/dev/null 2>&1 ||
        missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    echo "installing:$missing"
    # shellcheck disable=SC2086
    if { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends $missing; } >/tmp/offhook-packages.log 2>&1; then
        exit 0
    fi
    tail -n 3 /tmp/offhook-packages.log
fi
echo "not installed:$missing"
echo "to have them:  sudo apt-get install$missing   (other systems: packages of the same purpose)"
exit 0
