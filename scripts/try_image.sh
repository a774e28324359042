#!/usr/bin/env bash
# The steps of docker/Dockerfile without a container engine: install from exactly the files that .dockerignore lets
# through, then run as a user who may write nothing but the data folder and the cache of kernels, as far as this user may
# switch. Ends everything it started. Takes a few minutes: hnswlib is compiled.
#
#     scripts/try_image.sh [PORT]         default 6399
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
port=${1:-6399}
scratch=$(mktemp -d)
server=""
cleanup() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT
chmod 755 "$scratch"

mkdir "$scratch/src" "$scratch/data" "$scratch/cache" "$scratch/tmp"
sed -n 's/^!//p' .dockerignore | tar --create --exclude=__pycache__ --files-from=- | tar --extract --directory="$scratch/src"

echo "Installing as the build stage does"
"${PYTHON:-python3}" -m venv "$scratch/venv"
HNSWLIB_NO_NATIVE=1 "$scratch/venv/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$scratch/src"

as_user=(env)
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    chown 10001:10001 "$scratch/data" "$scratch/cache" "$scratch/tmp"
    switch=(setpriv --reuid=10001 --regid=10001 --clear-groups)
    if "${switch[@]}" "$scratch/venv/bin/python" -c "" 2>/dev/null; then
        as_user=("${switch[@]}" env)
    else
        echo "Staying root: another user may not run this Python"
    fi
fi
in_image() {
    (cd "$scratch/data" && exec "${as_user[@]}" -i PATH="$scratch/venv/bin:/usr/bin:/bin" HOME=/nonexistent \
        TMPDIR="$scratch/tmp" NUMBA_CACHE_DIR="$scratch/cache" PYTHONUNBUFFERED=1 FULLVIEW_DATA_DIR="$scratch/data" \
        FULLVIEW_HOST=0.0.0.0 FULLVIEW_PORT="$port" "$@")
}

echo "Using it as the image's user"
in_image python "$scratch/src/scripts/try_install.py"
[ -n "$(ls -A "$scratch/cache")" ] || { echo "no compiled kernel is in the cache" >&2; exit 1; }

echo "Without a key the server must refuse this address"
if in_image timeout 60 fullview serve >"$scratch/refused" 2>&1; then
    echo "it did not" >&2
    exit 1
fi
grep -q FULLVIEW_API_KEY "$scratch/refused" || { cat "$scratch/refused" >&2; exit 1; }

echo "With one it must become ready, and end on SIGTERM"
in_image FULLVIEW_HOST=127.0.0.1 FULLVIEW_API_KEY=key fullview serve >"$scratch/log" 2>&1 &
server=$!
health=$(sed -n '/^HEALTHCHECK/,/^$/p' docker/Dockerfile | sed -n 's/.*CMD \[.*"-c", \(".*"\)\].*/\1/p')
program=$("${PYTHON:-python3}" -c 'import json, sys; print(json.loads(sys.argv[1]))' "$health")
for attempt in $(seq 1 60); do
    if in_image python -c "$program" 2>/dev/null; then break; fi
    if [ "$attempt" -eq 60 ] || ! kill -0 "$server" 2>/dev/null; then
        cat "$scratch/log" >&2
        exit 1
    fi
    sleep 1
done
kill -TERM "$server"
wait "$server" || { code=$?; [ "$code" -eq 143 ] || { cat "$scratch/log" >&2; exit "$code"; }; }
server=""
echo "The image's steps work"
