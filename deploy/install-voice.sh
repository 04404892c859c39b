#!/bin/sh
# Install eSpeak NG, which is under the GPL and runs in a process of its own, where there is no Flite:
# a fresh machine shall talk. `install-voice.sh PYTHON`. Without either the server says so at start.
"$1" -c 'from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer; FliteSynthesizer().load()' \
    2>/dev/null && exit 0
echo "Flite is not here; installing eSpeak NG (GPL) as the voice, in a process of its own"
"$1" "$(dirname "$0")/locked.py" espeak | "$1" -m pip install --quiet --disable-pip-version-check \
    --no-deps --require-hashes -r /dev/stdin || echo "eSpeak NG could not be installed"
exit 0
