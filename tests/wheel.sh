#!/usr/bin/env bash
# Build the wheel, install it into an environment that has nothing else, and use it from an empty folder: doctor, the list,
# the data, a smoke run of every paper, one table.
set -euo pipefail
clone=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check build
env/bin/python -m build --wheel --outdir "$work/dist" "$clone" >/dev/null
python3 -m venv clean
wheel=$(echo dist/*.whl)
clean/bin/python -m pip install --quiet --disable-pip-version-check -c "$clone/constraints.txt" "$wheel[compiled]"
export PAPERS_RUNS="$work/runs" PAPERS_CACHE="$work/cache"
mkdir empty && cd empty
papers="$work/clean/bin/papers"
"$papers" list
"$papers" doctor >/dev/null
"$papers" data list >/dev/null
for name in $("$papers" list --json | "$work/clean/bin/python" -c 'import json, sys; print(*(p["name"] for p in json.load(sys.stdin)))'); do
    "$papers" run "$name" +exp=smoke threads=1 2>&1 | tail -1
done
"$papers" tables softmax_icl
