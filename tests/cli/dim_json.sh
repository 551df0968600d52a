. "$ROOT/tests/cli/common"
run_json '. schema tool. machine. arguments from to strategy overhead_pct' dim 100 --json
run_json '. from to contract places.0. places.4.seen places.4.aligned' dim 107 --contract "$SMALL" --json
run_json 'places.0.served places.0.runs_as places.0.family' dim 107 --contract "$SMALL" --dtype F8_E4M3 --json
run_json 'arguments' dim 107 --strategy=minimal -j
