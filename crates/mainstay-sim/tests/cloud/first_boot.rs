//! The drive, cloud-init and sshd.

use std::time::Duration;

use crate::cloud::lab::{drive, image, in_world, ip};

#[test]
fn the_port_opens_before_sshd_answers_and_the_right_key_is_refused_while_the_guest_boots() {
    in_world(|lab| async move {
        let vm = lab.vm("cp-1", "10.10.0.11");
        vm.on();
        tokio::time::sleep(Duration::from_millis(18_500)).await;
        assert!(
            lab.try_ssh("10.10.0.11")
                .await
                .err()
                .is_some_and(|error| error.contains("no banner") || error.contains("permission denied"))
        );
        let ssh = lab.ssh("10.10.0.11").await;
        assert_eq!(ssh.ok("hostname").await, "cp-1\n");
        assert_eq!(
            ssh.ok("cloud-init status --wait; cat /run/cloud-init/result.json | grep -c NoCloud")
                .await,
            "status: done\n1\n"
        );
        assert_eq!(ssh.ok("ip -o addr | grep -o 'inet [0-9./]*'").await, "inet 10.10.0.11/16\n");
        let proof = ssh
            .ok("sudo -n cat /sys/class/dmi/id/product_uuid /sys/class/dmi/id/product_serial")
            .await;
        assert_eq!(proof, format!("{}\nserial-of-cp-1\n", vm.hardware.uuid));
        assert_eq!(
            ssh.run("cat /sys/class/dmi/id/product_serial", b"").await.status,
            1,
            "only root reads the serial"
        );
    });
}

#[test]
fn a_stranger_is_refused_and_a_sources_many_failures_are_punished_where_sshd_is_new() {
    in_world(|lab| async move {
        let vm = lab.vm_of("cp-1", "10.10.0.11", &image("debian", "13"));
        vm.on();
        drop(lab.ssh("10.10.0.11").await);
        let stranger = mainstay_net::sshd::ed25519_key(&mainstay_net::Entropy::from_seed(99));
        for _ in 0..4 {
            assert!(lab.try_ssh_as("10.10.0.11", "admin", &stranger).await.is_err());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(
            lab.try_ssh("10.10.0.11").await.is_err(),
            "the right key is refused too: the source is punished"
        );
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(lab.try_ssh("10.10.0.11").await.is_ok());
    });
}

#[test]
fn a_changed_drive_is_a_new_instance_unless_cloud_init_was_switched_off() {
    in_world(|lab| async move {
        let (mut vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
        let first = ssh.host_key.clone();
        let mac = vm.hardware.nics[0].mac.clone();
        vm.off();
        vm.hardware.cloud_init = Some(drive("renamed", "10.10.0.11", &mac, lab.key.public_key()));
        vm.on();
        let ssh = lab.ssh("10.10.0.11").await;
        assert_ne!(ssh.host_key, first, "a new instance has new host keys");
        assert_eq!(ssh.ok("hostname").await, "renamed\n");
        ssh.ok("sudo -n touch /etc/cloud/cloud-init.disabled").await;
        let second = ssh.host_key.clone();
        vm.off();
        vm.hardware.cloud_init = Some(drive("again", "10.10.0.99", &mac, lab.key.public_key()));
        vm.on();
        let ssh = lab.ssh("10.10.0.11").await;
        assert_eq!(
            (ssh.host_key.clone(), ssh.ok("hostname").await),
            (second, "renamed\n".to_owned())
        );
        assert_eq!(ssh.ok("cloud-init status").await, "status: disabled\n");
    });
}

#[test]
fn a_connection_has_ten_sessions() {
    in_world(|lab| async move {
        let (_vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
        let mut held = Vec::new();
        for _ in 0..10 {
            let channel = ssh.session.channel_open_session().await.expect("a session");
            channel.exec(true, "sleep 60").await.expect("an exec");
            held.push(channel);
        }
        assert!(ssh.session.channel_open_session().await.is_err());
    });
}

#[test]
fn sudo_writes_command_lines_to_the_journal_and_the_world_keeps_them() {
    in_world(|lab| async move {
        let (_vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
        ssh.ok("sudo -n echo hush-hush").await;
        ssh.write("/etc/secret.conf", "0600", "by-stdin").await;
        let journal = lab.world.guest_journal(ip("10.10.0.11")).join("\n");
        assert!(
            journal.contains("COMMAND=echo hush-hush") && !journal.contains("by-stdin"),
            "{journal}"
        );
        let commands = lab.world.guest_commands("cp-1").join("\n");
        assert!(commands.contains("hush-hush") && !commands.contains("by-stdin"));
        assert_eq!(
            ssh.ok("sudo -n stat -c '%a %U' /etc/secret.conf; sudo -n cat /etc/secret.conf")
                .await,
            "600 root\nby-stdin"
        );
        assert_eq!(
            ssh.run("cat /etc/secret.conf", b"").await.stderr,
            "cat: /etc/secret.conf: Permission denied\n"
        );
    });
}

#[test]
fn a_hard_link_and_a_lock_let_only_one_be_the_first() {
    in_world(|lab| async move {
        let (_vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
        assert_eq!(
            ssh.ok("echo one > a; echo two > b; ln a c && ! ln b c && cat c").await,
            "one\n"
        );
        let holder = ssh.session.channel_open_session().await.expect("a session");
        holder.exec(true, "flock /tmp/lock sleep 60").await.expect("an exec");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(ssh.run("flock -w 2 -E 75 /tmp/lock true", b"").await.status, 75);
        assert_eq!(ssh.ok("ls -d /sys/class/net/*/device").await, "/sys/class/net/eth0/device\n");
    });
}

#[test]
fn the_guest_agent_is_a_package_that_needs_the_mirror() {
    in_world(|lab| async move {
        let (vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
        assert!(vm.agent("ping").is_none(), "no image has it");
        let outage = ["archive.ubuntu.com".to_owned()].into();
        lab.world.set_web_faults(mainstay_sim::WebFaults {
            outage,
            ..Default::default()
        });
        assert_eq!(ssh.run("sudo -n apt-get install -y qemu-guest-agent", b"").await.status, 100);
        lab.world.set_web_faults(mainstay_sim::WebFaults::default());
        ssh.ok("sudo -n apt-get install -y qemu-guest-agent && sudo -n systemctl start qemu-guest-agent")
            .await;
        assert_eq!(ssh.ok("systemctl is-active qemu-guest-agent").await, "active\n");
        assert!(vm.agent("ping").is_some_and(|answer| answer.is_ok()));
    });
}

#[test]
fn arguments_that_look_like_assignments_and_absent_arguments_are_as_in_any_shell() {
    in_world(|lab| async move {
        let (_vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
        assert_eq!(ssh.ok("/usr/bin/env LC_ALL=C printenv LC_ALL").await, "C\n");
        assert_eq!(
            ssh.ok("false; code=$?; echo $code; said=$(false); echo $?; echo $?").await,
            "1\n1\n0\n"
        );
        assert_eq!(ssh.ok("echo a=b c=\"d e\"").await, "a=b c=d e\n");
        assert_eq!(ssh.ok("sh -c 'for w in \"$@\"; do echo \"<$w>\"; done' sh").await, "");
        assert_eq!(
            ssh.ok("sh -c 'for w in \"$@\"; do echo \"<$w>\"; done' sh '' b").await,
            "<>\n<b>\n"
        );
        assert_eq!(ssh.ok("sh -c 'for w in \"x$@\"; do echo \"<$w>\"; done' sh").await, "<x>\n");
    });
}
