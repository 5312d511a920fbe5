#!/bin/sh
# Downloads, verifies and unpacks the artifacts of one release. Safe to run again: what is verified is not downloaded twice.
# Input: "release VERSION", "import-to DIRECTORY", then lines of "KIND SHA256 FILE URL". KIND is program or images. URL is "-" for a file that was pushed to the store.
# Nothing becomes active here: the running version changes only when the release is activated.
export LC_ALL=C
state=/var/lib/mainstay
input=$state/fetch.input
store=$state/artifacts
umask 022

release=$(sed -n 's/^release //p' "$input")
images=$(sed -n 's/^import-to //p' "$input")
root=/usr/local/lib/mainstay/releases/$release
hash=$(sha256sum "$input" | cut -d' ' -f1)
boot=$(cat /proc/sys/kernel/random/boot_id)

report() {
  text=$(printf '%s' "$2" | tr -cd 'A-Za-z0-9 ._:/%+-' | cut -c1-300)
  printf '{"input":"%s","boot":"%s","rc":%s,"text":"%s"}\n' "$hash" "$boot" "$1" "$text" > "$state/.fetch.json"
  mv -f "$state/.fetch.json" "$state/fetch.json"
}

fail() {
  echo "fetch: $2" >&2
  report "$1" "$2"
  exit "$1"
}

is_verified() {
  [ -f "$2" ] && [ "$(sha256sum "$2" | cut -d' ' -f1)" = "$1" ]
}

# Whichever downloader the image has. A slow but living connection is not given up.
download() {
  if command -v curl > /dev/null; then
    curl -fsSL --connect-timeout 20 -y 60 -Y 1024 -C - -o "$2" "$1"
  elif command -v wget > /dev/null; then
    wget -q -T 60 -t 1 -O "$2" "$1"
  else
    python3 -c 'import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as answer, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(answer, file)' "$1" "$2"
  fi
}

# Leaves the verified file in the store.
obtain() {
  sha=$1 file=$2 url=$3
  target=$store/$file
  is_verified "$sha" "$target" && return
  [ "$url" != "-" ] || fail 66 "$file was not pushed or is not complete"
  attempt=1
  while [ "$attempt" -le 10 ]; do
    said=$(download "$url" "$target.part" 2>&1)
    code=$?
    if [ "$code" -eq 0 ]; then
      if is_verified "$sha" "$target.part"; then
        mv -f "$target.part" "$target"
        return
      fi
      rm -f "$target.part"
      # The same wrong bytes come again, so the machine does not ask for ever.
      [ "$attempt" -lt 3 ] || fail 65 "$file has another checksum than the one that was pinned"
    fi
    # 33: the server cannot resume. 36: the part is longer than the file.
    case $code in 33 | 36) rm -f "$target.part" ;; esac
    report 75 "attempt $attempt: $file: $said"
    attempt=$((attempt + 1))
    sleep 6
  done
  fail 69 "$file cannot be downloaded: $said"
}

unpack() {
  [ -d "$root" ] && return
  rm -rf "$root.new"
  mkdir -p "$root.new/bin"
  case $1 in
    *.tar.gz) tar -xzf "$store/$1" -C "$root.new" || fail 65 "$1 cannot be unpacked" ;;
    *) cp "$store/$1" "$root.new/bin/$1" && chmod 755 "$root.new/bin/$1" || fail 73 "$1 cannot be copied" ;;
  esac
  sync
  mv -T "$root.new" "$root" || fail 73 "$root cannot be made"
}

mkdir -p "$store" "${root%/*}"
report 75 "started"
while read -r kind sha file url; do
  case $kind in
    program)
      obtain "$sha" "$file" "$url"
      unpack "$file"
      ;;
    images)
      mkdir -p "$images"
      if ! is_verified "$sha" "$images/$file"; then
        obtain "$sha" "$file" "$url"
        # Moved, not copied: two copies of an archive may not fit on the disk.
        mv -f "$store/$file" "$images/.$file.new" && mv -f "$images/.$file.new" "$images/$file" || fail 73 "$file cannot be placed"
      fi
      ;;
  esac
done < "$input"
report 0 "done"
