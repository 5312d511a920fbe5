#!/bin/sh
# Runs before the server's unit starts. Exit 0 lets it start, exit 1 leaves it down without an error.
# A server that finds neither data nor a server to join founds a new cluster. That must happen exactly once.
# Arguments: data directory, config file.
export LC_ALL=C
data=$1
config=$2
state=/var/lib/mainstay

refuse() {
  mkdir -p "$state"
  printf '%s %s\n' "$(date +%s)" "$1" > "$state/refused"
  echo "not started: $1" >&2
  exit 1
}

# Only "No such file or directory" means absent. Any other failure leaves the question open.
look() {
  if said=$(stat -c %F "$1" 2>&1); then
    echo present
  else
    case $said in
      *"No such file or directory"*) echo absent ;;
      *) echo unknown ;;
    esac
  fi
}

for path in "$data/server/db/etcd" "$data/server/db/state.db"; do
  case $(look "$path") in
    present)
      rm -f "$state/refused"
      exit 0
      ;;
    unknown) refuse "$path cannot be read" ;;
  esac
done

if grep -q '^server: "https://' "$config" && grep -q '^token: "K10' "$config"; then
  rm -f "$state/refused"
  exit 0
fi

if [ -s "$state/found" ]; then
  rm -f "$state/refused"
  exit 0
fi

refuse "no etcd data, no server to join, and no intent to found a cluster"
