. "$ROOT/tests/cli/common"
# A misspelt command or option gets the one that may be meant.
run inpsect m
run help planx
run repare m -o x
run xyzzy
run --verison
run --hlep
run inspect m --workloads prefill:1x8
run inspect m --wrkload=prefill:1x8
run plan m --max-overhed 5
run repair m -o x --dryrun
run eval m --devise cpu
run experiment --stak both
run dim 107 -json
# Names are written in full.
run dim 107 --strat minimal
run dim 107 --g h200
# Former names work, and are not suggested or shown.
run dim 107 --strategy optimal
run dim 107 --colour never
run experiment S1 --lens jax
run eval m --as-is
run eval m --asis
run experiment --one-cases x
for command in $("$GAC" help --commands); do
    "$GAC" "$command" --help
done | grep -c -e '--lens' -e '--as-is' -e 'optimal' -e '--colour' -e '--one-case' || true
