//! The configuration of a VM, as it is read and as it is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use mainstay_net::Secret;
use serde::{Deserialize, Deserializer};

use crate::value::loose::{Scalar, parse_flag};
use crate::value::{Agent, Boot, Description, Digest, Drive, IpConfig, Lock, Net, Slot, Smbios, Tags, ValueError, Volid};

/// Keys that PVE sets by itself and accepts from root alone.
const NOT_SENT: [&str; 5] = ["digest", "lock", "meta", "template", "vmgenid"];

/// The options of a VM. A key this type does not know, or whose value it cannot read, is kept in `other` as it came.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VmConfig {
    pub name: Option<String>,
    pub description: Option<Description>,
    pub tags: Option<Tags>,
    pub cores: Option<u32>,
    pub sockets: Option<u32>,
    /// The CPU type with its flags: `x86-64-v2-AES`.
    pub cpu: Option<String>,
    /// In MiB.
    pub memory: Option<u64>,
    /// In MiB; 0 takes the balloon device away.
    pub balloon: Option<u64>,
    pub machine: Option<String>,
    pub bios: Option<Bios>,
    pub scsihw: Option<String>,
    pub ostype: Option<String>,
    pub onboot: Option<bool>,
    pub protection: Option<bool>,
    pub agent: Option<Agent>,
    pub boot: Option<Boot>,
    pub smbios: Option<Smbios>,
    pub drives: BTreeMap<Slot, Drive>,
    /// Volumes that belong to the VM and are attached nowhere.
    pub unused: BTreeMap<u8, Volid>,
    pub nets: BTreeMap<u8, Net>,
    pub ipconfigs: BTreeMap<u8, IpConfig>,
    pub nameservers: Option<Vec<String>>,
    pub searchdomain: Option<String>,
    pub ciuser: Option<String>,
    /// In clear in the answer after a create, masked later.
    pub cipassword: Option<Secret<String>>,
    /// Public keys in OpenSSH form, without the encoding PVE asks for.
    pub sshkeys: Option<Vec<String>>,
    pub digest: Option<Digest>,
    pub lock: Option<Lock>,
    pub template: bool,
    pub other: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bios {
    Seabios,
    Ovmf,
}

impl VmConfig {
    /// Every volume the configuration names, attached or not.
    pub fn volumes(&self) -> BTreeSet<&Volid> {
        self.drives
            .values()
            .filter_map(Drive::volume)
            .chain(self.unused.values())
            .collect()
    }

    pub fn cloud_init_drive(&self) -> Option<Slot> {
        self.drives
            .iter()
            .find_map(|(slot, drive)| drive.is_cloud_init().then_some(*slot))
    }

    /// The options as they are sent, without what only PVE sets.
    pub fn to_params(&self) -> BTreeMap<String, String> {
        let mut params = self.to_entries();
        params.retain(|key, _| !NOT_SENT.contains(&key.as_str()) && !key.starts_with("unused"));
        params
    }

    /// All options by PVE's names.
    pub fn to_entries(&self) -> BTreeMap<String, String> {
        let mut entries = Entries(self.other.clone());
        entries.put("name", self.name.as_ref());
        entries.put("description", self.description.as_ref());
        entries.put("tags", self.tags.as_ref());
        entries.put("cores", self.cores);
        entries.put("sockets", self.sockets);
        entries.put("cpu", self.cpu.as_ref());
        entries.put("memory", self.memory);
        entries.put("balloon", self.balloon);
        entries.put("machine", self.machine.as_ref());
        entries.put("bios", self.bios);
        entries.put("scsihw", self.scsihw.as_ref());
        entries.put("ostype", self.ostype.as_ref());
        entries.put("onboot", self.onboot.map(u8::from));
        entries.put("protection", self.protection.map(u8::from));
        entries.put("agent", self.agent.as_ref());
        entries.put("boot", self.boot.as_ref());
        entries.put("smbios1", self.smbios.as_ref());
        entries.put_all("", &self.drives);
        entries.put_all("unused", &self.unused);
        entries.put_all("net", &self.nets);
        entries.put_all("ipconfig", &self.ipconfigs);
        entries.put("nameserver", self.nameservers.as_ref().map(|list| list.join(" ")));
        entries.put("searchdomain", self.searchdomain.as_ref());
        entries.put("ciuser", self.ciuser.as_ref());
        entries.put("cipassword", self.cipassword.as_ref().map(Secret::expose));
        entries.put(
            "sshkeys",
            self.sshkeys.as_ref().map(|keys| crate::encode::component(&keys.join("\n"))),
        );
        entries.put("digest", self.digest);
        entries.put("lock", self.lock.as_ref());
        entries.put("template", self.template.then_some(1));
        entries.0
    }

    /// Reads options by PVE's names.
    pub fn from_entries(entries: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut config = Self::default();
        for (key, value) in entries {
            if config.absorb(&key, &value).is_none() {
                config.other.insert(key, value);
            }
        }
        config
    }

    /// `None` when the key is not known or its value cannot be read.
    fn absorb(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "name" => self.name = Some(value.to_owned()),
            "description" => self.description = Some(value.parse().ok()?),
            "tags" => self.tags = Some(value.parse().ok()?),
            "cores" => self.cores = Some(value.parse().ok()?),
            "sockets" => self.sockets = Some(value.parse().ok()?),
            "cpu" => self.cpu = Some(value.strip_prefix("cputype=").unwrap_or(value).to_owned()),
            "memory" => self.memory = Some(value.strip_prefix("current=").unwrap_or(value).parse().ok()?),
            "balloon" => self.balloon = Some(value.parse().ok()?),
            "machine" => self.machine = Some(value.strip_prefix("type=").unwrap_or(value).to_owned()),
            "bios" => self.bios = Some(value.parse().ok()?),
            "scsihw" => self.scsihw = Some(value.to_owned()),
            "ostype" => self.ostype = Some(value.to_owned()),
            "onboot" => self.onboot = Some(parse_flag(value)?),
            "protection" => self.protection = Some(parse_flag(value)?),
            "agent" => self.agent = Some(value.parse().ok()?),
            "boot" => self.boot = Some(value.parse().ok()?),
            "smbios1" => self.smbios = Some(value.parse().ok()?),
            "nameserver" => self.nameservers = Some(words(value)),
            "searchdomain" => self.searchdomain = Some(value.to_owned()),
            "ciuser" => self.ciuser = Some(value.to_owned()),
            "cipassword" => self.cipassword = Some(Secret::from(value)),
            "sshkeys" => self.sshkeys = Some(lines(&crate::encode::decode_component(value)?)),
            "digest" => self.digest = Some(value.parse().ok()?),
            "lock" => self.lock = Some(value.into()),
            "template" => self.template = parse_flag(value)?,
            _ => self.absorb_numbered(key, value)?,
        }
        Some(())
    }

    fn absorb_numbered(&mut self, key: &str, value: &str) -> Option<()> {
        if let Ok(slot) = key.parse() {
            self.drives.insert(slot, value.parse().ok()?);
        } else if let Some(n) = number_after("net", key, 31) {
            self.nets.insert(n, value.parse().ok()?);
        } else if let Some(n) = number_after("ipconfig", key, 31) {
            self.ipconfigs.insert(n, value.parse().ok()?);
        } else if let Some(n) = number_after("unused", key, 255) {
            self.unused.insert(n, value.parse().ok()?);
        } else {
            return None;
        }
        Some(())
    }
}

impl<'de> Deserialize<'de> for VmConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let scalars = BTreeMap::<String, Scalar>::deserialize(deserializer)?;
        Ok(Self::from_entries(
            scalars.into_iter().filter_map(|(key, scalar)| Some((key, scalar.text()?))),
        ))
    }
}

impl fmt::Display for Bios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seabios => "seabios",
            Self::Ovmf => "ovmf",
        })
    }
}

impl FromStr for Bios {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "seabios" => Ok(Self::Seabios),
            "ovmf" => Ok(Self::Ovmf),
            _ => Err(ValueError::new("a firmware", text)),
        }
    }
}

struct Entries(BTreeMap<String, String>);

impl Entries {
    fn put(&mut self, key: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.0.insert(key.to_owned(), value.to_string());
        }
    }

    fn put_all<K: fmt::Display, V: fmt::Display>(&mut self, prefix: &str, values: &BTreeMap<K, V>) {
        self.0.extend(
            values
                .iter()
                .map(|(key, value)| (format!("{prefix}{key}"), value.to_string())),
        );
    }
}

fn number_after(prefix: &str, key: &str, last: u8) -> Option<u8> {
    let number = key.strip_prefix(prefix)?;
    let n: u8 = number.parse().ok().filter(|n| *n <= last)?;
    (n.to_string() == number).then_some(n)
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| c.is_whitespace() || c == ',' || c == ';')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn lines(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Bios, VmConfig};
    use crate::value::{Bus, Slot};

    fn config(json: &str) -> VmConfig {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_config_with_perls_numbers_is_read() {
        let config = config(r#"{"cores":2,"memory":"256","onboot":1,"cpulimit":"0.5","template":"1","boot":" ","bios":"ovmf"}"#);
        assert_eq!((config.cores, config.memory, config.onboot), (Some(2), Some(256), Some(true)));
        assert_eq!(config.other["cpulimit"], "0.5");
        assert_eq!(config.bios, Some(Bios::Ovmf));
        assert!(config.template);
    }

    #[test]
    fn what_is_not_understood_survives() {
        let config =
            config(r#"{"hostpci0":"mapping=gpu","net0":"strange","net32":"virtio","scsi0":"a:b:c,,x=1","smbios1":"what"}"#);
        assert_eq!(config.other["hostpci0"], "mapping=gpu");
        assert_eq!(config.other["net0"], "strange");
        assert_eq!(config.other["net32"], "virtio");
        assert_eq!(config.other["smbios1"], "what");
    }

    #[test]
    fn only_what_may_be_sent_is_sent() {
        let config = config(
            r#"{"name":"a","digest":"e1c801337117c174491290aa5ff946f7be618ba0","lock":"backup","meta":"creation-qemu=10","unused0":"s1:vm-100-disk-1","vmgenid":"1"}"#,
        );
        assert_eq!(config.to_params().into_keys().collect::<Vec<_>>(), ["name"]);
        assert_eq!(config.volumes().len(), 1);
    }

    #[test]
    fn ssh_keys_are_encoded_as_a_value() {
        let config = VmConfig {
            sshkeys: Some(vec!["ssh-ed25519 AAA+ x@y".to_owned()]),
            ..VmConfig::default()
        };
        assert_eq!(config.to_params()["sshkeys"], "ssh-ed25519%20AAA%2B%20x%40y");
        assert_eq!(VmConfig::from_entries(config.to_entries()), config);
    }

    #[test]
    fn the_cloud_init_drive_is_found_by_its_volume() {
        let config = config(
            r#"{"ide2":"vmstore:101/vm-101-cloudinit.qcow2,media=cdrom","scsi0":"vmstore:101/vm-101-disk-0.raw,size=1G"}"#,
        );
        assert_eq!(config.cloud_init_drive(), Some(Slot::Disk(Bus::Ide, 2)));
    }

    #[test]
    fn a_password_is_not_printed() {
        let config = config(r#"{"cipassword":"hunter2"}"#);
        assert!(!format!("{config:?}").contains("hunter2"));
        assert_eq!(config.to_params()["cipassword"], "hunter2");
    }
}
