. "$ROOT/tests/cli/common"
# The weights are cut while they are read where they are mapped.
cp -r "$ROOT/models/tiny" m
for i in 1 2 3 4 5 6 7 8; do cat m/heldout.txt; done >text
"$GAC" eval m --perplexity text --device reference >stdout.tmp 2>stderr.tmp &
until grep -qs tokens stderr.tmp || ! kill -0 $! 2>/dev/null; do
    sleep 0.1
done
truncate -s 4096 m/model.safetensors
wait $!
echo "exit $?"
cat stdout.tmp
tr '\r' '\n' <stderr.tmp | grep '^gac'
