. "$ROOT/tests/cli/common"
make llama m
echo "some text" >text.txt
run eval
run eval m m --prefill 1x8
run eval m
run eval m --device cpu
for shape in '' 1 x 1x 1x0 0x1 -1x8 1x8x 1x8, 1x8,,2x8 1@8 1x99999999999999999999 1.5x8; do
    run eval m --prefill "$shape"
done
for shape in '' 1 1x8 1@0 1@8,2; do
    run eval m --decode "$shape"
done
run eval m --prefill 1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1,1x1
for value in 0 1 x -2; do
    run eval m --perplexity text.txt --window "$value"
done
run eval m --perplexity text.txt --max-windows 0
run eval m --perplexity
run eval m --prefill 1x8 --window 8
run eval m --prefill 1x8 --limit 8
run eval m --prefill 1x8 --lm-eval x.json
run eval m --prefill 1x8 --force
run eval m --tasks piqa
run eval m --task-data .
run eval m --tasks hellaswag --task-data .
for device in gpu cuda: cuda:x cuda:1x '' CPU; do
    run eval m --prefill 1x8 --device "$device"
done
run eval m --prefill 1x8 --dtype F16
run eval m --prefill 1x8 --device cuda --dtype F32
run eval m --prefill 1x8 --threads 0
run eval m --prefill 1x8 --frob
run eval missing --prefill 1x8
# Files are looked at before the model is loaded.
run eval m --perplexity text.txt
run eval m --tasks piqa --task-data .
run eval m/model.safetensors --perplexity text.txt
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 64/' m/config.json
grep -c '"max_position_embeddings": 64' m/config.json
run eval m --perplexity text.txt --window 65
run eval m --prefill 1x64,1x65
run eval m --decode 1@64,1@65
