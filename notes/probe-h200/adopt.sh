#!/bin/sh
# Puts a new run in the place of the bundled contract. What the old run drew stays, for comparison.
#
#   adopt.sh FOLDER BUILD   FOLDER has what run.sh brought back; BUILD is made again
#
# The figures of docs/contract.md are written anew; nothing else depends on the contract.
set -eu
folder=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
cd "$(dirname "$0")/../.."
here=notes/probe-h200

python3 "$here/draws.py" --keep "$here/raw.json.gz"
for file in raw.json.gz log.txt model.raw.json.gz model.log.txt; do
    install -m 644 "$folder/$file" "$here/$file"
done
install -m 644 "$folder/h200.json" contracts/h200.json
cmake --build "$build" > "$build/adopt.log"
python3 tools/contract/heldout.py "$here/raw.json.gz" tests/data/heldout/h200
python3 tools/contract/accuracy.py "$here/raw.json.gz" contracts/h200.json --library "$build/libgac.so" --check
python3 "$here/figures.py" --library "$build/libgac.so" --write
