. "$ROOT/tests/cli/common"
run dim 107 --gpu h200
run dim 107 --gpu a100 --strategy optimal
run dim 112 --gpu h200
run dim 107 --gpu h200 --dtype BF16
run dim 107 --gpu h200 --dtype F8_E4M3
run dim 1234567 --gpu h200
"$GAC" contract show h200 --json >own.json
run dim 107 --contract own.json --strategy predefined
