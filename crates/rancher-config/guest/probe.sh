# Prints everything that decides a step on this machine, one fact a line, and "end" at the end.
# Arguments: distribution, unit, then the files whose hash is wanted.
distro=$1 unit=$2
shift 2
data=/var/lib/rancher/$distro
state=/var/lib/mainstay

# Only "No such file or directory" means absent.
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

hash_of() {
  case $(look "$1") in
    present)
      hash=$(sha256sum "$1" 2> /dev/null | cut -d' ' -f1)
      echo "${hash:-unknown}"
      ;;
    *) look "$1" ;;
  esac
}

echo "probe 1"
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
echo "uuid $(cat /sys/class/dmi/id/product_uuid)"
echo "serial $(cat /sys/class/dmi/id/product_serial)"
echo "clock $(date +%s)"
echo "hostname $(hostname)"
if [ -e /etc/cloud/cloud-init.disabled ]; then
  echo "cloud-init disabled"
elif [ -e /run/cloud-init/result.json ]; then
  echo "cloud-init done"
else
  case $(cloud-init status 2> /dev/null) in
    *disabled*) echo "cloud-init disabled" ;;
    *) echo "cloud-init running" ;;
  esac
fi
for nic in /sys/class/net/*; do
  [ -e "$nic/device" ] && echo "nic $(basename "$nic") $(cat "$nic/address")"
done
ip -o addr show scope global | while read -r _ name family address _; do
  case $family in inet | inet6) echo "address $name $address" ;; esac
done
ip route show default | while read -r _ _ _ _ name _; do echo "default-route $name"; done
echo "free $(df -B1 --output=avail / | tail -n 1)"
if [ -x "/usr/local/bin/$distro" ]; then
  echo "version $("/usr/local/bin/$distro" --version 2> /dev/null | head -n 1)"
fi
echo "binary $(hash_of "/usr/local/bin/$distro")"
for release in /usr/local/lib/mainstay/releases/*; do
  [ -d "$release" ] && case $release in *.new) ;; *) echo "release $(basename "$release")" ;; esac
done
for file in "$@"; do
  echo "file $(hash_of "$file") $file"
done
# How this machine joins, and a hash of all else that its config says.
config=/etc/rancher/$distro/config.yaml
if [ -r "$config" ]; then
  echo "joins $(sed -E '/^(server|cluster-init): /d' "$config" | sha256sum | cut -d' ' -f1) $(sed -n 's/^server: //p' "$config" | tr -d '"')"
fi
for extra in "/etc/rancher/$distro/config.yaml.d"/*; do
  [ -e "$extra" ] && echo "foreign-config $(basename "$extra")"
done
for path in server/db/etcd server/db/state.db server/cred server/tls; do
  echo "data $(look "$data/$path") $path"
done
echo "data $(look /etc/rancher/node/password) node-password"
echo "data $(look "$state/found") found"
echo "mount $(findmnt -n -o TARGET -T "$data" 2> /dev/null || echo /)"
for name in "$unit" mainstay-fetch.service mainstay-prepare.service mainstay-packages.service; do
  echo "unit $name $(systemctl show "$name" -p ActiveState -p SubState -p Result -p NRestarts -p UnitFileState | tr '\n' ' ')"
done
for work in fetch prepare packages; do
  [ -e "$state/$work.json" ] && echo "result $work $(cat "$state/$work.json")"
done
[ -e "$state/refused" ] && echo "refused $(cat "$state/refused")"
if pgrep -x etcd > /dev/null; then echo "process etcd"; fi
if pgrep -x kube-apiserver > /dev/null; then echo "process kube-apiserver"; fi
if grep -q '^ENABLED=yes' /etc/ufw/ufw.conf 2> /dev/null; then echo "firewall ufw"; fi
for firewall in firewalld nftables; do
  if systemctl is-active --quiet "$firewall.service"; then echo "firewall $firewall"; fi
done
[ -e /run/mainstay-restart-pending ] && echo "restart-pending"
[ -e /run/reboot-required ] && echo "reboot-required"
echo "end"
