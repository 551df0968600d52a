#!/bin/sh
# Shows what gac does, on checkpoints generated as sparse files: they have the
# shapes and headers of real models and take no disk.
#   tools/demo.sh path/to/gac
set -eu
cd "$(dirname "$0")/.."
gac=${1:-build/gac}
out=build/demo
mkdir -p "$out"

make_one() { # recipe
    if [ ! -d "$out/$1" ]; then
        python3 tools/make_checkpoint.py "$1" "$out/$1" >/dev/null
    fi
}

show() { # command
    echo
    echo "\$ gac $*"
    "$gac" "$@"
}

echo "--- One size: what 107 costs on an H200, and what to use instead"
show dim 107 --gpu h200

echo
echo "--- Llama-3-8B by PaLU: per-head ranks 114 to 125, 512 of them"
make_one palu-llama3-8b
show inspect "$out/palu-llama3-8b" --gpu h200

echo
echo "--- Llama-3-8B by SVD-LLM, 15 % smaller: ranks as they fall"
make_one svdllm-llama3-8b
show inspect "$out/svdllm-llama3-8b" --gpu h200

echo
echo "--- In your CI: exit 5 when a size is misaligned"
status=0
"$gac" inspect "$out/svdllm-llama3-8b" --fail-on misaligned >/dev/null || status=$?
echo "exit status $status"
[ "$status" = 5 ]
