. "$ROOT/tests/cli/common"
make llama m
run generate
run generate m
run generate m a b
run generate m "a prompt" --ids 1
run generate m --ids
for ids in '' , 1, ,1 1,,2 x -1 1,-2 2147483648 '1 2' 1.5; do
    run generate m --ids "$ids"
done
run generate m a --max-tokens 0
run generate m a --temperature x
run generate m a --temperature -1
run generate m a --temperature nan
run generate m a --temperature inf
run generate m a --temperature 1 --top-p 0
run generate m a --temperature 1 --top-p 1.5
run generate m a --temperature 1 --top-k 0
run generate m a --temperature 1 --seed -1
run generate m a --top-k 5
run generate m a --seed 5
run generate m a --device gpu
run generate m a --dtype BF16
run generate m a --frob
run generate missing a
run generate m a
run generate m/model.safetensors a
for eos in '"</s>"' -1 1.5 2147483648 '[1, "2"]' '[1, -1]' '[1, [2]]' true '{}' \
    '[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]'; do
    echo "{\"eos_token_id\": $eos}" >m/generation_config.json
    run generate m --ids 1
done
for text in '' '[]' 5 '{"eos_token_id": 1, "eos_token_id": 2}' '{"eos_token_id": 1'; do
    echo "$text" >m/generation_config.json
    run generate m --ids 1
done
rm m/generation_config.json
mkfifo m/generation_config.json
run generate m --ids 1
rm m/generation_config.json
ln -s /etc/passwd m/generation_config.json
run generate m --ids 1
rm m/generation_config.json
sed -i 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 4/' m/config.json
run generate m --ids 1,2,3,4,5
