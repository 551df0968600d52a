. "$ROOT/tests/cli/common"
make llama m
run verify m
run verify m m m
run verify m m --frob
run verify m m --device cpu
run verify m m --n-tokens 5
run verify m m --tokens x.txt
run verify m m --seed 5
run verify m m --forward --device gpu
run verify m m --forward --n-tokens 0
run verify m m --forward --seed x
run verify m missing --forward
