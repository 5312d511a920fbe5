//! What is measured, and the bars that it is held to.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use crate::lateness::Late;

/// What Terraform with bpg/proxmox takes to destroy five machines on one host of the same world.
const BPG_DESTROYS: f64 = 4.7;

/// What one size took.
pub struct Measured {
    pub machines: usize,
    pub hosts: usize,
    pub up: Part,
    pub path: Duration,
    /// From the begin of `up` to its last start; what the world itself takes until then; the calls until then.
    pub last_start: Duration,
    pub path_to_last_start: Duration,
    pub calls_to_last_start: u64,
    pub look: Part,
    pub down: Part,
    pub late: BTreeMap<String, Late>,
}

/// One run.
pub struct Part {
    pub calls: BTreeMap<String, u64>,
    pub took: Duration,
    /// CPU time, the simulated datacenter included.
    pub cpu: Duration,
}

impl Part {
    /// Task polls.
    pub fn polls(&self) -> u64 {
        let polls = self.calls.iter().filter(|(call, _)| call.contains("/tasks"));
        polls.map(|(_, count)| count).sum()
    }

    pub fn total(&self) -> u64 {
        self.calls.values().sum()
    }

    pub fn without_polls(&self) -> u64 {
        self.total() - self.polls()
    }
}

impl Measured {
    pub fn per_machine(&self, count: f64) -> f64 {
        count / self.machines as f64
    }

    pub fn cpu_per_machine(&self, part: &Part) -> f64 {
        self.per_machine(part.cpu.as_secs_f64())
    }

    pub fn up_to_path(&self) -> f64 {
        self.up.took.as_secs_f64() / self.path.as_secs_f64()
    }
}

/// A measured number, and the most that it may be.
struct Bar {
    what: String,
    is: f64,
    most: f64,
}

/// The bars of the sizes that were measured. `Ok(false)`: one is missed.
pub fn tell(out: &mut impl Write, one_host: &Measured, sizes: &[Measured]) -> std::io::Result<bool> {
    let mut bars = of_one_host(one_host);
    for measured in sizes {
        bars.extend(of_size(measured));
    }
    let of = |machines: usize| sizes.iter().find(|measured| measured.machines == machines);
    if let (Some(few), Some(many)) = (of(50), of(1000)) {
        bars.push(Bar {
            what: "CPU of up per machine, 1000 against 50".into(),
            is: many.cpu_per_machine(&many.up) / few.cpu_per_machine(&few.up),
            most: 1.2,
        });
    }
    for Bar { what, is, most } in &bars {
        let word = if is <= most { "met   " } else { "MISSED" };
        writeln!(out, "{word} {is:>8.3} <= {most:<6} {what}")?;
    }
    Ok(bars.iter().all(|bar| bar.is <= bar.most))
}

fn of_one_host(measured: &Measured) -> Vec<Bar> {
    let bar = |what: &str, is: f64, most: f64| Bar {
        what: format!("five machines on one host: {what}"),
        is,
        most,
    };
    vec![
        bar(
            "last start sent, against image, fills and resize",
            measured.last_start.as_secs_f64() / measured.path_to_last_start.as_secs_f64(),
            1.05,
        ),
        bar(
            "calls until the last start, with polls",
            measured.calls_to_last_start as f64,
            105.0,
        ),
        bar("calls of a plan that finds nothing to do", measured.look.total() as f64, 15.0),
        bar("calls of down, with polls", measured.down.total() as f64, 68.0),
        bar(
            "down, against Terraform with bpg",
            measured.down.took.as_secs_f64() / BPG_DESTROYS,
            0.6,
        ),
    ]
}

fn of_size(measured: &Measured) -> Vec<Bar> {
    let machines = measured.machines;
    let bar = |what: &str, is: f64, most: f64| Bar {
        what: format!("{machines} machines: {what}"),
        is,
        most,
    };
    let mut bars = Vec::new();
    if let 5 | 50 | 500 | 1000 = machines {
        let most = if machines == 5 { 1.03 } else { 1.05 };
        bars.push(bar("up, against the critical path", measured.up_to_path(), most));
    }
    let calls = match machines {
        5 => Some(17.0),
        50 => Some(9.5),
        500 => Some(9.0),
        _ => None,
    };
    if let Some(most) = calls {
        let calls = measured.per_machine(measured.up.without_polls() as f64);
        bars.push(bar("calls of up for each, without polls", calls, most));
    }
    if machines == 1000 {
        let calls = measured.per_machine(measured.look.total() as f64);
        bars.push(bar("calls of a plan that finds nothing to do, for each", calls, 1.5));
    }
    if machines == measured.hosts * 10 {
        bars.push(bar(
            "seconds of down, ten machines a host",
            measured.down.took.as_secs_f64(),
            4.0,
        ));
    }
    bars
}
