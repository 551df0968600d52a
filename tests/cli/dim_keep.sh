. "$ROOT/tests/cli/common"
run dim 4096x14336 --keep 0.8 --contract "$SMALL"
run dim 4096x4096 --keep 1 --contract "$SMALL"
run dim 128x128 --keep 0.5 --contract "$SMALL" --dtype BF16
run dim 16777216x2 --keep 0.9 --contract "$SMALL"
# 0.7 of 1000 * 1000 / 2000 is 350, though 0.7 is no binary number.
run dim 1000x1000 --keep 0.7 --contract "$SMALL" | grep 'rank 350 '
run_json '. from to strategy contract out in keep margin_pct candidates.0. candidates.1 break_even' \
    dim 4096x14336 --keep 0.8 --contract "$SMALL" --json
# By name, too.
run dim 4096x14336 --keep 0.8 --gpu a100 | sed -n 1,4p
run dim 4096x14336 --keep 0.8 | sed -n 4p
# The suggested rank keeps no more than was asked for, whatever the share.
for keep in 0.01 0.1 0.25 0.33 0.5 0.66 0.9 0.99; do
    "$GAC" dim 4096x11008 --keep $keep --gpu h200 --json
done | python3 -c '
import json, sys
text, at = sys.stdin.read(), 0
while at < len(text.rstrip()):
    r, end = json.JSONDecoder().raw_decode(text[at:])
    at += end + 1
    ranks = [k["rank"] for k in r["candidates"]]
    best = [k for k in r["candidates"] if k["suggested"]]
    assert len(best) == 1 and best[0]["within"] and best[0]["kept"] <= r["keep"], r
    assert ranks == sorted(set(ranks)) and r["from"] in ranks and r["to"] == best[0]["rank"]
    assert r["from"] == int(4096 * 11008 * r["keep"] / (4096 + 11008))
print("as asked")'
run dim 4096x14336
run dim 107 --keep 0.5
for keep in 0 -1 1.01 x '' nan 80%; do
    run dim 4096x14336 --keep "$keep"
done
for matrix in 4096x x4096 0x10 1x10 4096x1 4096x4096x2 16777217x2 99999999999999999999x2 4096x-1 4096X4096; do
    run dim "$matrix" --keep 0.5
done
run dim 8x8 --keep 0.1
run dim 4096x14336 --keep 0.5 --strategy minimal
run dim 4096x14336 --keep 0.5 --dtype I8
