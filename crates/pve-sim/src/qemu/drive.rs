//! Drives and network cards as property strings.

use crate::die::Die;
use crate::schema::{Grammar, Properties, parse_properties, print_properties};
use crate::storage::{Name, parse_volid};

/// A drive option, parsed.
#[derive(Clone, Debug)]
pub struct Drive {
    pub key: String,
    pub props: Properties,
}

fn split_key(key: &str) -> Option<(&str, u32)> {
    let at = key.find(|c: char| c.is_ascii_digit())?;
    Some((&key[..at], key[at..].parse().ok()?))
}

/// `scsi0`, `efidisk0` and their like.
pub fn is_drive(key: &str) -> bool {
    let Some((bus, number)) = split_key(key) else { return false };
    match bus {
        "ide" => number < 4,
        "scsi" => number < 31,
        "virtio" => number < 16,
        "sata" => number < 6,
        "efidisk" | "tpmstate" => number == 0,
        _ => false,
    }
}

/// All drive keys in the order in which PVE looks for the first disk.
pub fn boot_keys() -> impl Iterator<Item = String> {
    [("ide", 4), ("scsi", 31), ("virtio", 16), ("sata", 6)]
        .into_iter()
        .flat_map(|(bus, count)| (0..count).map(move |n| format!("{bus}{n}")))
}

fn grammar(key: &str) -> Option<&'static Grammar> {
    super::conf::options().property(key)?.grammar()
}

/// The size-only syntax `storage:GiB`.
pub struct NewDisk<'a> {
    pub storage: &'a str,
    /// GiB as text.
    pub size: &'a str,
}

impl Drive {
    pub fn parse(key: &str, value: &str) -> Result<Self, Die> {
        let failed = || Die::parameter(key, "unable to parse drive options");
        let grammar = grammar(key).ok_or_else(failed)?;
        let props = parse_properties(grammar, value, key).map_err(|_| failed())?;
        Ok(Self { key: key.into(), props })
    }

    pub fn print(&self) -> String {
        let shown = match self.size() {
            // Sizes are kept as bytes and written in the largest exact unit.
            Some(size) => {
                let mut props = self.props.clone();
                props.insert("size".into(), super::format_size(size));
                props
            }
            None => self.props.clone(),
        };
        grammar(&self.key).map_or_else(String::new, |grammar| print_properties(grammar, &shown, &[]))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.props.get(name).map(String::as_str)
    }

    pub fn file(&self) -> &str {
        self.get("file").unwrap_or_default()
    }

    pub fn set_file(&mut self, volid: &str) {
        self.props.insert("file".into(), volid.into());
    }

    pub fn size(&self) -> Option<u64> {
        self.get("size").and_then(super::parse_size)
    }

    pub fn set_size(&mut self, size: u64) {
        self.props.insert("size".into(), size.to_string());
    }

    pub fn is_cdrom(&self) -> bool {
        self.get("media") == Some("cdrom")
    }

    /// `storage:cloudinit`, or the volume that it became.
    pub fn is_cloudinit(&self) -> bool {
        parse_volid(self.file()).is_ok_and(|(_, name)| name.full == "cloudinit" || name.is_cloudinit())
    }

    pub fn wants_cloudinit(&self) -> bool {
        parse_volid(self.file()).is_ok_and(|(_, name)| name.full == "cloudinit")
    }

    pub fn new_disk(&self) -> Option<NewDisk<'_>> {
        let (storage, size) = self.file().split_once(':')?;
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let fits = match size.split_once('.') {
            Some((whole, fraction)) => digits(whole) && digits(fraction),
            None => digits(size),
        };
        (fits && !storage.contains(['/', ' '])).then_some(NewDisk { storage, size })
    }

    /// The volume, if the drive has one.
    pub fn volume(&self) -> Option<(&str, Name<'_>)> {
        parse_volid(self.file()).ok()
    }
}

impl NewDisk<'_> {
    /// Whole KiB, rounded up.
    pub fn bytes(&self) -> u64 {
        let gib: f64 = self.size.parse().unwrap_or(0.0);
        ((gib * f64::from(1 << 20)).ceil() as u64) * 1024
    }
}

/// A network card option, parsed.
#[derive(Clone, Debug)]
pub struct Net {
    pub props: Properties,
}

impl Net {
    pub fn parse(key: &str, value: &str) -> Result<Self, Die> {
        let failed = || Die::parameter(key, "unable to parse network options");
        let grammar = grammar(key).ok_or_else(failed)?;
        Ok(Self {
            props: parse_properties(grammar, value, key).map_err(|_| failed())?,
        })
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.props.get(name).map(String::as_str)
    }

    pub fn mac(&self) -> Option<String> {
        self.get("macaddr").map(str::to_uppercase)
    }

    pub fn set_mac(&mut self, mac: String) {
        self.props.insert("macaddr".into(), mac);
    }

    /// `model=MAC` first, the rest sorted.
    pub fn print(&self) -> String {
        let model = self.get("model").unwrap_or_default();
        let mut parts = vec![match self.mac() {
            Some(mac) => format!("{model}={mac}"),
            None => model.to_string(),
        }];
        let rest = self
            .props
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "model" | "macaddr"));
        parts.extend(rest.map(|(key, value)| format!("{key}={value}")));
        parts.join(",")
    }

    /// The ACL paths that stand for what it is plugged into.
    pub fn sdn_paths(&self, zone_of: impl Fn(&str) -> String) -> Vec<String> {
        let Some(bridge) = self.get("bridge") else { return Vec::new() };
        let base = format!("/sdn/zones/{}/{bridge}", zone_of(bridge));
        let trunks = self
            .get("trunks")
            .map(|t| t.split(';').map(|v| format!("{base}/{v}")).collect::<Vec<_>>());
        match (self.get("tag"), trunks) {
            (Some(tag), _) => vec![format!("{base}/{tag}")],
            (None, Some(trunks)) => trunks,
            (None, None) => vec![base],
        }
    }
}

pub fn is_net(key: &str) -> bool {
    split_key(key).is_some_and(|(bus, number)| bus == "net" && number < 32)
}

#[cfg(test)]
mod tests {
    use super::{Drive, Net};

    #[test]
    fn a_drive_is_written_file_first_and_sorted() {
        let drive = Drive::parse("scsi0", "vmstore:1,ssd=on,iothread=1,size=1073741824,discard=on").expect("valid");
        assert_eq!(drive.print(), "vmstore:1,discard=on,iothread=1,size=1G,ssd=1");
        assert_eq!(drive.new_disk().map(|n| n.bytes()), Some(1 << 30));
    }

    #[test]
    fn part_of_a_gibibyte_is_rounded_up_to_whole_kibibytes() {
        let drive = Drive::parse("scsi0", "tiny:0.01").expect("valid");
        assert_eq!(drive.new_disk().map(|n| n.bytes() / 1024), Some(10486));
    }

    #[test]
    fn a_card_is_written_with_its_address_behind_the_model() {
        let net = Net::parse(
            "net0",
            "model=virtio,macaddr=02:00:00:00:00:0a,bridge=vmbr0,firewall=yes,tag=7,rate=5",
        )
        .expect("valid");
        assert_eq!(net.print(), "virtio=02:00:00:00:00:0A,bridge=vmbr0,firewall=1,rate=5,tag=7");
        assert_eq!(net.sdn_paths(|_| "localnetwork".into()), ["/sdn/zones/localnetwork/vmbr0/7"]);
    }
}
