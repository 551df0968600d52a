. "$ROOT/tests/cli/common"
# Colour is for terminals; a pty stands for one. A bare root may have none.
python3 -c 'import os; os.openpty()' 2>/dev/null || exit 77
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
