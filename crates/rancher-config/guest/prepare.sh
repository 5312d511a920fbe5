#!/bin/sh
# Prepares the system: kernel modules, sysctls, swap, root file system, data disks. Safe to run again.
# Input: lines of "disk NAME SERIAL PATH new|used" and "file SHA256 PATH". A disk that is "used" is never formatted. Files are only named so that
# the input changes with them.
export LC_ALL=C
state=/var/lib/mainstay
input=$state/prepare.input
hash=$(sha256sum "$input" | cut -d' ' -f1)
boot=$(cat /proc/sys/kernel/random/boot_id)

report() {
  text=$(printf '%s' "$2" | tr -cd 'A-Za-z0-9 ._:/%+-' | cut -c1-300)
  printf '{"input":"%s","boot":"%s","rc":%s,"text":"%s"}\n' "$hash" "$boot" "$1" "$text" > "$state/.prepare.json"
  mv -f "$state/.prepare.json" "$state/prepare.json"
}

fail() {
  echo "prepare: $2" >&2
  report "$1" "$2"
  exit "$1"
}

report 75 "started"

for module in $(cat /etc/modules-load.d/mainstay.conf); do
  modprobe "$module" || fail 71 "the kernel has no module $module"
done
for file in /etc/sysctl.d/*mainstay*.conf; do
  said=$(sysctl -q -p "$file" 2>&1) || fail 71 "$file: $said"
done

swapoff -a
if grep -Eq '^[^#].*[[:space:]]swap[[:space:]]' /etc/fstab; then
  sed -i -E '/^[^#].*[[:space:]]swap[[:space:]]/s/^/# /' /etc/fstab
fi

# The partition is grown on the disk that really holds the root file system.
device=$(findmnt -n -o SOURCE /)
number=$(printf '%s' "$device" | sed 's/^.*[^0-9]//')
disk=$(printf '%s' "$device" | sed 's/p\{0,1\}[0-9]*$//')
if [ -n "$number" ] && [ -b "$disk" ]; then
  # Exit code 1 also means that there is nothing to grow.
  growpart "$disk" "$number" > /dev/null 2>&1
  case $(findmnt -n -o FSTYPE /) in
    xfs) xfs_growfs / > /dev/null ;;
    ext4) resize2fs "$device" > /dev/null 2>&1 ;;
  esac
fi

# Finds a disk by the serial that its VM gives it. Device names change from boot to boot.
device_of() {
  for link in /dev/disk/by-id/*"$1"; do
    [ -b "$link" ] && readlink -f "$link" && return
  done
  return 1
}

mount_disk() {
  name=$1 serial=$2 path=$3 age=$4
  label=ms-$name
  device=$(device_of "$serial") || fail 66 "no disk with serial $serial"
  found=$(blkid -p -s LABEL -o value "$device")
  if [ "$found" != "$label" ]; then
    [ "$age" = new ] || fail 77 "disk $name has no file system $label and is not new: it is not formatted"
    # Both tools must find nothing: each knows signatures that the other does not.
    [ -z "$(wipefs -n "$device")" ] && [ -z "$(blkid -p "$device")" ] || fail 77 "disk $name holds data: it is not formatted"
    mkfs.ext4 -q -L "$label" "$device" || fail 74 "disk $name cannot be formatted"
  fi
  if ! grep -q "^LABEL=$label " /etc/fstab; then
    printf 'LABEL=%s %s ext4 defaults,nofail,x-systemd.device-timeout=30 0 2\n' "$label" "$path" >> /etc/fstab
  fi
  mkdir -p "$path"
  systemctl daemon-reload
  if ! mountpoint -q "$path"; then
    mount "$path" || fail 74 "$path cannot be mounted"
  fi
  resize2fs "$device" > /dev/null 2>&1
}

while read -r word name serial path age; do
  [ "$word" = disk ] && mount_disk "$name" "$serial" "$path" "$age"
done < "$input"
report 0 "done"
