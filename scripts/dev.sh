#!/usr/bin/env bash
# What the Makefile does, without make: scripts/dev.sh TARGET [ARGUMENT ...]
#
#     demo         an index from bundled data, a server, queries through HTTP
#     test         the ordinary suite (arguments go to pytest)
#     test-long    what takes longer, with the extras cpu and bench
#     test-torch   what needs torch, transformers, Triton or OpenAI's client, in an environment of its own (.venv-torch)
#     test-ecosystem   Qdrant's client, LangChain and Haystack against a server of ours, in an environment of its own (.venv-ecosystem)
#     lint         ruff: rules and format
#     types        mypy, strict
#     layers       import-linter: which package may import which
#     wheel        a wheel, built, installed and used in an environment of its own
#
# Each makes or mends the environment it needs first (see scripts/setup.sh; VENV names its folder).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${VENV:-.venv}
export PYTHONUNBUFFERED=1 PIP_NO_INPUT=1

usage() {
    sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

in_venv() {
    local program=$1
    shift
    "$venv/bin/$program" "$@"
}

target_demo() {
    scripts/setup.sh
    in_venv fullview demo "$@"
}

target_test() {
    scripts/setup.sh dev
    # Two processes, a file of tests in one of them: most wait for a server or a build of their own.
    in_venv python -m pytest -n 2 --dist loadfile "$@"
}

target_test_long() {
    local code=0
    scripts/setup.sh dev cpu bench
    in_venv python -m pytest -m long "$@" || code=$?
    if [ "$code" -eq 5 ]; then # pytest's code for "no test was chosen"
        echo "No test is marked long: nothing ran, and that is no failure."
        return 0
    fi
    return "$code"
}

target_test_torch() {
    local files
    venv=.venv-torch
    VENV=$venv scripts/setup.sh dev
    # torch first and by itself: what comes after is content with it, and no plain dependency pulls a build for CUDA.
    in_venv python -c 'import torch' 2>/dev/null || in_venv python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
    in_venv python -m pip install --quiet --disable-pip-version-check "transformers>=4.48" "tokenizers>=0.21" "gguf>=0.10" \
        "jinja2>=3.1" "openai>=1.60" "triton==3.9.0"
    # Tests that would skip elsewhere, by themselves or by a helper of theirs.
    mapfile -t files < <(grep -rlE 'importorskip\("(torch|transformers|triton|openai|gguf|tokenizers)"|gpu_layers|tiny_llama' \
        tests --include='test_*.py' | sort)
    in_venv python -m pytest -k "torch" tests/index/test_scenarios_crash.py "$@"
    in_venv python -m pytest "${files[@]}" "$@"
    # Every shipped variant of every kernel for sm_90, without a device; fails where registers spill.
    in_venv python -m decoder.gpu.compile
}

target_test_ecosystem() {
    venv=.venv-ecosystem
    VENV=$venv scripts/setup.sh dev ecosystem
    in_venv python -m pytest tests/ecosystem "$@"
}

target_lint() {
    scripts/setup.sh dev
    in_venv ruff check .
    in_venv ruff format --check .
}

target_types() {
    scripts/setup.sh dev
    in_venv mypy
}

target_layers() {
    scripts/setup.sh dev
    in_venv lint-imports
}

target_wheel() {
    scripts/setup.sh
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    echo "Building the wheel"
    in_venv python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$scratch/dist" .
    echo "Installing it in an environment of its own"
    in_venv python -m venv "$scratch/venv"
    "$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$scratch"/dist/*.whl
    echo "Using it there"
    cp scripts/try_install.py "$scratch/"
    (cd "$scratch" && venv/bin/python try_install.py && venv/bin/fullview --help >/dev/null)
    mkdir -p dist
    cp "$scratch"/dist/*.whl dist/
    echo "dist/$(basename "$scratch"/dist/*.whl) works"
}

[ $# -ge 1 ] || usage
target=${1//-/_}
shift
declare -F "target_$target" >/dev/null || usage
"target_$target" "$@"
