//! Configs that Talos would refuse, told before anything is made.

use mainstay_engine::{EventSink, Run, RunError, RunGoal, observe_and_plan};
use mainstay_sim::WorldSpec;
use mainstay_spec::{DistroSpec, Environment, Spec};

use crate::stage::{Stage, on_stage};

const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9, patches: [common.yaml] }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 2, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+, patches: [worker.yaml] }
";

const COMMON: &str = "\
machine:
  nodeLabels:
    rack: a
    bad key: b
---
apiVersion: v1alpha1
kind: ResolverConfig
nameservers: [{ address: 9.9.9.9 }]
";

const WORKER: &str = "\
machine:
  sysctls:
    vm.max_map_count: '262144'
  kubelet:
    nodeIP:
      validSubnets: [nonsense]
";

fn spec(stage: &Stage, common: &'static str, worker: &'static str) -> Spec {
    let environment = Environment {
        endpoint: Some(stage.world.endpoint()),
    };
    let files = |name: &str| match name {
        "common.yaml" => Some(common.as_bytes().to_vec()),
        "worker.yaml" => Some(worker.as_bytes().to_vec()),
        _ => None,
    };
    let mut spec = match mainstay_spec::load(FILE, "cluster.yaml", &environment, &files) {
        Ok(checked) => checked.spec,
        Err(faults) => panic!("{faults:?}"),
    };
    if let DistroSpec::Talos(talos) = &mut spec.distro {
        talos.factory = stage.world.factory_url().parse().expect("a URL");
    }
    spec
}

/// What a plan says without secrets and with them.
async fn told(stage: &Stage, spec: &Spec) -> Vec<String> {
    let clients = stage.site(spec);
    let mut told = Vec::new();
    for secrets in [None, Some(&stage.secrets)] {
        let run = Run {
            secrets,
            events: EventSink::discard(),
            ..stage.run(spec, &clients, RunGoal::Up)
        };
        told.push(match observe_and_plan(&run).await {
            Err(RunError::ObserveFailed(failure)) => format!("{failure}\n{}", failure.why.as_deref().unwrap_or_default()),
            Err(other) => panic!("{other:?}"),
            Ok(round) => round.plan.summary().machines_to_create.to_string(),
        });
    }
    told
}

#[test]
fn a_config_that_talos_would_refuse_is_told_with_patch_document_and_line() {
    on_stage(3, WorldSpec::default(), async |stage| {
        let expected = "\
Talos would refuse the config of small-control-plane-1 and 2 more
common.yaml:4, document v1alpha1: invalid machine node labels: name \"bad key\" is invalid
worker.yaml:6, document v1alpha1: kubelet nodeIP subnet is not valid: \"nonsense\" (small-worker-1 and 1 more)";
        let seen = told(stage, &spec(stage, COMMON, WORKER)).await;
        assert_eq!(seen[0], expected, "without secrets");
        assert_eq!(seen[1], expected, "with secrets");
        assert_eq!(told(stage, &spec(stage, "machine: {}\n", "machine: {}\n")).await, ["3", "3"]);
    });
}
