. "$ROOT/tests/cli/common"
run dim
run dim 1 2
for size in '' x 0 -5 1e3 107.5 0x10 '107 ' 9223372036854775807 9223372036854775808; do
    run dim "$size"
done
run dim -- -5
run dim 107 --strategy best
run dim 107 --strategy
run dim 107 --max-overhead x
run dim 107 --max-overhead -1
run dim 107 --max-overhead nan
run dim 107 --gpu b200
run dim 107 --gpu
run dim 107 --gpu h200 --contract x.json
run dim 107 --contract missing.json
run dim 107 --dtype FP16
run dim 107 --gpu h200 --dtype I8
run dim 107 --wrong
run dim 107 -x
run dim 107 --json=3
