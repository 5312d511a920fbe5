//! Clusters come up.

use rancher_config::{Distro, Place};

use super::lab::{Lab, Machine, in_lab, ip};

async fn one_server_and_one_agent(lab: &Lab) {
    let (_, guest) = lab.first_server().await;
    lab.join("w-1", &[]).await;
    lab.node_ready("cp-1").await;
    lab.node_ready("w-1").await;
    let members = lab
        .access
        .supervisor(ip("10.0.0.11"))
        .expect("a client")
        .members()
        .await
        .expect("members");
    assert!(
        members.len() == 1 && members[0].is_of("cp-1") && !members[0].learner,
        "{members:?}"
    );
    assert_eq!(lab.world.etcd_foundings(), 1);
    // Everything again changes nothing.
    let machine = Machine::new("cp-1");
    let files = lab.prepare(&guest, &machine, Place::Founder).await;
    let files = files.unwrap_or_else(|failure| lab.fail(&failure));
    let again = lab.try_found(&guest, &machine, &files, &[]).await;
    again.unwrap_or_else(|failure| lab.fail(&failure));
    assert_eq!(lab.world.etcd_foundings(), 1);
}

#[test]
fn an_rke2_server_and_an_agent_become_ready() {
    in_lab(Distro::Rke2, one_server_and_one_agent);
}

#[test]
fn a_k3s_server_and_an_agent_become_ready() {
    in_lab(Distro::K3s, one_server_and_one_agent);
}

async fn three_servers(lab: &Lab) {
    lab.first_server().await;
    lab.join("cp-2", &["10.0.0.11"]).await;
    lab.join("cp-3", &["10.0.0.11", "10.0.0.12"]).await;
    for address in ["10.0.0.11", "10.0.0.12", "10.0.0.13"] {
        let members = lab
            .access
            .supervisor(ip(address))
            .expect("a client")
            .members()
            .await
            .expect("members");
        assert_eq!(
            members.iter().filter(|member| !member.learner).count(),
            3,
            "{address}: {members:?}"
        );
    }
    assert_eq!(lab.world.etcd_foundings(), 1);
    assert!(lab.reasons.any("learner"), "{}", lab.reasons.all());
}

#[test]
fn three_rke2_servers_become_voters_one_by_one() {
    in_lab(Distro::Rke2, three_servers);
}

#[test]
fn three_k3s_servers_become_voters_one_by_one() {
    in_lab(Distro::K3s, three_servers);
}
