//! A VM that lost marks is left alone until the user adopts it.

use mainstay_engine::{adopt, adoption};
use mainstay_sim::WorldSpec;

use crate::stage::{Stage, on_stage, settled};

const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1] }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

fn is_there(stage: &Stage, vmid: u32) -> bool {
    stage.world.datacenter().inspect().vms.contains_key(&vmid)
}

/// A person takes marks off a VM.
fn unmark(stage: &Stage, vmid: u32) {
    let lab = stage.world.datacenter().lab();
    lab.set_config(vmid, "tags", "gpu");
    lab.set_config(vmid, "description", "mine now");
}

#[test]
fn a_vm_without_marks_survives_up_and_down_until_it_is_adopted() {
    on_stage(91, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        unmark(stage, 3000);
        let plan = stage.plan(FILE).await;
        assert!(plan.steps.is_empty(), "{}", plan.render());
        let held = stage.down(FILE).await.expect("the other machine goes").held;
        assert!(
            held.iter().any(|held| held.reason.contains("mainstay adopt 3000")),
            "{held:?}"
        );
        assert!(is_there(stage, 3000) && !is_there(stage, 2000), "{}", stage.story());
        let spec = stage.spec(FILE);
        let site = stage.site(&spec);
        let found = adoption(&site, &spec, stage.secrets.id(), 3000).await.expect("it is ours");
        assert!(!found.complete && found.mark.machine == "small-worker-1", "{found:?}");
        adopt(&site, &found).await.expect("marks are written");
        settled(stage, stage.down(FILE).await);
        assert!(!is_there(stage, 3000), "{}", stage.story());
    });
}

#[test]
fn a_vm_that_is_locked_a_copy_or_of_another_uuid_is_not_adopted() {
    on_stage(92, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(FILE).await);
        unmark(stage, 3000);
        let spec = stage.spec(FILE);
        let site = stage.site(&spec);
        let lab = stage.world.datacenter().lab();
        let why = async |vmid| {
            let refused = adoption(&site, &spec, stage.secrets.id(), vmid).await;
            refused.expect_err("refused").why.unwrap_or_default()
        };
        assert!(why(512).await.contains("no VM with this VMID"));
        lab.set_lock(3000, Some("backup"));
        assert!(why(3000).await.contains("lock `backup`"), "{}", why(3000).await);
        lab.set_lock(3000, None);
        let config = stage.world.datacenter().inspect().vms[&3000].config.clone();
        lab.set_config(2000, "net0", &config["net0"]);
        assert!(why(3000).await.contains("VM 2000 has the same MAC"), "{}", why(3000).await);
        lab.set_config(2000, "smbios1", &config["smbios1"]);
        assert!(
            why(3000).await.contains("VM 2000 has the same SMBIOS UUID"),
            "{}",
            why(3000).await
        );
        lab.set_config(3000, "smbios1", "uuid=00000000-0000-4000-8000-000000000007");
        assert!(why(3000).await.contains("not that of any machine"), "{}", why(3000).await);
    });
}
