. "$ROOT/tests/cli/common"
make svdllm m --fill 1
run repair m
run repair m -o m
run repair missing -o x
run repair m -o x --undo
run repair m -o nowhere/x
run repair m -o x --max-shard-size 5XB
run repair m -o x --widths any
run repair m -o x --plan missing.json
echo '{"schema":"gac.plan/1"}' >plan.json
run repair m -o x --plan plan.json
echo '{"schema":"gac.plan/1","dims":[{"name":"layers.9.mlp.width","from":1,"to":2}]}' >plan.json
run repair m -o x --plan plan.json
echo '{"schema":"gac.plan/1","dims":[{"name":"layers.0.mlp.width","from":192,"to":100}]}' >plan.json
run repair m -o x --plan plan.json
echo '{"schema":"gac.plan/1","dims":[{"name":"layers.0.mlp.width","from":192,"to":2147483647}]}' >plan.json
run repair m -o x --plan plan.json
echo '{"schema":"gac.plan/1","dims":[{"name":"vocab","from":80,"to":88}]}' >plan.json
run repair m -o x --plan plan.json
echo '{"schema":"gac.plan/1","dims":[{"name":"hidden","from":128,"to":136}]}' >plan.json
run repair m -o x --plan plan.json
run repair m -o x --plan plan.json --strategy minimal
run verify m
run repair m -o fit -q
python3 - <<'END'
data = bytearray(open("fit/model.safetensors", "rb").read())
data[-1] ^= 1
open("fit/model.safetensors", "wb").write(data)
END
run verify m fit
ls -A | grep -v fit
# What the engine would not run is not restated for another head size either.
mkdir rotary
cp "$ROOT"/models/tiny/model.safetensors rotary
sed 's/"rope_type": "default"/"rope_type": "llama3"/' "$ROOT"/models/tiny/config.json >rotary/config.json
run repair rotary -o x --set '*head*=40' --allow rescaled -q
sed 's/"rope_type": "default"/"rope_type": "linear", "factor": "x"/' "$ROOT"/models/tiny/config.json \
    >rotary/config.json
run repair rotary -o x --set '*head*=40' --allow rescaled -q
