. "$ROOT/tests/cli/common"
# Colour is for terminals; a pty stands for one.
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
on_terminal() {
    python3 - "$@" <<'EOT'
import os, pty, sys
pid, master = pty.fork()
if pid == 0:
    os.environ.update(a.split("=", 1) for a in sys.argv[1:])
    os.execv(os.environ["GAC"], ["gac", "dim", "x"])
text = b""
try:
    while part := os.read(master, 1000):
        text += part
except OSError:
    pass
os.waitpid(pid, 0)
print(sys.argv[1:], "colour" if b"\x1b[" in text else "plain")
EOT
}
unset NO_COLOR
on_terminal TERM=xterm
on_terminal TERM=xterm NO_COLOR=
on_terminal TERM=xterm NO_COLOR=1
on_terminal TERM=dumb
