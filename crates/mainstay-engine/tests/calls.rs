//! How many Proxmox VE calls `up`, a look that finds nothing to do, and `down` make: more calls, or other ones, are a change that shows.
//!
//! `UPDATE_EXPECT=1 cargo test --workspace --test engine calls` writes the list anew. Fifty machines: `--example speed -- 50 --calls`.

use std::collections::BTreeMap;
use std::fmt::Write;

use expect_test::expect_file;
use mainstay_sim::WorldSpec;

use crate::stage::{Stage, THREE_AND_TWO, on_stage, settled};

/// The calls since `before`, which then becomes now.
fn since(stage: &Stage, before: &mut BTreeMap<String, u64>, title: &str) -> String {
    let now = stage.world.datacenter().stats().calls();
    let mut text = format!("{title}\n");
    for (call, count) in &now {
        let new = count - before.get(call).copied().unwrap_or_default();
        if new > 0 {
            let _ = writeln!(text, "{new:6} {call}");
        }
    }
    *before = now;
    text
}

#[test]
fn five_machines_take_as_many_calls_as_ever() {
    let text = on_stage(1, WorldSpec::default(), async |stage| {
        let mut before = BTreeMap::new();
        settled(stage, stage.up(THREE_AND_TWO).await);
        let mut text = since(stage, &mut before, "up");
        assert_eq!(stage.plan(THREE_AND_TWO).await.render(), "nothing to do");
        text += &since(stage, &mut before, "nothing to do");
        settled(stage, stage.down(THREE_AND_TWO).await);
        text += &since(stage, &mut before, "down");
        text
    });
    expect_file!["golden/calls.txt"].assert_eq(&text);
}
