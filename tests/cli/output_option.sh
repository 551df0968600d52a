. "$ROOT/tests/cli/common"
# -o is the output where a command has one, and no option anywhere else.
make svdllm m
run eval m --prefill 1x4 -o 1
run generate m hello -o x
run verify m m -o x
run inspect m -o x
run dim 107 -o BF16
run dim -oBF16 107
run dim --json -ox 107
run contract list -o x
run contract show h200 -o x
for command in plan repair convert probe experiment; do
    run "$command" m -o
    run "$command" m -o ''
    "$GAC" "$command" --help | grep -c '^  -o, --output '
done
run convert m --output d
run convert m --outpt d
run dim 107 --json=yes
run dim 107 -d
ls
