. "$ROOT/tests/cli/common"
make svdllm m
make pruned-mlp p
for strategy in minimal optimal predefined tradeoff solve; do
    run plan m --contract "$SMALL" --strategy $strategy
done
run plan m --contract "$SMALL" --strategy solve --max-overhead 3
run plan m --contract "$SMALL" --strategy solve --time-target 0.96x
run plan m --contract "$SMALL" --strategy solve --max-overhead 1e18 | tail -n 4
run plan m --contract "$SMALL" --strategy solve --max-overhead 0
run_json "n_dims_changed note overhead_pct limit_pct margin_basis optimal" \
    plan m --contract "$SMALL" --strategy solve --max-overhead 0 --json
run_json "." plan m --contract "$SMALL" --strategy solve --json
run_json "margin_pct margin_basis" plan m --strategy solve --gpu a100 --json
run plan p --contract "$SMALL" --uniform --strategy optimal
run plan m --contract "$SMALL" --set 'layers.0.*rank=64' --set layers.1.mlp.width=200
run plan m --contract "$SMALL" --strategy solve -o plan.json -q
grep -c '"name"' plan.json
run plan m --contract "$SMALL" -o plan.json
run plan m --contract "$SMALL" -o plan.json --force -q
run_json ". strategy optimal dims.0" plan m --json --contract "$SMALL"
run plan m --contract "$SMALL" --pareto --data front.dat
head -n 2 front.dat
run_json ". complete" plan m --pareto --json --contract "$SMALL"
