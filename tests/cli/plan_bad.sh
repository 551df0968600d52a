. "$ROOT/tests/cli/common"
make svdllm m
run plan
run plan m --strategy best
run plan m --time-target 5
run plan m --time-target 0.5x --contract "$SMALL"
run plan m --strategy solve --time-target 0.0001ms --contract "$SMALL"
run plan m --set width
run plan m --set layers.0.mlp.width=8
run plan m --set layers.0.mlp.width=2147483647
run plan m --set hidden=256
run plan m --set layers.0.mlp.wdith=200
run plan m --allow refused
run plan m --max-overhead -1
run plan m --pareto --max-overhead 2
run plan m --pareto --strategy solve
run plan missing
