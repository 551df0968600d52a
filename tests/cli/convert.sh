. "$ROOT/tests/cli/common"
# A file of llama2.c: one layer, everything zero, and three tokens.
python3 - <<'END'
import struct
sizes = dim, hidden, layers, heads, kv, vocab, length = 8, 12, 1, 2, 1, 3, 4
n = vocab * dim + dim + 2 * dim * dim + 2 * dim * 4 + dim + 3 * hidden * dim + dim + 4 * 4
with open("m.bin", "wb") as file:
    file.write(struct.pack("<7i", *sizes) + bytes(4 * n))
with open("tok.bin", "wb") as file:
    file.write(struct.pack("<i", 7))
    for token in (b"<unk>", b"\n<s>\n", b"\n</s>\n"):
        file.write(struct.pack("<fi", 0, len(token)) + token)
END
run convert m.bin --tokenizer tok.bin -o out
ls out
cat out/config.json
run convert m.bin --tokenizer tok.bin -o out
run_json "schema model_type dtype n_tensors n_params bytes tokenizer n_tokens" convert m.bin --tokenizer tok.bin -o out --force --dtype F16 --json
run convert m.bin -o other
run convert m.gguf -o other --tokenizer tok.bin
run convert m.gguf -o other
run convert m.gguf
run convert m.bin tok.bin -o other
run convert m.bin --tokenizer tok.bin -o other --dtype I8
run convert m.bin --tokenizer tok.bin -o other --max-shard-size 0
run convert --tokenizer tok.bin tok.bin -o other
ls
