//! Values print to what they are read from, whatever they hold; and no text makes a reader panic.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use pve_api::{
    Agent, Bios, Boot, Bus, Cache, Description, Digest, DiskSize, Drive, Host, IpConfig, Ipv4, Ipv6, Lock, Mac, Media, Net,
    NetModel, PoolId, PveVersion, Slot, Smbios, Source, StorageId, Tags, Upid, VmConfig, Vmid, Volid,
};

fn survives<T: FromStr + Display + PartialEq + Debug>(value: &T) -> Result<(), proptest::test_runner::TestCaseError>
where
    T::Err: Debug,
{
    let text = value.to_string();
    prop_assert_eq!(&text.parse::<T>().unwrap(), value, "{}", text);
    Ok(())
}

fn host() -> impl Strategy<Value = Host> {
    "[a-zA-Z0-9]([a-zA-Z0-9-]{0,10}[a-zA-Z0-9])?".prop_map(|text| text.parse().unwrap())
}

fn storage() -> impl Strategy<Value = StorageId> {
    "[a-zA-Z][a-zA-Z0-9_.-]{0,10}[a-zA-Z0-9]".prop_map(|text| text.parse().unwrap())
}

fn volid() -> impl Strategy<Value = Volid> {
    // A name of digits alone would be a size.
    (storage(), "[a-z][a-zA-Z0-9/:_.=-]{1,30}")
        .prop_filter("`cloudinit` is an order, not a name", |(_, name)| name != "cloudinit")
        .prop_map(|(storage, name)| Volid::new(storage, name).unwrap())
}

fn others() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("x_[a-z_]{1,8}", "[a-zA-Z0-9:.;/_-]{0,12}", 0..3)
}

fn slot() -> impl Strategy<Value = Slot> {
    prop_oneof![
        (0..=3u8).prop_map(|n| Slot::Disk(Bus::Ide, n)),
        (0..=5u8).prop_map(|n| Slot::Disk(Bus::Sata, n)),
        (0..=30u8).prop_map(|n| Slot::Disk(Bus::Scsi, n)),
        (0..=15u8).prop_map(|n| Slot::Disk(Bus::Virtio, n)),
        Just(Slot::Efi),
        Just(Slot::Tpm),
    ]
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![
        volid().prop_map(Source::Volume),
        (storage(), any::<u32>()).prop_map(|(storage, gib)| Source::Allocate { storage, gib }),
        (storage(), volid()).prop_map(|(storage, from)| Source::Import { storage, from }),
        storage().prop_map(|storage| Source::CloudInit { storage }),
        Just(Source::Empty),
        Just(Source::Physical),
        "/dev/[a-z0-9/]{1,10}".prop_map(Source::Path),
    ]
}

fn drive() -> impl Strategy<Value = Drive> {
    let cache = prop_oneof![
        Just(Cache::None),
        Just(Cache::Writethrough),
        Just(Cache::Writeback),
        Just(Cache::Unsafe),
        Just(Cache::Directsync)
    ];
    let media = prop_oneof![Just(Media::Disk), Just(Media::Cdrom)];
    let size = any::<u64>().prop_map(DiskSize::from_bytes);
    let flags = (
        of(any::<bool>()),
        of(any::<bool>()),
        of(any::<bool>()),
        of(any::<bool>()),
        of(any::<bool>()),
    );
    let texts = (of("[ -~äß€]{1,20}"), of("[24]m"));
    (source(), of(media), of(size), of(cache), flags, texts, others()).prop_map(
        |(source, media, size, cache, (discard, iothread, ssd, backup, pre_enrolled_keys), (serial, efitype), other)| Drive {
            media,
            size,
            cache,
            discard,
            iothread,
            ssd,
            backup,
            serial,
            efitype,
            pre_enrolled_keys,
            other,
            ..Drive::new(source)
        },
    )
}

fn net() -> impl Strategy<Value = Net> {
    let model = prop_oneof![
        Just(NetModel::Virtio),
        Just(NetModel::E1000),
        Just(NetModel::E1000Em82545),
        Just(NetModel::Vmxnet3)
    ];
    let mac = any::<[u8; 6]>().prop_map(Mac::new);
    let numbers = (
        of(any::<u16>()),
        of(any::<u16>()),
        of(any::<u8>()),
        of(any::<bool>()),
        of(any::<bool>()),
    );
    (model, of(mac), of("[a-z]{2,5}[0-9]{1,3}"), numbers, others()).prop_map(
        |(model, mac, bridge, (vlan, mtu, queues, firewall, link_down), other)| Net {
            model,
            mac,
            bridge,
            vlan,
            mtu,
            queues,
            firewall,
            link_down,
            other,
        },
    )
}

fn ipconfig() -> impl Strategy<Value = IpConfig> {
    let ip = prop_oneof![
        Just(Ipv4::Dhcp),
        Just(Ipv4::Manual),
        (any::<Ipv4Addr>(), 0..=32u8).prop_map(|(address, prefix)| Ipv4::Static(format!("{address}/{prefix}").parse().unwrap())),
    ];
    let ip6 = prop_oneof![
        Just(Ipv6::Auto),
        Just(Ipv6::Dhcp),
        Just(Ipv6::Manual),
        (any::<Ipv6Addr>(), 0..=128u8).prop_map(|(address, prefix)| Ipv6::Static(format!("{address}/{prefix}").parse().unwrap())),
    ];
    (of(ip), of(any::<Ipv4Addr>()), of(ip6), of(any::<Ipv6Addr>())).prop_map(|(ip, gw, ip6, gw6)| IpConfig { ip, gw, ip6, gw6 })
}

fn smbios() -> impl Strategy<Value = Smbios> {
    let text = || of(".{1,12}");
    let uuid = of(any::<u128>().prop_map(uuid::Uuid::from_u128));
    (uuid, text(), text(), text(), text(), text(), text()).prop_map(
        |(uuid, manufacturer, product, version, serial, sku, family)| Smbios {
            uuid,
            manufacturer,
            product,
            version,
            serial,
            sku,
            family,
        },
    )
}

fn boot() -> impl Strategy<Value = Boot> {
    prop_oneof![
        vec("(scsi|net|ide)[0-9]", 0..4).prop_map(Boot::Order),
        "[acdn]{1,4}".prop_map(Boot::Legacy)
    ]
}

fn tags() -> impl Strategy<Value = Tags> {
    vec("[a-z0-9_][a-z0-9_+.-]{0,8}", 0..5).prop_map(|tags| tags.join(";").parse().unwrap())
}

fn config() -> impl Strategy<Value = VmConfig> {
    let first = (
        of("[a-z]{1,9}"),
        of("[ -~\n]{0,40}[!-~]"),
        of(tags()),
        of(1..64u32),
        of(1..4u32),
        of(any::<u32>()),
    );
    let devices = (
        btree_map(slot(), drive(), 0..4),
        btree_map(0..=31u8, net(), 0..3),
        btree_map(0..=31u8, ipconfig(), 0..3),
        btree_map(any::<u8>(), volid(), 0..2),
    );
    let rest = (
        of(boot()),
        of(smbios()),
        of(any::<bool>()),
        any::<bool>(),
        of(vec("[a-z0-9.]{1,9}", 1..3)),
        others(),
    );
    (first, devices, rest).prop_map(
        |((name, description, tags, cores, sockets, memory), (drives, nets, ipconfigs, unused), rest)| {
            let (boot, smbios, onboot, template, nameservers, other) = rest;
            VmConfig {
                name,
                description: description.map(|text| text.parse().unwrap()),
                tags,
                cores,
                sockets,
                memory: memory.map(u64::from),
                bios: onboot.map(|on| if on { Bios::Ovmf } else { Bios::Seabios }),
                agent: onboot.map(|enabled| Agent {
                    enabled,
                    ..Agent::default()
                }),
                lock: onboot.map(|_| Lock::Backup),
                sshkeys: name_as_key(nameservers.as_deref()),
                drives,
                nets,
                ipconfigs,
                unused,
                boot,
                smbios,
                onboot,
                template,
                nameservers,
                other,
                ..VmConfig::default()
            }
        },
    )
}

fn name_as_key(names: Option<&[String]>) -> Option<Vec<String>> {
    names.map(|names| names.iter().map(|name| format!("ssh-ed25519 {name}+/= x@y")).collect())
}

proptest! {
    #[test]
    fn ids_survive(host in host(), storage in storage(), volid in volid(), number in 100..=999_999_999u32, digest in any::<[u8; 20]>()) {
        survives(&host)?;
        survives(&storage)?;
        survives(&volid)?;
        survives(&Vmid::new(number).unwrap())?;
        survives(&hex(&digest).parse::<Digest>().unwrap())?;
    }

    #[test]
    fn upids_survive(host in host(), numbers in any::<(u32, u32, u32)>(), words in ("[a-z]{2,9}", "[a-zA-Z0-9@._-]{0,12}", "[a-z@!]{1,12}")) {
        let (pid, pstart, starttime) = numbers;
        let (kind, id, user) = words;
        let text = format!("UPID:{host}:{pid:08X}:{pstart:08X}:{starttime:08X}:{kind}:{id}:{user}:");
        let upid: Upid = text.parse().unwrap();
        prop_assert_eq!(upid.to_string(), text);
        prop_assert_eq!((upid.host(), upid.starttime()), (&host, starttime));
        prop_assert_eq!((upid.kind(), upid.subject(), upid.user()), (kind.as_str(), id.as_str(), user.as_str()));
    }

    #[test]
    fn sizes_and_versions_survive(bytes in any::<u64>(), version in any::<(u16, u16, u16)>()) {
        survives(&DiskSize::from_bytes(bytes))?;
        let (major, minor, patch) = version;
        survives(&PveVersion { major, minor, patch })?;
    }

    #[test]
    fn drives_survive(drive in drive(), slot in slot()) {
        survives(&drive)?;
        survives(&slot)?;
    }

    #[test]
    fn nics_survive(net in net()) {
        survives(&net)?;
    }

    #[test]
    fn the_rest_survives(ipconfig in ipconfig(), smbios in smbios(), boot in boot(), tags in tags(), text in "[ -~\n]{0,99}") {
        survives(&ipconfig)?;
        survives(&smbios)?;
        survives(&boot)?;
        survives(&tags)?;
        survives(&text.parse::<Description>().unwrap())?;
    }

    #[test]
    fn configs_survive_as_options_and_as_json(config in config()) {
        let entries = config.to_entries();
        prop_assert_eq!(&VmConfig::from_entries(entries.clone()), &config);
        let json = serde_json::to_vec(&entries).unwrap();
        prop_assert_eq!(serde_json::from_slice::<VmConfig>(&json).unwrap(), config);
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in ".{0,60}") {
        let _ = text.parse::<Drive>();
        let _ = text.parse::<Net>();
        let _ = text.parse::<IpConfig>();
        let _ = text.parse::<Smbios>();
        let _ = text.parse::<Boot>();
        let _ = text.parse::<Tags>();
        let _ = text.parse::<Upid>();
        let _ = text.parse::<Volid>();
        let _ = text.parse::<DiskSize>();
        let _ = text.parse::<PveVersion>();
        let _ = text.parse::<PoolId>();
        let _ = text.parse::<Agent>();
        let _ = text.parse::<pve_api::Login>();
    }

    #[test]
    fn no_property_string_makes_a_reader_panic(text in "(([a-z0-9:/%=.-]{0,8}|import-from|size|serial|base64|virtio|uuid)[=,;]?){0,8}") {
        let config = VmConfig::from_entries(
            ["scsi0", "net0", "ipconfig0", "smbios1", "boot", "agent", "efidisk0", "unused0", "sshkeys"].map(|key| (key.to_owned(), text.clone())),
        );
        // What is not read is kept.
        prop_assert_eq!(VmConfig::from_entries(config.to_entries()), config);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
