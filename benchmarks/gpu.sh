#!/usr/bin/env bash
# The GPU checks, in one go and under 8 minutes: sets up what is missing, measures, and leaves the page in OUT (default: benchmarks/results).
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -c 'import torch, transformers, nnterp' 2>/dev/null || {
    python3 -m venv .venv-gpu --system-site-packages
    . .venv-gpu/bin/activate
    python3 -m pip install --quiet --disable-pip-version-check -e .
}
PYTHONPATH="$PWD" timeout 420 python3 benchmarks/gpu.py --out "${OUT:-benchmarks/results}" "$@"
