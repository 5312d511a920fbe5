//! Commands of a guest as data.

use std::time::Duration;

use super::{GuestCommand, GuestFile, PinnedArtifact, Work, paths};
use crate::distro::{Distro, Role};
use crate::version::ReleaseVersion;

const SHORT: Duration = Duration::from_secs(60);

/// Everything that steps on this machine are decided by. Changes nothing and needs no lock.
pub fn probe(distro: Distro, role: Role, files: &[GuestFile]) -> GuestCommand {
    let arguments = [distro.name(), distro.unit(role)].map(str::to_owned).into_iter();
    GuestCommand {
        name: "probe",
        script: include_str!("../../guest/probe.sh").to_owned(),
        arguments: arguments.chain(files.iter().map(|file| file.path.clone())).collect(),
        timeout: SHORT,
    }
}

/// Makes the directories whose mode matters before files are written into them.
pub fn directories(distro: Distro) -> GuestCommand {
    locked(
        "make directories",
        r#"install -d -m 0755 "$1" /usr/local/lib/mainstay /var/lib/mainstay
install -d -m 0755 "$2"
install -d -m 0700 "$2/server" "$2/server/tls" "$2/server/tls/etcd" "$2/server/manifests"
"#,
        [distro.config_dir(), distro.data_dir()],
    )
}

/// Starts long work and returns at once. Work that is running already is left alone.
pub fn run_work(work: Work) -> GuestCommand {
    locked(
        "start work",
        r#"systemctl daemon-reload
systemctl start --no-block "$1"
"#,
        [work.unit()],
    )
}

/// Installs a fetched release: program files and units are replaced one by one by a rename. The running process keeps the old version
/// until its unit restarts.
pub fn activate(version: ReleaseVersion) -> GuestCommand {
    locked(
        "activate release",
        r#"root=/usr/local/lib/mainstay/releases/$1
[ -d "$root/bin" ] || { echo "release $1 is not unpacked" >&2; exit 66; }
place() {
  mkdir -p "${2%/*}"
  cp "$1" "$2.mainstay-new"
  chmod "$3" "$2.mainstay-new"
  mv -f "$2.mainstay-new" "$2"
}
for file in "$root"/bin/*; do
  place "$file" "/usr/local/bin/${file##*/}" 0755
done
if [ -d "$root/lib/systemd/system" ]; then
  for file in "$root"/lib/systemd/system/*; do
    place "$file" "/usr/local/lib/systemd/system/${file##*/}" 0644
  done
fi
sync
systemctl daemon-reload
"#,
        [version.to_string()],
    )
}

/// Enables and starts the server or agent, and returns at once: its start ends when it is ready, which may be never.
pub fn start_unit(distro: Distro, role: Role) -> GuestCommand {
    locked(
        "start unit",
        r#"systemctl daemon-reload
systemctl reset-failed "$1" 2> /dev/null || true
systemctl enable "$1"
systemctl start --no-block "$1"
"#,
        [distro.unit(role).to_owned()],
    )
}

/// Restarts after a changed config or version. Pods keep running.
pub fn restart_unit(distro: Distro, role: Role) -> GuestCommand {
    locked(
        "restart unit",
        r#"systemctl daemon-reload
systemctl restart --no-block "$1"
rm -f "$2"
"#,
        [distro.unit(role).to_owned(), paths::RESTART_PENDING.to_owned()],
    )
}

/// Records in the guest that this server may found the cluster. `intent` is the id recorded in the machine's mark.
///
/// The hard link fails if the file exists, so that two runs cannot both believe that they wrote it. The same intent again is no error.
pub fn may_found(distro: Distro, intent: &str) -> GuestCommand {
    locked(
        "record founding",
        r#"data=$1 intent=$2 found=/var/lib/mainstay/found
for path in "$data/server/db/etcd" "$data/server/db/state.db"; do
  if said=$(stat -c %F "$path" 2>&1); then
    echo "$path exists: this server has founded or joined a cluster" >&2
    exit 65
  fi
  case $said in
    *"No such file or directory"*) ;;
    *) echo "$path cannot be read" >&2; exit 74 ;;
  esac
done
mkdir -p /var/lib/mainstay
printf '%s\n' "$intent" > "$found.new"
sync
if ! ln "$found.new" "$found" 2> /dev/null && [ "$(cat "$found")" != "$intent" ]; then
  rm -f "$found.new"
  echo "another intent is recorded" >&2
  exit 65
fi
rm -f "$found.new"
sync
"#,
        [distro.data_dir(), intent.to_owned()],
    )
}

/// Takes back an intent that was recorded and never used.
pub fn forget_found() -> GuestCommand {
    locked("forget founding", "rm -f \"$1\"\n", [paths::FOUND.to_owned()])
}

/// Deletes the datastore of a founder that was killed in its first seconds and can never start.
///
/// Only for a founder whose cluster never was ready and which no other server joined: the caller must know. This command checks what only
/// the guest can know: that no etcd or API server runs and the ports are free. Stopping RKE2's unit leaves both running.
pub fn wipe_unready_founder(distro: Distro) -> GuestCommand {
    let mut command = locked(
        "delete unready datastore",
        r#"data=$1 unit=$2 killall=$3
systemctl stop "$unit"
[ ! -x "$killall" ] || "$killall" > /dev/null 2>&1 || true
for process in etcd kube-apiserver; do
  if pgrep -x "$process" > /dev/null; then
    echo "$process still runs" >&2
    exit 75
  fi
done
if ss -Hltn | grep -Eq ':(2379|2380)[[:space:]]'; then
  echo "etcd's ports are in use" >&2
  exit 75
fi
rm -rf "$data/server/db"
for copy in "$data"/server/tls-*; do
  [ ! -d "$copy" ] || rm -rf "$copy"
done
sync
"#,
        [
            distro.data_dir(),
            distro.unit(Role::Server).to_owned(),
            format!("/usr/local/bin/{distro}-killall.sh"),
        ],
    );
    command.timeout = Duration::from_secs(180);
    command
}

/// How one unit is: a light question for polling, where a probe would hash every file. See [`super::UnitReport`].
pub fn unit_status(unit: &str, work: Option<Work>) -> GuestCommand {
    GuestCommand {
        name: "unit status",
        script: r#"unit=$1 work=$2 state=/var/lib/mainstay
echo "status 1"
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
echo "unit $unit $(systemctl show "$unit" -p ActiveState -p SubState -p Result -p NRestarts -p MainPID -p UnitFileState | tr '\n' ' ')"
if [ -n "$work" ] && [ -e "$state/$work.json" ]; then echo "result $(cat "$state/$work.json")"; fi
if [ -e "$state/refused" ]; then echo "refused $(cat "$state/refused")"; fi
journalctl -u "$unit" -n 20 --no-pager -o cat | sed 's/^/log /'
echo "end"
"#
        .to_owned(),
        arguments: vec![unit.to_owned(), work.map_or("", Work::name).to_owned()],
        timeout: SHORT,
    }
}

/// How much of a pushed artifact the guest has: `verified`, or `part BYTES`.
pub fn pushed_state(artifact: &PinnedArtifact) -> GuestCommand {
    GuestCommand {
        name: "pushed artifact",
        script: r#"target=$1 sha=$2
if [ -f "$target" ] && [ "$(sha256sum "$target" | cut -d' ' -f1)" = "$sha" ]; then
  echo "verified"
elif [ -f "$target.part" ]; then
  echo "part $(stat -c %s "$target.part")"
else
  echo "part 0"
fi
"#
        .to_owned(),
        arguments: vec![artifact.pushed_path(), artifact.sha256.hex().to_owned()],
        timeout: Duration::from_secs(300),
    }
}

/// Appends stdin to a pushed artifact from `offset` on. The complete file is verified and gets its name; a part that broke off stays.
///
/// Free space for twice the artifact is asked for first: it is unpacked or imported beside itself.
pub fn receive_artifact(artifact: &PinnedArtifact, offset: u64, length: u64) -> GuestCommand {
    GuestCommand {
        name: "receive artifact",
        script: r#"set -eu
target=$1 sha=$2 offset=$3 length=$4
directory=${target%/*}
mkdir -p "$directory"
free=$(df -B1 --output=avail "$directory" | tail -n 1)
if [ "$free" -lt "$((2 * length - offset))" ]; then
  echo "$free bytes are free, the artifact needs $((2 * length - offset))" >&2
  exit 73
fi
touch "$target.part"
have=$(stat -c %s "$target.part")
if [ "$have" -ne "$offset" ]; then
  echo "the part has $have bytes, not $offset" >&2
  exit 75
fi
cat >> "$target.part"
have=$(stat -c %s "$target.part")
if [ "$have" -lt "$length" ]; then
  echo "received $have of $length bytes" >&2
  exit 74
fi
if [ "$(sha256sum "$target.part" | cut -d' ' -f1)" != "$sha" ]; then
  rm -f "$target.part"
  echo "the artifact has another checksum than the one that was pinned" >&2
  exit 65
fi
sync "$target.part"
mv -fT "$target.part" "$target"
sync "$directory"
"#
        .to_owned(),
        arguments: vec![
            artifact.pushed_path(),
            artifact.sha256.hex().to_owned(),
            offset.to_string(),
            length.to_string(),
        ],
        timeout: Duration::from_secs(3600),
    }
}

/// Says that changed files wait for a restart of the unit. [`restart_unit`] takes it back, so that a killed run loses no restart.
pub fn note_pending_restart() -> GuestCommand {
    locked(
        "note the pending restart",
        ": > \"$1\"\n",
        [paths::RESTART_PENDING.to_owned()],
    )
}

/// The last lines of a unit's journal, for `-v` and for failures.
pub fn journal(unit: &str, lines: u32) -> GuestCommand {
    GuestCommand {
        name: "journal",
        script: "journalctl -u \"$1\" -n \"$2\" --no-pager -o short-iso\n".to_owned(),
        arguments: vec![unit.to_owned(), lines.to_string()],
        timeout: SHORT,
    }
}

/// A script that runs alone: a second operator's commands wait, then give up with [`super::LOCKED`].
fn locked<const N: usize>(name: &'static str, script: &str, arguments: [String; N]) -> GuestCommand {
    let wrapper = format!(
        "script=$1\nshift\nexec flock -w 30 -E {} {} /bin/sh -euc \"$script\" sh \"$@\"\n",
        super::LOCKED,
        paths::LOCK
    );
    GuestCommand {
        name,
        script: wrapper,
        arguments: std::iter::once(script.to_owned()).chain(arguments).collect(),
        timeout: SHORT,
    }
}
