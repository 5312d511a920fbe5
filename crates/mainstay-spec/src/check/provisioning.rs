//! DHCP, templates, further network cards and options of VMs: what belongs together.

use crate::diagnostic::{Diagnostic, quote};
use crate::draft::{Draft, Fields, NamedFields};
use crate::keys::{self, network, nic, options, pool};
use crate::provisioning::Addressing;
use crate::source::Span;
use crate::spec::{Distro, Role};

/// More addresses than this are not dialled to find a lease.
const DHCP_RANGE_MAX: u32 = 4096;

pub(crate) fn check(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    dhcp_range(draft, faults);
    talos_only(draft, faults);
    for named in draft.pools.iter().chain(&draft.machines) {
        extra(&named.fields, faults);
        for card in named.fields.sections(&options::NICS).value().unwrap_or_default() {
            network_card(&card, faults);
        }
    }
    for pool in &draft.pools {
        one_at_a_time(pool, faults);
        shared_macs(pool, faults);
    }
}

fn dhcp_range(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let Some(range) = draft.network.spanned(&network::DHCP_RANGE) else {
        return;
    };
    let (first, last) = range.value;
    let fault = |summary: String| Diagnostic::error("dhcp-range", range.span, summary);
    if draft.network.value(&network::ADDRESSING) != Some(Addressing::Dhcp) {
        faults.push(
            fault("`dhcp-range` has no effect without `addressing: dhcp`".to_owned())
                .label("machines have fixed addresses")
                .why("it says where leases are looked for.")
                .help("take it out, or set `addressing: dhcp`."),
        );
    }
    if u32::from(last) - u32::from(first) >= DHCP_RANGE_MAX {
        faults.push(
            fault(format!("{first}-{last} are too many addresses to look at"))
                .label(format!("more than {DHCP_RANGE_MAX}"))
                .why("each address of the range is dialled to find the machine that has it.")
                .help("give the range of the DHCP server only."),
        );
    }
    let outside = |cidr: &ipnet::Ipv4Net| !(cidr.contains(&first) && cidr.contains(&last));
    if let Some(cidr) = draft.network.value(&network::CIDR).filter(outside) {
        faults.push(
            fault(format!("{first}-{last} is outside the network"))
                .label(format!("not in {cidr}"))
                .why("machines are in this network, and so are their leases.")
                .help("correct the range, or `network.cidr`."),
        );
    }
}

fn talos_only(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    if let Some(kubespan) = draft
        .file
        .spanned(&keys::KUBESPAN)
        .filter(|_| draft.distro() != Distro::Talos)
    {
        faults.push(
            Diagnostic::error("kubespan", kubespan.span, "`kubespan` needs Talos")
                .label(format!("not with {}", draft.distro()))
                .why("KubeSpan is a part of Talos.")
                .help("take it out."),
        );
    }
}

/// Options that `extra` may set: a token may set them, and mainstay does not.
const EXTRA: [&str; 10] = [
    "acpi",
    "allow-ksm",
    "cpulimit",
    "cpuunits",
    "keyboard",
    "localtime",
    "tablet",
    "tdf",
    "vga",
    "watchdog",
];

fn extra(fields: &Fields<'_>, faults: &mut Vec<Diagnostic>) {
    for (key, value) in fields.value(&options::EXTRA).unwrap_or_default() {
        if !EXTRA.contains(&key.value.as_str()) {
            faults.push(
                Diagnostic::error("extra", key.span, format!("{} cannot be set by `extra`", quote(&key.value)))
                    .label("not among the allowed options")
                    .why("other options are set by mainstay itself, or only root may set them.")
                    .help(format!("use a key of the pool, or one of {}.", EXTRA.join(", "))),
            );
        } else if !(value.is_string() || value.is_number() || value.is_boolean()) {
            faults.push(
                Diagnostic::error("extra", key.span, format!("`{}` takes one value", key.value))
                    .label("a list or a section")
                    .why("an option of PVE is one text, number or flag.")
                    .help("write the value as in `qm set`."),
            );
        }
    }
}

fn network_card(card: &Fields<'_>, faults: &mut Vec<Diagnostic>) {
    let addresses = card.spanned(&nic::ADDRESSES);
    let mut push = |at: Span, summary: &str, why: &str, help: &str| {
        faults.push(
            Diagnostic::error("nic", at, summary)
                .label("of this card")
                .why(why)
                .help(help),
        );
    };
    let Some(addresses) = addresses else { return };
    match card.value(&nic::CIDR) {
        None if card.is_absent(&nic::CIDR) => push(
            addresses.span,
            "the network of the card's addresses is missing",
            "an address needs the prefix of its network.",
            "add `cidr`, for example 10.1.0.0/24.",
        ),
        Some(cidr) => {
            let inside = |number: u32| cidr.contains(&std::net::Ipv4Addr::from(number));
            let parts = addresses.value.parts();
            if !parts.iter().all(|part| inside(part.first) && part.last.is_none_or(inside)) {
                push(
                    addresses.span,
                    "the card's addresses are outside its network",
                    "a card reaches other hosts of its network only from an address in it.",
                    "correct `addresses` or `cidr` of the card.",
                );
            }
        }
        None => {}
    }
    if card.value(&nic::DHCP) == Some(true) {
        push(
            addresses.span,
            "`addresses` and `dhcp: true` exclude each other",
            "the address is fixed, or it comes from a DHCP server.",
            "keep one of them.",
        );
    }
}

/// All machines of a pool would get the same MAC address.
fn shared_macs(pool: &NamedFields<'_>, faults: &mut Vec<Diagnostic>) {
    for card in pool.fields.sections(&options::NICS).value().unwrap_or_default() {
        if let Some(mac) = card.spanned(&nic::MAC) {
            faults.push(
                Diagnostic::error("nic", mac.span, "a pool cannot give its cards one MAC address")
                    .label("the same for all its machines")
                    .why("a switch sends frames for one MAC address to one port.")
                    .help("take it out, or set it below `machines`."),
            );
        }
    }
}

/// Control planes change one by one, because etcd needs a majority.
fn one_at_a_time(named: &NamedFields<'_>, faults: &mut Vec<Diagnostic>) {
    let Some(count) = named.fields.spanned(&pool::MAX_UNAVAILABLE) else {
        return;
    };
    if named.role() == Role::ControlPlane && count.value > 1 {
        faults.push(
            Diagnostic::error("max-unavailable", count.span, "control planes change one by one")
                .label("more than one at a time")
                .why("etcd needs a majority of its members at every moment.")
                .help("take it out."),
        );
    }
}
