#!/bin/sh
# Puts a new run in the place of the bundled contract, whose run becomes the other one; of the
# other so far stays what it drew.
#
#   adopt.sh FOLDER BUILD   FOLDER has what run.sh brought back; BUILD is made again
#
# What else follows from the contract is made again too. The end of the output has the figures
# that the text of docs/contract.md quotes; no test compares those.
set -eu
folder=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
cd "$(dirname "$0")/../.."
here=notes/probe-h200

python3 "$here/draws.py" --keep "$here/other.raw.json.gz"
for file in raw.json.gz log.txt model.raw.json.gz model.log.txt; do
    mv "$here/$file" "$here/other.$file"
    install -m 644 "$folder/$file" "$here/$file"
done
install -m 644 "$folder/h200.json" contracts/h200.json
cmake --build "$build" > "$build/adopt.log"
for run in h200:raw other:other.raw; do
    python3 tools/contract/heldout.py "$here/${run#*:}.json.gz" "tests/data/heldout/${run%:*}"
done
UPDATE=1 sh tests/cli/run.sh "$build/gac" "$build/cli"
python3 experiments/validation/advice/advice.py shapes --gac "$build/gac" --out "$build/shapes.json"
for host in "" .slow-host; do
    python3 experiments/validation/advice/advice.py compare --shapes "$build/shapes.json" \
        --measured "experiments/validation/advice/measured${host:-.h200}.json" --out "experiments/validation/advice/h200$host.json" |
        grep falls
done
python3 notes/dense/analyse.py --library "$build/libgac.so" --contract contracts/h200.json \
    > notes/dense/analysis.now.txt
for widths in random common; do
    echo "rank.py $widths.*.json"
    python3 notes/places/rank.py notes/places/$widths.*.json --library "$build/libgac.so" \
        --contract contracts/h200.json -v
done > notes/places/rank.txt
for runs in "raw other.raw" "raw seed12.raw" "other.raw seed12.raw"; do
    echo "twice.py ${runs% *}.json.gz ${runs#* }.json.gz"
    python3 "$here/twice.py" "$here/${runs% *}.json.gz" "$here/${runs#* }.json.gz"
    echo
done > "$here/twice.txt"
for run in model other.model model.before; do
    python3 "$here/model.py" "$here/$run.raw.json.gz" contracts/h200.json --library "$build/libgac.so"
done
python3 tools/contract/accuracy.py "$here/raw.json.gz" contracts/h200.json --library "$build/libgac.so" --check
python3 "$here/figures.py" --library "$build/libgac.so" --write
