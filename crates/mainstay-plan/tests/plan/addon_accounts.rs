//! PVE accounts of the cloud controller and the CSI driver.

use std::collections::BTreeSet;

use mainstay_plan::addon::accounts::{
    AccountAccess, AccountChange, AccountDecision, AccountHold, AccountKind, ObservedAccount, PveUser, RotationState,
    RotationStep, WantedAccount, choose_controller_vmid, cloud_config, decide_account, next_rotation_step, next_token,
    unseen_machines, wanted_account,
};
use mainstay_spec::Distro;
use uuid::Uuid;

use crate::addon_catalogue::facts;
use crate::world::ID;

fn set(items: &[&str]) -> BTreeSet<String> {
    items.iter().map(ToString::to_string).collect()
}

fn account(pve_major: u32) -> WantedAccount {
    wanted_account(AccountKind::Ccm, ID, pve_major, None)
}

fn complete() -> PveUser {
    PveUser {
        comment: account(9).comment,
        tokens: set(&["a"]),
        acl: set(&["a"]),
        has_user_acl: true,
    }
}

fn access() -> AccountAccess {
    AccountAccess {
        may_modify: true,
        in_secrets_file: set(&["a"]),
        in_cluster: Some("a".to_owned()),
    }
}

/// The role as another cluster of the datacenter made it.
fn role() -> BTreeSet<String> {
    account(9).privileges.iter().map(ToString::to_string).collect()
}

fn judge(user: PveUser, access: &AccountAccess) -> AccountDecision {
    decide_account(&account(9), Some(&role()), &ObservedAccount::Present(user), access)
}

#[test]
fn privileges_follow_the_version_of_pve() {
    let has = |kind: AccountKind, major, privilege| kind.privileges(major).contains(privilege);
    assert!(has(AccountKind::Ccm, 9, "VM.GuestAgent.Audit") && !has(AccountKind::Ccm, 8, "VM.GuestAgent.Audit"));
    assert!(has(AccountKind::Csi, 8, "Datastore.AllocateSpace") && has(AccountKind::Csi, 9, "Sys.Audit"));
    for kind in AccountKind::ALL {
        for major in [8, 9] {
            assert!(!has(kind, major, "VM.Monitor"), "PVE 9 refuses a role with it");
        }
    }
}

#[test]
fn names_carry_the_cluster_and_the_program() {
    let id = Uuid::parse_str("0a1b2c3d-0000-4000-8000-000000000001").unwrap();
    let wanted = wanted_account(AccountKind::Csi, id, 9, Some(900_123));
    assert_eq!((wanted.user.as_str(), wanted.role), ("ms-0a1b2c3d-csi@pve", "mainstay-csi"));
    assert_eq!(wanted.comment, format!("mainstay cluster={id} csi-vmid=900123"));
}

#[test]
fn a_missing_account_is_created_in_order_or_printed() {
    let none = AccountAccess {
        may_modify: true,
        ..AccountAccess::default()
    };
    let all = vec![
        AccountChange::CreateRole,
        AccountChange::CreateUser,
        AccountChange::AllowUser,
        AccountChange::CreateToken("a".to_owned()),
        AccountChange::AllowToken("a".to_owned()),
    ];
    assert_eq!(
        decide_account(&account(9), None, &ObservedAccount::Absent, &none),
        AccountDecision::Change(all)
    );
    let nothing = AccountAccess::default();
    let AccountDecision::Print(commands) = decide_account(&account(8), None, &ObservedAccount::Absent, &nothing) else {
        panic!("commands")
    };
    assert_eq!(commands.len(), 5);
    assert_eq!(commands[0], "pveum role add mainstay-ccm --privs 'Sys.Audit VM.Audit'");
    assert!(commands[4].contains("-ccm@pve!a' --roles mainstay-ccm"), "{}", commands[4]);
}

#[test]
fn a_complete_account_is_kept_and_a_foreign_one_is_a_conflict() {
    assert_eq!(judge(complete(), &access()), AccountDecision::Keep);
    for comment in ["", "made by hand", "mainstay cluster=0a1b2c3d-0000-4000-8000-000000000009"] {
        let user = PveUser {
            comment: comment.to_owned(),
            ..complete()
        };
        assert!(
            matches!(judge(user, &access()), AccountDecision::Conflict { .. }),
            "{comment}"
        );
    }
    let unknown = decide_account(&account(9), None, &ObservedAccount::Unknown("403".to_owned()), &access());
    assert!(matches!(unknown, AccountDecision::Hold(AccountHold::Unknown(_))));
}

#[test]
fn a_role_that_another_cluster_made_is_not_created_again() {
    let none = AccountAccess {
        may_modify: true,
        ..AccountAccess::default()
    };
    let changes = decide_account(&account(9), Some(&role()), &ObservedAccount::Absent, &none);
    let AccountDecision::Change(changes) = changes else {
        panic!("{changes:?}")
    };
    assert_eq!(changes[0], AccountChange::CreateUser);
    assert!(!changes.contains(&AccountChange::CreateRole), "{changes:?}");
}

#[test]
fn a_shared_role_is_extended_and_never_reduced() {
    let role = set(&["VM.Audit", "Sys.Audit", "Pool.Audit"]);
    let missing = vec!["VM.GuestAgent.Audit".to_owned()];
    assert_eq!(
        decide_account(&account(9), Some(&role), &ObservedAccount::Present(complete()), &access()),
        AccountDecision::Change(vec![AccountChange::ExtendRole(missing)])
    );
}

/// R12.
#[test]
fn a_token_whose_secret_is_lost_is_made_anew_and_tokens_of_others_stay() {
    let lost = AccountAccess {
        may_modify: true,
        ..AccountAccess::default()
    };
    let mut user = complete();
    user.tokens = set(&["a", "mine"]);
    let changes = vec![
        AccountChange::DeleteToken("a".to_owned()),
        AccountChange::CreateToken("a".to_owned()),
        AccountChange::AllowToken("a".to_owned()),
    ];
    assert_eq!(judge(user, &lost), AccountDecision::Change(changes));
}

/// R12.
#[test]
fn a_secrets_file_older_than_the_cluster_is_refused() {
    let older = AccountAccess {
        in_cluster: Some("b".to_owned()),
        ..access()
    };
    let hold = AccountHold::SecretsFileIsOlder {
        in_cluster: "b".to_owned(),
    };
    assert_eq!(judge(complete(), &older), AccountDecision::Hold(hold));
    // In the middle of a rotation the file has both.
    let rotating = AccountAccess {
        in_secrets_file: set(&["a", "b"]),
        ..access()
    };
    assert_eq!(judge(complete(), &rotating), AccountDecision::Keep);
}

/// R12.
#[test]
fn a_rotation_goes_on_from_wherever_it_was_interrupted() {
    let mut state = RotationState {
        old: "a".to_owned(),
        tokens: set(&["a"]),
        in_secrets_file: set(&["a"]),
        in_cluster: Some("a".to_owned()),
        in_pods: Some("a".to_owned()),
        ..RotationState::default()
    };
    assert_eq!((next_token("a"), next_token("b")), ("b", "a"));
    assert_eq!(next_rotation_step(&state), Some(RotationStep::CreateToken));
    // Killed between the request and the write: the secret is lost.
    state.tokens.insert("b".to_owned());
    assert_eq!(next_rotation_step(&state), Some(RotationStep::DeleteLostToken));
    state.in_secrets_file.insert("b".to_owned());
    let mut steps = Vec::new();
    while let Some(step) = next_rotation_step(&state) {
        steps.push(step);
        match step {
            RotationStep::AllowToken => drop(state.allowed.insert("b".to_owned())),
            RotationStep::CheckToken => state.is_checked = true,
            RotationStep::ApplySecret => state.in_cluster = Some("b".to_owned()),
            RotationStep::RestartPods => state.in_pods = Some("b".to_owned()),
            RotationStep::CheckController => state.is_controller_healthy = true,
            RotationStep::DeleteOldToken => drop(state.tokens.remove("a")),
            RotationStep::DeleteLostToken | RotationStep::CreateToken => panic!("{step:?}"),
        }
    }
    assert!(steps.is_sorted() && steps.len() == 6, "{steps:?}");
}

/// R12.
#[test]
fn a_controller_that_cannot_see_a_machine_is_not_started() {
    assert_eq!(unseen_machines(&[1, 2].into(), &[2, 3].into()), [1]);
    assert!(unseen_machines(&[2].into(), &[2, 3].into()).is_empty());
}

/// R13.
#[test]
fn the_vmid_of_csi_volumes_is_the_clusters_own_and_free() {
    let first = choose_controller_vmid(ID, |_| false).unwrap();
    assert_eq!(choose_controller_vmid(ID, |_| false), Some(first));
    assert_ne!(choose_controller_vmid(ID, |vmid| vmid == first), Some(first));
    assert_ne!(
        choose_controller_vmid(Uuid::from_u128(1), |_| false),
        choose_controller_vmid(Uuid::from_u128(2), |_| false)
    );
    assert_eq!(choose_controller_vmid(ID, |_| true), None);
    let config = cloud_config(&facts(Distro::Talos).pve, "u@pve!a", "s", Some(first));
    assert_eq!(config["features"]["controllerVmID"], first);
    assert_eq!(
        (&config["clusters"][0]["url"], &config["clusters"][0]["insecure"]),
        (&"https://10.0.0.5:8006/api2/json".into(), &false.into())
    );
}
