//! What cluster.yaml says about how machines are made and reached, besides their hardware: types, and how they are resolved.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde_json::{Map, Value};

use crate::addons::AddressSpan;
use crate::draft::{Draft, Fields};
use crate::identity::nic_mac;
use crate::keys::{self, distro, network, nic, options};
use crate::resolve::settings;
use crate::roster::RosterEntry;
use crate::spec::Bridge;
use crate::value::Mac;

/// How machines get their addresses and names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    Static,
    /// The DHCP server gives each machine the address of the file, by its MAC.
    Dhcp,
}

/// How a machine learns its address at first boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstBoot {
    /// From PVE's cloud-init drive.
    CloudInit,
    /// From META in an image of its own.
    Meta,
}

/// Settings of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvisioningSpec {
    pub addressing: Addressing,
    pub hostnames: Addressing,
    /// Where leases are looked for. `None`: the whole network.
    pub dhcp_range: Option<AddressSpan>,
    pub first_boot: FirstBoot,
    /// First VMID of templates, and the last one if the range has an end.
    pub template_vmids: (u32, Option<u32>),
    pub kubespan: bool,
    /// The image is uploaded from here instead of downloaded by PVE.
    pub upload: bool,
}

/// Options of one VM besides its `Shape`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VmOptions {
    /// PVE's machine type, like `q35-9.2`. `None`: q35.
    pub machine_type: Option<String>,
    pub numa: bool,
    /// MTU of the first network card. `None`: that of the bridge.
    pub mtu: Option<u32>,
    /// `+aes`, `-pcid`.
    pub cpu_flags: Vec<String>,
    /// PCI mappings of the datacenter.
    pub hostpci: Vec<String>,
    /// Network cards besides the first.
    pub nics: Vec<NicSpec>,
    /// Options of PVE that mainstay does not set itself.
    pub extra: Map<String, Value>,
}

/// A further network card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicSpec {
    pub bridge: Bridge,
    pub vlan: Option<u16>,
    pub mtu: Option<u32>,
    pub mac: Mac,
    pub address: NicAddress,
    pub routes: Vec<Route>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicAddress {
    Static { address: Ipv4Addr, prefix: u8 },
    Dhcp,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub to: Ipv4Net,
    pub via: Ipv4Addr,
}

/// `None` only if something that was reported is missing.
pub(crate) fn resolve(draft: &Draft<'_>) -> Option<ProvisioningSpec> {
    let vmids = draft.file.or_default(&keys::TEMPLATE_VMIDS)?;
    let part = vmids.parts().first()?;
    let range = draft.network.value(&network::DHCP_RANGE);
    Some(ProvisioningSpec {
        addressing: draft.network.or_default(&network::ADDRESSING)?,
        hostnames: draft.network.or_default(&network::HOSTNAMES)?,
        dhcp_range: range.map(|(first, last)| AddressSpan { first, last }),
        first_boot: draft.talos.or_default(&distro::FIRST_BOOT)?,
        template_vmids: (part.first, part.last),
        kubespan: draft.file.or_default(&keys::KUBESPAN)?,
        upload: draft.file.section(&keys::IMAGE).or_default(&keys::addons::UPLOAD)?,
    })
}

/// What a pool or machine says, else what `base` says.
pub(crate) fn vm_options(cluster: &str, member: &RosterEntry<'_>) -> Option<VmOptions> {
    let pool = layer(&member.pool.fields, &VmOptions::default());
    let mut options = member.own.map_or(pool.clone(), |own| layer(&own.fields, &pool));
    let own = member.own.and_then(|own| own.fields.sections(&options::NICS).value());
    let cards = own.or_else(|| member.pool.fields.sections(&options::NICS).value());
    let card = |(index, fields): (usize, &Fields<'_>)| card(fields, cluster, member, index);
    options.nics = cards
        .unwrap_or_default()
        .iter()
        .enumerate()
        .map(card)
        .collect::<Option<_>>()?;
    Some(options)
}

fn layer(fields: &Fields<'_>, base: &VmOptions) -> VmOptions {
    let list = |key| {
        let given = fields.list(key).value()?;
        Some(given.into_iter().map(|item| item.value).collect())
    };
    let extra = match fields.is_absent(&options::EXTRA) {
        true => base.extra.clone(),
        false => settings(fields, &options::EXTRA),
    };
    VmOptions {
        machine_type: fields.value(&options::MACHINE_TYPE).or_else(|| base.machine_type.clone()),
        numa: fields.value(&options::NUMA).unwrap_or(base.numa),
        mtu: fields.value(&options::MTU).or(base.mtu),
        cpu_flags: list(&options::CPU_FLAGS).unwrap_or_else(|| base.cpu_flags.clone()),
        hostpci: list(&options::HOSTPCI).unwrap_or_else(|| base.hostpci.clone()),
        nics: Vec::new(),
        extra,
    }
}

fn card(fields: &Fields<'_>, cluster: &str, member: &RosterEntry<'_>, index: usize) -> Option<NicSpec> {
    let address = match (fields.value(&nic::ADDRESSES), fields.value(&nic::DHCP)) {
        (Some(range), _) => NicAddress::Static {
            address: Ipv4Addr::from(range.nth(member.ordinal)?),
            prefix: fields.value(&nic::CIDR)?.prefix_len(),
        },
        (None, Some(true)) => NicAddress::Dhcp,
        (None, _) => NicAddress::None,
    };
    let route = |fields: &Fields<'_>| {
        Some(Route {
            to: fields.value(&nic::TO)?,
            via: fields.value(&nic::VIA)?,
        })
    };
    Some(NicSpec {
        bridge: Bridge(fields.value(&nic::BRIDGE)?),
        vlan: fields.value(&nic::VLAN).and_then(|vlan| u16::try_from(vlan).ok()),
        mtu: fields.value(&nic::MTU),
        mac: fields
            .value(&nic::MAC)
            .unwrap_or_else(|| nic_mac(cluster, member.pool.name, member.ordinal, index + 1)),
        address,
        routes: fields
            .sections(&nic::ROUTES)
            .value()
            .unwrap_or_default()
            .iter()
            .map(route)
            .collect::<Option<_>>()?,
    })
}
