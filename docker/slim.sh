#!/bin/sh
# Makes an environment of the packages that fedcore needs smaller: slim.sh FOLDER. Removes what no process of fedcore
# reads, strips libraries, and compiles what the processes import of them.
set -eu
folder="$1"
cd "$folder"/lib/python3*/site-packages

# torch's tests, headers and the programs of its build: an image has no compiler.
rm -rf torch/test torch/include torch/share
find torch/bin -type f ! -name torch_shm_manager -delete
for package in joblib matplotlib mpmath networkx numpy pandas scipy sklearn sympy; do
    find "$package" -type d -name tests -prune -exec rm -rf {} +
done
rm -rf matplotlib/mpl-data/sample_data
# Flower installs apps' dependencies with uv, fedcore does not; pip has done its work.
rm -rf "$folder"/bin/uv "$folder"/bin/uvx "$folder"/bin/pip* pip pip-*.dist-info

# Those in *.libs were changed after they were linked, which strip does not survive everywhere; NVIDIA's are not ours to change.
if command -v strip >/dev/null; then
    find . -path '*.libs' -prune -o -path ./nvidia -prune -o -name '*.so*' -type f -exec strip --strip-unneeded {} +
fi

# Of the largest packages only what is imported.
"$folder"/bin/python -m compileall -q -j 0 -x '/(torch|transformers|scipy|sympy|pandas|sklearn|matplotlib|fontTools)/' . || true
FLWR_TELEMETRY_ENABLED=0 "$folder"/bin/python -W ignore -c 'import torch._dynamo, torch.distributed.tensor, torch.distributed.run
import flwr.clientapp, flwr.serverapp, matplotlib.pyplot, pandas, scipy.stats, sklearn.datasets, sklearn.linear_model, sklearn.metrics'
