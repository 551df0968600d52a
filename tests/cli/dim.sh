. "$ROOT/tests/cli/common"
for strategy in minimal optimal predefined tradeoff; do
    for size in 1 107 112 114 120 121 257 1638; do
        run dim $size --strategy $strategy
    done
done
run dim 107
run dim --strategy=optimal 114
run dim 100 --strategy tradeoff --max-overhead 4
run dim 100 --strategy tradeoff --max-overhead 4.5
run dim 107 -q
run dim 107 -v
run dim -- 107
