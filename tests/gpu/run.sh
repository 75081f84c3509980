#!/usr/bin/env bash
# The tests on a CUDA device, in an environment of their own that needs no registry.
#
#   tests/gpu/run.sh wheels [X.Y]   downloads the wheels for Linux on x86-64 and that Python (3.12), where there is a registry
#   tests/gpu/run.sh [TESTS…]       makes the environment of the wheels and the machine's own torch, and runs the tests
#   tests/gpu/run.sh bench [ARGS…]  the cost of whole jobs on the device, see tests/bench/overhead.py --whole
#
# Wheels are in $DDPTOP_WHEELS (build/wheels): take them along. PYTHON names the Python that has torch (python3).
set -euo pipefail
cd "$(dirname "$0")/../.."
wheels=${DDPTOP_WHEELS:-build/wheels}
place=${DDPTOP_GPU_VENV:-build/gpu}
tools=(pytest pytest-timeout hypothesis)
limit_s=${DDPTOP_GPU_SECONDS:-480}

# What the packages need, from the one place that says so; not numpy, which torch's Python has, unless it has not.
needs() {
    "$1" - <<'PYTHON'
try:
    import tomllib
except ImportError:
    import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    for need in tomllib.load(file)["project"]["dependencies"]:
        name, _, marker = need.partition(";")
        if not marker and not name.startswith("numpy"):
            print(name.strip())
PYTHON
}

fetch() {
    local version=${1:-3.12} platforms=() minor
    # pip takes these tags as they stand: the newer ones do not include the older ones.
    for minor in 34 31 28 27 24 17 12 5; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
    platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
    mkdir -p "$wheels"
    mapfile -t wanted < <(needs "${PYTHON:-python3}")
    "${PYTHON:-python3}" -m pip download --quiet --only-binary=:all: --python-version "$version" \
        --implementation cp "${platforms[@]}" --dest "$wheels" "${wanted[@]}" "${tools[@]}"
    du -sh "$wheels"
}

environment() {
    local python=${PYTHON:-python3}
    "$python" -c 'import torch' || { echo "run.sh: $python has no torch: name one that has, PYTHON=…" >&2; exit 2; }
    # A virtual environment of a virtual environment does not see the packages of the first: a path file does.
    rm -rf "$place" && mkdir -p "$place"
    place=$(cd "$place" && pwd)
    "$python" -m venv --without-pip "$place/venv"
    local site
    site=$("$place/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -c 'import site, sys; print("\n".join(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))))' \
        > "$site/torch.pth"
    # All that is needed is among the wheels; NumPy is that of torch where there is one.
    local chosen=("$wheels"/*.whl)
    if "$python" -c 'import numpy' 2>/dev/null; then mapfile -t chosen < <(printf '%s\n' "${chosen[@]}" | grep -v /numpy-); fi
    [[ -e ${chosen[0]} ]] || { echo "run.sh: no wheels in $wheels: 'tests/gpu/run.sh wheels' fetches them" >&2; exit 2; }
    if "$python" -c 'import pip' 2>/dev/null; then
        "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" --upgrade "${chosen[@]}"
    else
        # A wheel is an archive; none of these needs more than to be unpacked.
        for wheel in "${chosen[@]}"; do "$python" -m zipfile -e "$wheel" "$site"; done
    fi
    # The packages' names and their folders differ: links instead of an installation, which needs newer tools to build.
    mkdir -p "$place/path/ddptop"
    for package in agent trainers tui; do ln -sfn "$PWD/$package" "$place/path/ddptop/$package"; done
    echo "$place/path" > "$site/ddptop.pth"
}

describe() {
    if command -v nvidia-smi > /dev/null; then nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; fi
    "$place/venv/bin/python" -c 'import torch, sys; print("torch", torch.__version__, "Python", sys.version.split()[0])'
}

case ${1:-} in
    wheels) shift; fetch "$@" ;;
    bench)
        shift
        (($#)) || set -- --net linear --net resnet18 --variant agent --variant launch --world 1 --rounds 3
        environment
        describe
        exec "$place/venv/bin/python" tests/bench/overhead.py --whole --device "${DDPTOP_TEST_DEVICE:-cuda}" "$@"
        ;;
    *)
        environment
        describe
        # Plugins and warnings of other versions, which such a machine may have, are not what is tested.
        export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
        # SIGINT, since pytest then still tells what has failed until now.
        exec timeout --signal=INT --kill-after=20 "$limit_s" \
            "$place/venv/bin/python" -m pytest -q -p pytest_timeout -p no:cacheprovider \
            -o filterwarnings=default --durations=10 "${@:-tests/gpu}"
        ;;
esac
