#!/bin/sh
# Draws the live view of `mainstay demo` as a terminal shows it, in 80 and in 120 columns, and keeps the text of the screen.
# Needs tmux. Usage: docs/captures/make.sh [path of the mainstay binary]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mainstay=${1:-$here/../../target/release/mainstay}
test -x "$mainstay" || { echo "$mainstay is not there: cargo build --release -p mainstay" >&2; exit 1; }
server=mainstay-captures-$$
empty=$(mktemp -d)
trap 'tmux -L "$server" kill-server 2>/dev/null || true; rm -rf "$empty"' EXIT

# capture NAME WIDTH SECONDS COMMAND: the screen as it is so long after the command began
capture() {
    tmux -L "$server" -f /dev/null new-session -d -s "$1" -x "$2" -y 30 \
        "cd '$empty' && env -u CI -u NO_COLOR HOME='$empty' TERM=xterm-256color $4; sleep 60"
    sleep "$3"
    tmux -L "$server" capture-pane -p -t "$1" | sed 's/[[:space:]]*$//' | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$here/$1.txt"
    tmux -L "$server" kill-session -t "$1"
    echo "wrote $here/$1.txt"
}

for width in 80 120; do
    capture "up-$width" "$width" 5 "'$mainstay' demo --speed 30"
    capture "status-$width" "$width" 12 "'$mainstay' demo --speed 60 2>/dev/null"
done
