//! What is found before anything is made, and what is carried out on a cluster that runs.

use std::collections::BTreeMap;
use std::time::Duration;

use mainstay_engine::RunError;
use mainstay_plan::{Action, Plan, Seen};
use mainstay_sim::WorldSpec;
use pve_api::pool;
use tokio::time::Instant;

use crate::stage::{Stage, on_stage, settled};

const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

fn edited(file: &str, from: &str, to: &str) -> String {
    let text = file.replace(from, to);
    assert_ne!(text, file, "`{from}` is in the file");
    text
}

/// What the only refusal of a plan says.
fn refusal(plan: &Plan) -> String {
    let [refusal] = plan.refusals.as_slice() else {
        panic!("{}", plan.render())
    };
    format!("{}: {}", refusal.what, refusal.why)
}

#[test]
fn a_host_whose_calls_take_thirty_seconds_delays_nothing_about_the_others() {
    on_stage(51, WorldSpec::default(), async |stage| {
        stage.world.datacenter().lab().set_frozen("pve3", true);
        let began = Instant::now();
        let seen = stage.observed(FILE).await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(18), "{took:?}");
        assert!(seen.hosts["pve1"].storages.yes().is_some() && seen.hosts["pve2"].bridges.yes().is_some());
        let Seen::Unknown(why) = &seen.hosts["pve3"].storages else {
            panic!("{:?}", seen.hosts["pve3"])
        };
        assert!(why.contains("no answer within 12 s"), "{why}");
    });
}

#[test]
fn a_running_vm_that_has_our_address_in_its_settings_stops_everything() {
    on_stage(52, WorldSpec::default(), async |stage| {
        let config = BTreeMap::from([
            ("name".to_owned(), "db".to_owned()),
            ("ipconfig0".to_owned(), "ip=10.0.0.20/16,gw=10.0.0.1".to_owned()),
            ("ipconfig1".to_owned(), "ip=10.0.0.21/16".to_owned()),
        ]);
        let lab = stage.world.datacenter().lab();
        lab.create_vm(900, "pve2", config);
        assert!(stage.plan(FILE).await.refusals.is_empty(), "it does not run");
        lab.start_vm(900);
        tokio::time::sleep(Duration::from_secs(12)).await;
        let plan = stage.plan(FILE).await;
        let told: Vec<String> = plan
            .refusals
            .iter()
            .map(|refusal| format!("{}: {}", refusal.what, refusal.why))
            .collect();
        assert_eq!(
            told,
            [
                "address 10.0.0.21 of small-worker-1 is already in use: VM 900 (db) by its cloud-init settings has it, but the machine does not run.",
                "VIP 10.0.0.20 is already in use: VM 900 (db) by its cloud-init settings has it, but no control plane of ours runs."
            ]
        );
    });
}

#[test]
fn a_release_that_the_factory_does_not_have_is_refused_before_anything_is_made() {
    on_stage(53, WorldSpec::default(), async |stage| {
        let plan = stage.plan(&edited(FILE, "version: 1.13.9", "version: 1.13.99")).await;
        assert!(refusal(&plan).contains("has no Talos 1.13.99"), "{}", refusal(&plan));
        let plan = stage
            .plan(&edited(
                FILE,
                "version: 1.13.9",
                "version: 1.13.9, extensions: [no-such-thing]",
            ))
            .await;
        assert!(
            refusal(&plan).contains("Talos 1.13.9 has no extension `siderolabs/no-such-thing`"),
            "{}",
            refusal(&plan)
        );
        assert!(stage.world.datacenter().inspect().vms.is_empty());
    });
}

#[test]
fn an_image_that_is_not_whole_is_found_in_the_plan_and_fetched_again() {
    on_stage(54, WorldSpec::default(), async |stage| {
        let plan = stage.plan(FILE).await;
        let fetched = plan.steps.iter().find_map(|step| match &step.action {
            Action::ImageFetch { at, image } => Some((at.host.clone(), format!("{}:import/{}", at.storage, image.file))),
            _ => None,
        });
        let (host, volid) = fetched.expect("is fetched");
        settled(stage, stage.up(FILE).await);
        settled(stage, stage.down(FILE).await);
        assert!(stage.world.datacenter().lab().cut_file(&host, &volid, 4096), "{volid}");
        let plan = stage.plan(FILE).await;
        let trace = plan.trace();
        assert!(
            trace.contains("image.discard") && trace.contains("4096 of"),
            "{trace}\n{}",
            plan.render()
        );
        settled(stage, stage.up(FILE).await);
    });
}

#[test]
fn a_resource_pool_that_is_not_there_is_told_and_machines_move_between_pools() {
    on_stage(55, WorldSpec::default(), async |stage| {
        let pooled = |name: &str| format!("datacenter: {{ pool: {name} }}\n{FILE}");
        let plan = stage.plan(&pooled("k8s")).await;
        assert!(refusal(&plan).contains("there is no resource pool k8s"), "{}", refusal(&plan));
        assert_eq!(plan.refusals[0].help, ["pveum pool add k8s --comment 'mainstay' || true"]);
        for name in ["k8s", "other"] {
            stage
                .pve()
                .call(pool::create(&name.parse().expect("a name"), None))
                .await
                .expect("a pool");
        }
        let members = async |name: &str| {
            let found = stage
                .pve()
                .call(pool::members(&name.parse().expect("a name")))
                .await
                .expect("a pool");
            found[0].members.len()
        };
        settled(stage, stage.up(FILE).await);
        settled(stage, stage.up(&pooled("k8s")).await);
        assert_eq!((members("k8s").await, members("other").await), (2, 0));
        settled(stage, stage.up(&pooled("other")).await);
        assert_eq!((members("k8s").await, members("other").await), (0, 2));
        settled(stage, stage.up(FILE).await);
        assert_eq!((members("k8s").await, members("other").await), (0, 0));
        assert_eq!(stage.plan(FILE).await.render(), "nothing to do");
    });
}

/// Taints of the worker's Node that are not Kubernetes' own, and its labels of one domain.
async fn node(stage: &Stage, file: &str) -> (Vec<String>, Vec<String>) {
    let spec = stage.spec(file);
    let clients = stage.site(&spec);
    let server = clients
        .kube
        .server("10.0.0.11".parse().expect("an address"))
        .expect("a client");
    let node = server.node("small-worker-1").await.expect("answers").expect("is there");
    let taints = node.taints.iter().filter(|taint| !taint.key.contains("kubernetes.io"));
    let labels = node.labels.iter().filter(|(key, _)| key.starts_with("example.com/"));
    (
        taints
            .map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect))
            .collect(),
        labels.map(|(key, value)| format!("{key}={value}")).collect(),
    )
}

#[test]
fn taints_and_labels_of_a_worker_take_effect_at_its_registration_and_later() {
    on_stage(56, WorldSpec::default(), async |stage| {
        let with = |more: &str| {
            edited(
                FILE,
                "disk: 20GiB, addresses: 10.0.0.21+",
                &format!("disk: 20GiB, {more}, addresses: 10.0.0.21+"),
            )
        };
        let first = with("taints: ['gpu=yes:NoSchedule'], labels: { example.com/tier: gold }");
        settled(stage, stage.up(&first).await);
        let words = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
        assert_eq!(
            node(stage, &first).await,
            (words(&["gpu=yes:NoSchedule"]), words(&["example.com/tier=gold"]))
        );
        assert_eq!(stage.plan(&first).await.render(), "nothing to do");
        let second = with("taints: ['gpu=no:NoSchedule', 'edge:NoExecute'], labels: { example.com/rack: a }");
        settled(stage, stage.up(&second).await);
        assert_eq!(
            node(stage, &second).await,
            (
                words(&["gpu=no:NoSchedule", "edge=:NoExecute"]),
                words(&["example.com/rack=a"])
            )
        );
        settled(stage, stage.up(FILE).await);
        assert_eq!(node(stage, FILE).await, (Vec::new(), Vec::new()));
        assert_eq!(stage.plan(FILE).await.render(), "nothing to do");
    });
}

#[test]
fn the_search_domain_of_the_host_does_not_reach_a_machine() {
    on_stage(57, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        assert_eq!(
            stage.world.datacenter().inspect().vms[&2000].config["searchdomain"],
            "small.internal"
        );
    });
}

#[test]
fn a_locked_machine_keeps_down_from_deleting_the_others() {
    on_stage(58, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        stage.world.datacenter().lab().set_lock(3000, Some("backup"));
        let report = settled(stage, stage.down(FILE).await);
        assert!(!report.is_settled());
        assert_eq!(stage.world.datacenter().inspect().vms.len(), 2, "{:?}", report.held);
        let other = report
            .held
            .iter()
            .find(|held| held.subject.to_string() == "small-control-plane-1")
            .expect("is held");
        assert!(other.reason.contains("small-worker-1"), "{}", other.reason);
        stage.world.datacenter().lab().set_lock(3000, None);
        assert!(settled(stage, stage.down(FILE).await).is_settled());
        assert!(stage.world.datacenter().inspect().vms.is_empty());
    });
}

#[test]
fn startup_order_asks_for_its_own_right() {
    on_stage(59, WorldSpec::default(), async |stage| {
        let ordered = edited(
            FILE,
            "disk: 20GiB, addresses: 10.0.0.21+",
            "disk: 20GiB, startup-order: 3, addresses: 10.0.0.21+",
        );
        let version = pve_api::PveVersion::new(9, 2);
        let observed = stage.observed(FILE).await;
        let lists = |file: &str| {
            let grants = mainstay_engine::preflight::grants(&stage.spec(file), Some(&observed), version);
            let root = grants.into_iter().find(|grant| grant.path == "/").expect("the root");
            root.privileges.iter().any(|privilege| privilege.name() == "Sys.Modify")
        };
        assert!(lists(&ordered) && !lists(FILE));
        assert!(!matches!(stage.up(&ordered).await, Err(RunError::MissingPrivileges(_))));
    });
}
