//! What a good file means.

use mainstay_spec::{
    Checked, Cni, EndpointBy, Environment, Firmware, Gib, Hosts, Mib, PveTrust, Role, ScsiController, Spec, VersionWish, load,
    smbios_uuid,
};
use semver::Version;

const MINIMAL: &str = "\
name: homelab
datacenter: { endpoint: \"https://pve.lan\" }
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1 }
pools: { control-plane: { count: 1, addresses: 10.0.0.11+ } }
";

/// DESIGN's own file, without what later versions carry out.
const FULL: &str = r#"
name: homelab
datacenter:
  endpoint: https://pve.lan:8006
  fingerprint: "9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A:9A"
  jump: ops@pve.lan
  storage: { images: local, disks: local-lvm }
  pool: k8s
  tags: [team-a]
network:
  cidr: 10.0.0.0/16
  gateway: 10.0.0.1
  bridge: vmbr0
  vlan: 20
  dns: [1.1.1.1, 8.8.8.8]
  vip: 10.0.0.20
  addressing: static
endpoint: https://k8s.example:6443
talos: { version: 1.13.9, extensions: [qemu-guest-agent, tailscale], patches: [patches/common.yaml], factory: https://factory.talos.dev,
         first-boot: cloud-init }
kubernetes: 1.35.2
cni: flannel
provision: import
protect: true
names: "{cluster}-{pool}-{n}"
pools:
  control-plane: { count: 3, cpu: 4, memory: 8GiB, disk: 40GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker:        { count: 2, cpu: 8, memory: 16GiB, disk: 60GiB, addresses: 10.0.0.21+, vmids: 3000-3999,
                   disks: [{ name: longhorn, size: 100GiB }], hosts: [pve1, pve2], labels: {}, taints: [] }
machines: { homelab-worker-2: { host: pve3, cpu: 16, mac: "BC:24:11:00:00:17", vmid: 3117, address: 10.0.0.77 } }
"#;

fn read(text: &str, endpoint: Option<&str>) -> Checked {
    let files = |name: &str| Some(format!("# {name}\nmachine: {{}}\n").into_bytes());
    let environment = Environment {
        endpoint: endpoint.map(str::to_owned),
    };
    load(text, "cluster.yaml", &environment, &files).unwrap_or_else(|faults| panic!("{:#?}", faults.faults))
}

fn spec(text: &str) -> Spec {
    read(text, None).spec
}

fn refused(text: &str) -> Vec<&'static str> {
    let faults = load(text, "cluster.yaml", &Environment::default(), &|_| None).unwrap_err();
    faults.faults.iter().map(|fault| fault.code).collect()
}

#[test]
fn what_is_left_out_has_its_default() {
    let spec = spec(MINIMAL);
    assert_eq!(spec.datacenter.endpoint.as_str(), "https://pve.lan:8006/");
    assert_eq!(spec.datacenter.trust, PveTrust::Roots);
    assert_eq!(
        (spec.network.bridge.as_str(), spec.network.vlan, spec.network.dns.len()),
        ("vmbr0", None, 2)
    );
    assert_eq!(
        (spec.cni, spec.protect, &spec.kubernetes),
        (Cni::Flannel, false, &VersionWish::Any)
    );
    let talos = spec.distro.talos().unwrap();
    assert_eq!(
        (talos.factory.as_str(), &talos.version),
        ("https://factory.talos.dev/", &VersionWish::Any)
    );
    let [machine] = spec.machines.as_slice() else {
        panic!("{:?}", spec.machines)
    };
    assert_eq!(
        (machine.name.as_str(), machine.ordinal, machine.hosts.clone()),
        ("homelab-control-plane-1", 1, Hosts::Any)
    );
    let shape = &machine.shape;
    assert_eq!((shape.cpu, shape.memory, shape.disk.size), (4, Mib(8192), Gib(40)));
    assert_eq!(
        (shape.cpu_type.as_str(), shape.scsi, shape.firmware),
        ("x86-64-v2-AES", ScsiController::VirtioScsiPci, Firmware::Ovmf)
    );
    assert!(shape.onboot && shape.disk.options.discard && !shape.disk.options.iothread);
}

#[test]
fn the_whole_file_is_read() {
    let spec = spec(FULL);
    assert_eq!(
        (spec.network.vlan, spec.network.vip.map(|vip| vip.to_string())),
        (Some(20), Some("10.0.0.20".to_owned()))
    );
    assert_eq!(
        spec.datacenter.jump.as_ref().map(ToString::to_string).as_deref(),
        Some("ops@pve.lan")
    );
    assert_eq!(
        (spec.endpoint.url().as_str(), spec.endpoint.by),
        ("https://k8s.example:6443", EndpointBy::Given)
    );
    let talos = spec.distro.talos().unwrap();
    let extensions: Vec<&str> = talos.extensions.iter().map(AsRef::as_ref).collect();
    assert_eq!(extensions, ["siderolabs/qemu-guest-agent", "siderolabs/tailscale"]);
    let identities: Vec<String> = spec
        .machines
        .iter()
        .map(|m| format!("{} {} {}", m.name, m.vmid, m.address))
        .collect();
    assert_eq!(
        identities,
        [
            "homelab-control-plane-1 2000 10.0.0.11",
            "homelab-control-plane-2 2001 10.0.0.12",
            "homelab-control-plane-3 2002 10.0.0.13",
            "homelab-worker-1 3000 10.0.0.21",
            "homelab-worker-2 3117 10.0.0.77",
        ]
    );
}

#[test]
fn a_machine_says_more_than_its_pool() {
    let spec = spec(FULL);
    let (one, two) = (
        spec.machine("homelab-worker-1").unwrap(),
        spec.machine("homelab-worker-2").unwrap(),
    );
    assert_eq!(
        (one.shape.cpu, two.shape.cpu, one.shape.memory == two.shape.memory),
        (8, 16, true)
    );
    assert!(one.hosts.allow("pve1") && !one.hosts.allow("pve3") && two.hosts.allow("pve3") && !two.hosts.allow("pve1"));
    assert_eq!(two.mac.to_string(), "BC:24:11:00:00:17");
    assert_eq!((one.at.line, two.at.line), (28, 30));
}

#[test]
fn patches_come_in_the_order_cluster_pool_machine() {
    let text = FULL
        .replace("taints: [] }", "taints: [], patches: [pool.yaml] }")
        .replace("host: pve3,", "host: pve3, patches: [machine.yaml],");
    let spec = spec(&text);
    let paths: Vec<&str> = spec
        .machine("homelab-worker-2")
        .unwrap()
        .patches
        .iter()
        .map(|patch| patch.path.as_str())
        .collect();
    assert_eq!(paths, ["patches/common.yaml", "pool.yaml", "machine.yaml"]);
    assert_eq!(spec.machine("homelab-control-plane-1").unwrap().patches.len(), 1);
    assert_eq!(&*spec.machines[0].patches[0].text, "# patches/common.yaml\nmachine: {}\n");
}

#[test]
fn a_patch_shows_its_path_and_never_what_is_in_it() {
    let spec = spec(FULL);
    assert!(!format!("{spec:?}").contains("machine: {}"));
}

#[test]
fn the_endpoint_is_the_vip_or_the_only_control_plane() {
    let alone = spec(MINIMAL);
    assert_eq!(
        (alone.endpoint.url().as_str(), alone.endpoint.by),
        ("https://10.0.0.11:6443", EndpointBy::Machine)
    );
    let vip = spec(&MINIMAL.replace("gateway: 10.0.0.1", "gateway: 10.0.0.1, vip: 10.0.0.20"));
    assert_eq!(
        (vip.endpoint.url().as_str(), vip.endpoint.by),
        ("https://10.0.0.20:6443", EndpointBy::Vip)
    );
}

#[test]
fn control_planes_take_pods_only_where_no_worker_does() {
    assert!(spec(MINIMAL).control_plane_workloads);
    assert!(!spec(FULL).control_plane_workloads);
    assert!(spec(&format!("{FULL}control-plane-workloads: true\n")).control_plane_workloads);
    assert!(!spec(&format!("{MINIMAL}control-plane-workloads: false\n")).control_plane_workloads);
}

#[test]
fn the_endpoint_of_pve_may_come_from_the_environment_and_the_file_goes_first() {
    let without = MINIMAL.replace("datacenter: { endpoint: \"https://pve.lan\" }\n", "");
    let checked = read(&without, Some("https://other.lan:8006/api2/json"));
    assert_eq!(
        (checked.spec.datacenter.endpoint.as_str(), checked.warnings.len()),
        ("https://other.lan:8006/", 0)
    );
    let checked = read(MINIMAL, Some("https://other.lan"));
    assert_eq!(
        (checked.spec.datacenter.endpoint.as_str(), checked.warnings[0].code),
        ("https://pve.lan:8006/", "endpoint-twice")
    );
    assert_eq!(read(MINIMAL, Some("https://pve.lan:8006/")).warnings, []);
}

#[test]
fn a_loopback_network_belongs_to_a_loopback_pve() {
    let text = MINIMAL
        .replace("10.0.0.0/16", "127.10.0.0/16")
        .replace("10.0.0.1", "127.10.0.1");
    assert_eq!(refused(&text), ["network"]);
    for host in ["127.0.0.1:8006", "localhost:8006", "[::1]:8006"] {
        spec(&text.replace("pve.lan", host));
    }
    let without = text.replace("datacenter: { endpoint: \"https://pve.lan\" }\n", "");
    read(&without, Some("https://127.0.0.1:8006"));
}

#[test]
fn several_pools_may_have_a_role_and_a_pool_may_be_empty() {
    let text = MINIMAL.replace(
        "pools: { ",
        "pools: { spare: { count: 0 }, control-plane-b: { role: control-plane, count: 2, addresses: 10.0.1.1+ }, ",
    );
    let spec = spec(&format!("{text}endpoint: https://k8s.example\n"));
    assert_eq!(spec.control_planes().count(), 3);
    assert!(
        spec.workers().next().is_none()
            && spec
                .pool("spare")
                .is_some_and(|pool| pool.role == Role::Worker && pool.count == 0)
    );
    assert_eq!(spec.endpoint.port, 6443);
}

#[test]
fn a_pool_without_a_range_may_name_every_address() {
    let text = MINIMAL.replace(", addresses: 10.0.0.11+", "");
    assert_eq!(refused(&text), ["address-missing"]);
    let spec = spec(&format!(
        "{text}machines: {{ homelab-control-plane-1: {{ address: 10.0.0.99 }} }}\n"
    ));
    assert_eq!(spec.machines[0].address.to_string(), "10.0.0.99");
}

#[test]
fn names_count_from_one_or_from_zero() {
    let zero = spec(&MINIMAL.replace("count: 1,", "count: 1, names: \"cp-{n0}\","));
    assert_eq!((zero.machines[0].name.as_str(), zero.machines[0].ordinal), ("cp-0", 1));
}

#[test]
fn a_version_is_kept_as_long_as_the_wish_admits_it() {
    let known = [Version::new(1, 12, 11), Version::new(1, 13, 10)];
    let running = Version::new(1, 13, 9);
    let pick = |wish: VersionWish, running: Option<&Version>| wish.pick(running, &known).map(ToString::to_string);
    assert_eq!(pick(VersionWish::Any, Some(&running)).as_deref(), Some("1.13.9"));
    assert_eq!(pick(VersionWish::Any, None).as_deref(), Some("1.13.10"));
    assert_eq!(pick(VersionWish::Minor(1, 13), Some(&running)).as_deref(), Some("1.13.9"));
    assert_eq!(pick(VersionWish::Minor(1, 12), Some(&running)).as_deref(), Some("1.12.11"));
    assert_eq!(pick(VersionWish::Minor(1, 11), None), None);
    assert_eq!(
        pick(VersionWish::Exact(Version::new(1, 14, 0)), Some(&running)).as_deref(),
        Some("1.14.0")
    );
}

#[test]
fn a_namesake_cluster_has_other_smbios_uuids() {
    let machine = spec(MINIMAL).machines[0].name.to_string();
    let ids = [1, 2].map(uuid::Uuid::from_u128);
    assert_ne!(smbios_uuid(ids[0], &machine), smbios_uuid(ids[1], &machine));
    assert_eq!(smbios_uuid(ids[0], &machine).get_version_num(), 5);
}
