//! What a caller may set, and whether the drives they name can be used.

use super::conf::Section;
use super::drive::{Drive, Net, is_drive, is_net};
use crate::access::Auth;
use crate::die::Die;
use crate::schema::split_list;
use crate::state::State;
use crate::storage::{Kind, parse_volid};

/// Who asks, for which VM, to join which pool.
pub(super) struct Asker<'a> {
    pub auth: &'a Auth,
    pub vmid: u32,
    pub pool: Option<&'a str>,
    /// Where disks of appliances are unpacked.
    pub extract_to: Option<&'a str>,
}

/// The privilege that an option needs; `None` where its value decides.
fn privilege_of(key: &str) -> Option<&'static [&'static str]> {
    let name = key.trim_end_matches(|c: char| c.is_ascii_digit());
    Some(match name {
        "cores" | "sockets" | "vcpus" | "cpu" | "cpulimit" | "cpuunits" | "numa" | "smp" => &["VM.Config.CPU"],
        "memory" | "balloon" | "shares" | "allow-ksm" => &["VM.Config.Memory"],
        "acpi" | "hotplug" | "kvm" | "machine" | "scsihw" | "smbios" | "tablet" | "vga" | "watchdog" | "audio" | "rng" => {
            &["VM.Config.HWType"]
        }
        "agent" | "autostart" | "bios" | "description" | "keyboard" | "localtime" | "migrate_downtime" | "migrate_speed"
        | "name" | "onboot" | "ostype" | "protection" | "reboot" | "startdate" | "startup" | "tdf" | "template" => {
            &["VM.Config.Options"]
        }
        "freeze" => &["VM.PowerMgmt"],
        "boot" | "bootdisk" | "vmstatestorage" => &["VM.Config.Disk"],
        "net" => &["VM.Config.Network"],
        "cicustom" | "cipassword" | "citype" | "ciuser" | "ciupgrade" | "nameserver" | "searchdomain" | "sshkeys"
        | "ipconfig" => &["VM.Config.Cloudinit", "VM.Config.Network"],
        _ => return None,
    })
}

/// Rights on options whose value does not matter.
pub(super) fn options<'k>(state: &State, asker: &Asker<'_>, keys: impl Iterator<Item = &'k str>) -> Result<(), Die> {
    if asker.auth.is_root() {
        return Ok(());
    }
    for key in keys {
        let name = key.trim_end_matches(|c: char| c.is_ascii_digit());
        if is_drive(key)
            || matches!(key, "cdrom" | "tags")
            || matches!(name, "unused" | "serial" | "usb" | "hostpci" | "virtiofs") && name != key
        {
            continue;
        }
        let Some(privileges) = privilege_of(key) else {
            return Err(Die::new(format!("only root can set '{key}' config")));
        };
        state.access.check_vm_any(asker.auth, asker.vmid, asker.pool, privileges)?;
        if key == "startup" {
            state.access.check(asker.auth, "/", &["Sys.Modify"])?;
        }
    }
    Ok(())
}

/// Rights on options whose value decides: host devices are root's.
pub(super) fn devices(state: &State, asker: &Asker<'_>, settings: &Section) -> Result<(), Die> {
    if asker.auth.is_root() {
        return Ok(());
    }
    let hardware = || {
        state
            .access
            .check_vm(asker.auth, asker.vmid, asker.pool, &["VM.Config.HWType"])
    };
    for (key, value) in settings {
        let part = |name: &str| {
            let prefix = format!("{name}=");
            value
                .split(',')
                .find_map(|part| part.strip_prefix(&prefix).map(ToString::to_string))
        };
        // The first part may stand without its name.
        let host = part("host").or_else(|| value.split(',').next().filter(|p| !p.contains('=')).map(Into::into));
        let mapped = |kind: &str, id: &str| {
            state
                .access
                .check(asker.auth, &format!("/mapping/{kind}/{id}"), &["Mapping.Use"])
        };
        match (key.trim_end_matches(|c: char| c.is_ascii_digit()), host, part("mapping")) {
            ("serial", ..) if value == "socket" => hardware()?,
            ("serial", ..) => return Err(Die::new(format!("only root can set '{key}' config for real devices"))),
            ("usb", host, mapping) => {
                hardware()?;
                match (host, mapping) {
                    (Some(host), _) if host.eq_ignore_ascii_case("spice") => {}
                    (Some(_), _) => return Err(Die::new(format!("only root can set '{key}' config for real devices"))),
                    (None, Some(id)) => mapped("usb", &id)?,
                    (None, None) => return Err(Die::new("either 'host' or 'mapping' must be set.")),
                }
            }
            ("hostpci", Some(_), _) => {
                return Err(Die::new(format!("only root can set '{key}' config for non-mapped devices")));
            }
            ("hostpci", None, None) => return Err(Die::new("either 'host' or 'mapping' must be set.")),
            ("hostpci", None, Some(id)) => {
                mapped("pci", &id)?;
                hardware()?;
                if part("romfile").is_some() {
                    return Err(Die::parameter(key, "only root@pam can set 'romfile' option"));
                }
            }
            ("rng", ..) => {
                hardware()?;
                if value.contains("/dev/hwrng") {
                    state.access.check(asker.auth, "/mapping/hwrng", &["Mapping.Use"])?;
                }
            }
            ("virtiofs", ..) => {
                state
                    .access
                    .check_vm(asker.auth, asker.vmid, asker.pool, &["VM.Config.Disk"])?;
                let first = value.split(',').next().filter(|p| !p.contains('=')).map(Into::into);
                mapped("dir", &part("dirid").or(first).unwrap_or_default())?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// SDN.Use on what each card is plugged into.
pub(super) fn bridges(state: &State, auth: &Auth, settings: &Section) -> Result<(), Die> {
    if auth.is_root() {
        return Ok(());
    }
    for (key, value) in settings.iter().filter(|(key, _)| is_net(key)) {
        let zone_of = |bridge: &str| state.sdn.zone_of(bridge).to_string();
        for path in Net::parse(key, value)?.sdn_paths(zone_of) {
            state.access.check(auth, &path, &["SDN.Use"])?;
        }
    }
    Ok(())
}

pub(super) fn drives_of(settings: &Section) -> Result<Vec<Drive>, Die> {
    settings
        .iter()
        .filter(|(key, _)| is_drive(key))
        .map(|(key, value)| Drive::parse(key, value))
        .collect()
}

/// Whether the volumes and storages that drives name may be used.
pub(super) fn storage_access(state: &State, asker: &Asker<'_>, settings: &Section) -> Result<(), Die> {
    for drive in drives_of(settings)? {
        let file = drive.file();
        if file.is_empty() || file == "none" || drive.wants_cloudinit() {
            // Nothing to check.
        } else if drive.is_cdrom() && file == "cdrom" {
            state.access.check(asker.auth, "/", &["Sys.Console"])?;
        } else if let Some(new) = drive.new_disk().filter(|_| !drive.is_cdrom()) {
            state
                .access
                .check(asker.auth, &format!("/storage/{}", new.storage), &["Datastore.AllocateSpace"])?;
            if !state.storage(new.storage)?.content.contains("images") {
                return Err(Die::parameter(
                    "storage",
                    format!("storage '{}' does not support vm images", new.storage),
                ));
            }
        } else {
            state.check_volume_access(asker.auth, Some(asker.vmid), file)?;
            if let Ok((_, name)) = parse_volid(file)
                && !matches!(name.kind(), Some(Kind::Iso | Kind::Images))
            {
                return Err(Die::parameter(&drive.key, "content type needs to be 'images' or 'iso'"));
            }
        }
        if let Some(source) = drive.get("import-from") {
            import_source(state, asker, &drive.key, source)?;
        }
    }
    for (key, value) in settings.iter().filter(|(key, _)| key.starts_with("unused")) {
        let volid = value.split(',').next().unwrap_or_default().trim_start_matches("file=");
        if parse_volid(volid).is_err() {
            return Err(Die::parameter(key, format!("not a valid volid: {volid}")));
        }
        state.check_image_access(asker.auth, asker.vmid, volid)?;
    }
    match settings.get("vmstatestorage") {
        Some(storage) => state
            .access
            .check(asker.auth, &format!("/storage/{storage}"), &["Datastore.AllocateSpace"]),
        None => Ok(()),
    }
}

fn import_source(state: &State, asker: &Asker<'_>, key: &str, source: &str) -> Result<(), Die> {
    if let Ok((id, name)) = parse_volid(source) {
        let kind = name.require_kind(state.storage(id)?)?;
        if !matches!(kind, Kind::Images | Kind::Import) {
            let text = format!("{source} has wrong type '{}' - needs to be 'images' or 'import'", kind.name());
            return Err(Die::parameter(key, text));
        }
        if name.full.contains(".ova/") {
            extraction(state, asker, key, id)?;
        }
        if kind == Kind::Images
            && let Some(owner) = name.owner()
        {
            return state.access.check(asker.auth, &format!("/vms/{owner}"), &["VM.Clone"]);
        }
    }
    state.check_volume_access(asker.auth, Some(asker.vmid), source)
}

/// A disk inside an appliance is unpacked first, to the storage that was named for it or where the appliance lies.
fn extraction(state: &State, asker: &Asker<'_>, key: &str, source: &str) -> Result<(), Die> {
    let (name, id) = asker.extract_to.map_or((key, source), |id| ("import-working-storage", id));
    let storage = state.storage(id)?;
    if !storage.content.contains("images") || !storage.is_file_based() {
        let text = format!("import working storage '{id}' does not support 'images' content type or is not file based.");
        return Err(Die::parameter(name, text));
    }
    state
        .access
        .check(asker.auth, &format!("/storage/{id}"), &["Datastore.AllocateSpace"])
}

/// Combinations that only make sense together.
pub(super) fn drive_syntax(state: &State, settings: &Section) -> Result<(), Die> {
    for drive in drives_of(settings)? {
        if drive.get("import-from").is_some() {
            import_syntax(&drive)?;
        }
        if drive.new_disk().is_some() || drive.wants_cloudinit() {
            continue;
        }
        if let Ok((id, name)) = parse_volid(drive.file())
            && name.require_kind(state.storage(id)?)? == Kind::Iso
            && drive.get("media") != Some("cdrom")
        {
            return Err(Die::parameter(
                &drive.key,
                "explicit 'media=cdrom' is required for iso images",
            ));
        }
    }
    Ok(())
}

/// What an imported firmware volume holds cannot be seen, so it must be said.
fn import_syntax(drive: &Drive) -> Result<(), Die> {
    if drive.new_disk().is_none_or(|new| new.size.parse() != Ok(0.0)) {
        let text = "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>";
        return Err(Die::parameter(&drive.key, text));
    }
    let required: &[&str] = match drive.key.as_str() {
        "efidisk0" => &["efitype", "pre-enrolled-keys"],
        "tpmstate0" => &["version"],
        _ => &[],
    };
    match required.iter().find(|key| drive.get(key).is_none()) {
        Some(key) => {
            let text = format!("need to specify '{key}' when using 'import-from'");
            Err(Die::parameter(&drive.key, text))
        }
        None => Ok(()),
    }
}

/// Weights of the second version of control groups end at 10000.
pub(super) fn clamp_cpu_units(settings: &mut Section) {
    if let Some(units) = settings.get_mut("cpuunits")
        && units.parse::<u64>().is_ok_and(|n| n > 10_000)
    {
        *units = "10000".into();
    }
}

/// Keys must at least look like OpenSSH public keys that ssh-keygen takes.
pub(super) fn ssh_keys(settings: &Section) -> Result<(), Die> {
    let Some(encoded) = settings.get("sshkeys") else {
        return Ok(());
    };
    let text = crate::http::unescape(encoded);
    let valid = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .all(is_ssh_key);
    if valid {
        Ok(())
    } else {
        Err(Die::new("SSH public key validation error"))
    }
}

fn is_ssh_key(line: &str) -> bool {
    use base64::Engine;
    let mut parts = line.split_whitespace();
    let (Some(kind), Some(blob)) = (parts.next(), parts.next()) else {
        return false;
    };
    let Ok(bytes) = base64::engine::general_purpose::STANDARD.decode(blob) else {
        return false;
    };
    let Some(length) = bytes.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes) else {
        return false;
    };
    bytes.get(4..4 + length as usize) == Some(kind.as_bytes()) && bytes.len() > 4 + length as usize
}

/// What the datacenter's tag policy says about a change of tags. A tag that is given twice counts twice.
pub(super) fn tags(state: &State, asker: &Asker<'_>, old: &str, new: &str) -> Result<(), Die> {
    state.access.check_vm(asker.auth, asker.vmid, None, &["VM.Config.Options"])?;
    if state.access.may(asker.auth, "/", &["Sys.Modify"]) {
        return Ok(());
    }
    let policy = crate::tags::Policy::of(state);
    let allowed = policy.allowed(state, asker.auth);
    let count = |list: &str, tag: &str| split_list(list).filter(|t| *t == tag).count();
    for tag in split_list(old).chain(split_list(new)) {
        let changed = count(old, tag) != count(new, tag);
        if changed && (!policy.is_free() && !allowed.contains(tag) || policy.is_registered(tag)) {
            return Err(Die::permission(&format!("/, Sys.Modify for modifying tag '{tag}'")));
        }
    }
    Ok(())
}

/// Lower-cased, sorted, without doubles, unless the datacenter says otherwise.
pub(super) fn normal_tags(state: &State, tags: &str) -> String {
    crate::tags::unique(state, tags)
}
