//! Runs that end before their plan does: the run could not continue, or it was told to stop.

use std::sync::Arc;
use std::time::Duration;

use mainstay_engine::{FailureKind, RunError, RunGoal, converge};
use mainstay_net::{Dial, DialError, DialFault, Dialer, Operation, Target};
use mainstay_sim::WorldSpec;
use tokio::time::Instant;

use crate::stage::{THREE_AND_TWO, on_stage};

/// A jump host that shows another key from now on: nothing on Talos' port is reached through it.
struct Closed(Arc<dyn Dialer>);

impl Dialer for Closed {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        if to.port != 50000 {
            return self.0.dial(to);
        }
        let fault = DialFault::HostKeyUnknown {
            fingerprint: "SHA256:other".into(),
            line: "pve.lan ssh-ed25519 other".into(),
        };
        let jump = Target::new("pve.lan", 22);
        Box::pin(async { Err(DialError::new(jump, Operation::SshHandshake, fault)) })
    }
}

#[test]
fn a_jump_host_that_says_no_in_the_middle_of_the_work_is_not_waited_for() {
    on_stage(51, WorldSpec::default(), async |stage| {
        let mut behind = stage.with_a_colleague();
        behind.env.dialer = Arc::new(Closed(stage.env.dialer.clone()));
        let began = Instant::now();
        let Err(RunError::StepsFailed { failed, .. }) = behind.up(THREE_AND_TWO).await else {
            panic!("it did not fail\n{}", behind.story())
        };
        assert!(
            failed.iter().all(|(_, failure)| failure.kind == FailureKind::Denied),
            "{failed:?}"
        );
        assert!(failed[0].1.help[0].contains("known_hosts"), "{failed:?}");
        assert!(began.elapsed() < Duration::from_secs(300), "it took {:?}", began.elapsed());
    });
}

#[test]
fn a_run_that_is_told_to_stop_before_it_begins_changes_nothing() {
    on_stage(52, WorldSpec::default(), async |stage| {
        let before = stage.world.datacenter().inspect().vms.len();
        let spec = stage.spec(THREE_AND_TWO);
        let site = stage.site(&spec);
        let run = stage.run(&spec, &site, RunGoal::Up);
        // Between the yes and the first step.
        let stop = run.stop.clone();
        let outcome = converge(&run, &mut |request| {
            request.approve();
            stop.cancel();
        })
        .await;
        assert!(matches!(outcome, Err(RunError::Stopped { done: 0, .. })), "{outcome:?}");
        assert_eq!(stage.world.datacenter().inspect().vms.len(), before);
    });
}

#[test]
fn a_run_can_be_stopped_while_its_question_is_open() {
    on_stage(57, WorldSpec::default(), async |stage| {
        let before = stage.world.datacenter().inspect().vms.len();
        let spec = stage.spec(THREE_AND_TWO);
        let site = stage.site(&spec);
        let run = stage.run(&spec, &site, RunGoal::Up);
        let stop = run.stop.clone();
        // Kept without an answer, as while a person reads the plan.
        let mut open = None;
        let mut keep_open = |request| open = Some(request);
        let ctrl_c = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            stop.cancel();
        };
        let (outcome, ()) = futures::future::join(converge(&run, &mut keep_open), ctrl_c).await;
        assert!(
            matches!(outcome, Err(RunError::Stopped { done: 0, left, .. }) if left > 0),
            "{outcome:?}"
        );
        assert!(open.is_some(), "nothing was asked");
        assert_eq!(stage.world.datacenter().inspect().vms.len(), before);
    });
}

#[test]
fn a_request_that_is_dropped_is_declined() {
    on_stage(58, WorldSpec::default(), async |stage| {
        let spec = stage.spec(THREE_AND_TWO);
        let site = stage.site(&spec);
        let run = stage.run(&spec, &site, RunGoal::Up);
        let outcome = converge(&run, &mut |request| drop(request)).await;
        assert!(matches!(outcome, Err(RunError::NotApproved(_))), "{outcome:?}");
    });
}
