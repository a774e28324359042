#!/usr/bin/env bash
# Make the virtual environment and install fullview in it, with the named extras.
#
#     scripts/setup.sh [EXTRA ...]        for example: scripts/setup.sh dev cpu bench
#
# Environment: VENV, the folder (default .venv); PYTHON, the interpreter to make it with (default: the newest found).
# An environment that was made for this pyproject.toml and holds the extras is left as it is: a stamp file tells.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${VENV:-.venv}

fail() {
    printf '\n%s\n' "$*" >&2
    exit 1
}

# True where $1 runs and is Python 3.11 or newer.
new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if new_enough "$name"; then
            echo "$name"
            return
        fi
    done
}

# hnswlib comes as source: its installation compiles C++ against Python's headers.
require_compiler() {
    local compiler="" name headers
    for name in ${CXX:-g++ c++ clang++}; do
        if echo 'int main() { return 0; }' | "$name" -x c++ - -o /dev/null >/dev/null 2>&1; then
            compiler=$name
            break
        fi
    done
    if [ -z "$compiler" ]; then
        fail "A C++ compiler is needed, because hnswlib is compiled when it is installed; tried: ${CXX:-g++, c++, clang++}.
Install one: Debian or Ubuntu 'apt-get install g++ python3-dev', Fedora 'dnf install gcc-c++ python3-devel', macOS 'xcode-select --install'."
    fi
    if [ "$compiler" = clang++ ] && [ -z "${CXX:-}" ]; then
        export CC=clang CXX=clang++
    fi
    headers=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if [ ! -f "$headers/Python.h" ]; then
        fail "Python's headers are needed, because hnswlib is compiled when it is installed; $headers/Python.h is not there.
Install them: Debian or Ubuntu 'apt-get install python3-dev', Fedora 'dnf install python3-devel'."
    fi
}

# step "what" command...: runs it quietly, says how long it takes, shows the end of its output where it fails.
step() {
    local what=$1 log started=$SECONDS said=$SECONDS running
    shift
    log=$(mktemp)
    printf '  %s ...' "$what"
    "$@" >"$log" 2>&1 </dev/null &
    running=$!
    # A command in the background does not hear Ctrl-C by itself.
    trap 'kill "$running" 2>/dev/null; printf " stopped\n"; exit 130' INT TERM
    while kill -0 "$running" 2>/dev/null; do
        sleep 0.2
        if [ $((SECONDS - said)) -ge 5 ]; then
            said=$SECONDS
            printf ' %ss' "$((SECONDS - started))"
        fi
    done
    if ! wait "$running"; then
        printf ' failed\n'
        tail -n 40 "$log" >&2
        rm -f "$log"
        fail "This step failed: $*"
    fi
    rm -f "$log"
    printf ' done (%ss)\n' "$((SECONDS - started))"
}

extras=$(printf '%s\n' "$@" | sort -u | sed '/^$/d')
# One stamp for each set of extras, so that asking for fewer than are there costs nothing.
stamp_text="$(cksum <pyproject.toml) $PWD"
is_stamped() {
    [ -f "$venv/fullview-$1.stamp" ] && [ "$(cat "$venv/fullview-$1.stamp")" = "$stamp_text" ]
}
missing=""
for extra in base $extras; do
    is_stamped "$extra" || missing="$missing $extra"
done
if [ -z "$missing" ] && new_enough "$venv/bin/python"; then
    exit 0
fi

python=$(find_python)
if [ -z "$python" ]; then
    found=$("${PYTHON:-python3}" --version 2>&1) || found="no working ${PYTHON:-python3}"
    fail "Python 3.11 or newer is needed; found: ${found:-no version of ${PYTHON:-python3}}.
Install it (Debian or Ubuntu: 'apt-get install python3 python3-venv python3-dev'), or name one: PYTHON=/path/to/python3.11."
fi
require_compiler "$python"

echo "Setting up $venv with $("$python" --version) (first time: a few minutes; nothing outside this folder and pip's cache is changed)"
if [ -e "$venv/bin/python" ] && ! new_enough "$venv/bin/python"; then
    fail "$venv is there and holds no working Python 3.11 or newer. Remove it, or name another folder: VENV=.venv-new."
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then # not there, or stopped while it was made
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "Python's venv module is needed. Install it: Debian or Ubuntu 'apt-get install python3-venv'."
    step "making the environment" "$python" -m venv "$venv"
fi
listed=$(printf '%s' "$extras" | tr '\n' ',')
step "installing fullview${listed:+ with $listed} and what it needs" \
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e ".${listed:+[$listed]}"
for extra in base $extras; do
    printf '%s\n' "$stamp_text" >"$venv/fullview-$extra.stamp"
done
