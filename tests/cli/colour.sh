. "$ROOT/tests/cli/common"
# Colour by --color and NO_COLOR.
show() {
    sed 's/\x1b\[/<ESC>[/g'
}
make llama m
cp -r m same
"$GAC" verify m same | show | head -2
"$GAC" verify m same --color always | show | head -2
"$GAC" verify m same --color always --json | grep -c "$(printf '\033')"
NO_COLOR=1 "$GAC" verify m same --color always | show | head -2
"$GAC" dim x --color always 2>&1 | show
"$GAC" dim x --color never 2>&1 | show
run dim 107 --color sometimes
"$GAC" plan m --strategy solve --contract "$SMALL" --color always | show | grep solve
"$GAC" inspect m --contract "$SMALL" --color always | show | grep ESC
"$GAC" dim 107 --contract "$SMALL" --color always | show | sed -n 5,6p
"$GAC" dim 4096x4096 --keep 0.5 --contract "$SMALL" --color always | show | grep ESC
echo x >same/LICENSE
"$GAC" verify m same --color always 2>&1 | show | grep ESC
