//! A plan as a page for people: columns, wrapped lines, counts. Pure: width, file name and datacenter are arguments.

use std::fmt::Write as _;

use mainstay_plan::{Plan, PlanRow, RowSign};

use super::{about, count};

/// What surrounds the plan on the page.
pub struct PlanPage<'a> {
    /// The host name of the PVE endpoint.
    pub datacenter: &'a str,
    pub hosts: usize,
    /// The file that the plan is for.
    pub file: &'a str,
    /// Columns of the terminal.
    pub width: usize,
}

/// The indent of the second and later lines of a wrapped row.
const INDENT: usize = 4;

impl PlanPage<'_> {
    /// The whole plan. Refusals are not in it: they are shown as errors.
    pub fn text(&self, plan: &Plan) -> String {
        let mut text = self.headline(plan);
        if !plan.drift.is_empty() {
            text.push_str("\nchanged outside mainstay\n");
            let width = plan
                .drift
                .iter()
                .map(|drift| drift.subject.to_string().len())
                .max()
                .unwrap_or_default();
            for drift in &plan.drift {
                text.push_str(&wrap(
                    &format!("  {:width$}   {}", drift.subject, drift.what),
                    self.width,
                    INDENT,
                ));
            }
        }
        let rows = plan.rows();
        if !rows.is_empty() {
            text.push('\n');
            text.push_str(&self.table(&rows));
        }
        if !plan.notes.is_empty() {
            text.push('\n');
            plan.notes
                .iter()
                .for_each(|note| text.push_str(&wrap(&format!("note: {note}"), self.width, INDENT)));
        }
        text.push('\n');
        text.push_str(&wrap(&closing(plan), self.width, 0));
        text
    }

    fn headline(&self, plan: &Plan) -> String {
        let versions = plan.versions.as_ref();
        let versions = versions.map(|versions| {
            format!(
                "{} {}, Kubernetes {}, ",
                versions.distro.title(),
                versions.release,
                versions.kubernetes
            )
        });
        let versions = versions.unwrap_or_default();
        let line = format!(
            "{}: {versions}datacenter {} ({})",
            plan.cluster,
            self.datacenter,
            count(self.hosts, "host")
        );
        wrap(&line, self.width, INDENT)
    }

    /// Rows in columns as wide as their content. A line that is too long first loses its place in the file, then it is wrapped.
    fn table(&self, rows: &[PlanRow]) -> String {
        let widths = ColumnWidths::of(rows);
        // A reason that all machines share is left out where it does not fit: wrapping every line costs more than it tells.
        let fits = |row: &PlanRow| widths.line() + 2 + row.why.chars().count() <= self.width;
        let shows_reason = |row: &PlanRow| !is_columns(row) || fits(row) || !is_common(&row.why, rows);
        let mut text = String::new();
        for row in rows {
            let mut line = format!("{} {:8}  {:name$}", row.sign.glyph(), row.noun, row.name, name = widths.name);
            if is_columns(row) {
                let (vmid, host) = row
                    .vm
                    .as_ref()
                    .map(|vm| (format!("vm {}", vm.vmid), vm.host.as_str()))
                    .unwrap_or_default();
                let _ = write!(
                    line,
                    "  {vmid:vm$}  {host:at$}  {:what$}",
                    row.what,
                    vm = widths.vmid,
                    at = widths.host,
                    what = widths.what
                );
            } else {
                let _ = write!(line, "  {}", row.what);
            }
            if !row.why.is_empty() && shows_reason(row) {
                let _ = write!(line, "  {}", row.why);
            }
            let line = line.trim_end();
            let place = row.line.map(|at| format!("   {}:{at}", self.file)).unwrap_or_default();
            let fits = line.chars().count() + place.chars().count() <= self.width;
            text.push_str(&wrap(
                &format!("{line}{}", if fits { place.as_str() } else { "" }),
                self.width,
                INDENT,
            ));
        }
        text
    }
}

fn closing(plan: &Plan) -> String {
    let sums = plan.summary();
    let parts = [
        list(
            &[(sums.images_to_create, "image"), (sums.machines_to_create, "machine")],
            "to create",
        ),
        list(&[(sums.machines_to_change, "machine")], "to change"),
        list(
            &[
                (sums.machines_to_remove, "machine"),
                (sums.images_to_remove, "image"),
                (sums.leftovers_to_remove, "leftover"),
            ],
            "to remove",
        ),
        (sums.held > 0).then(|| format!("{} held", sums.held)),
        (sums.unchanged > 0).then(|| format!("{} unchanged", sums.unchanged)),
    ];
    let what = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    match (plan.steps.is_empty(), what.is_empty()) {
        (true, true) => "Nothing to do.".to_owned(),
        (true, false) => format!("Nothing to do: {what}."),
        (false, _) => format!("{what}. {}, {}.", count(sums.steps, "step"), about(plan.expected())),
    }
}

/// `1 image and 2 machines to create`.
fn list(counts: &[(usize, &str)], what: &str) -> Option<String> {
    let some = counts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, noun)| count(*number, noun));
    let some: Vec<String> = some.collect();
    (!some.is_empty()).then(|| format!("{} {what}", some.join(" and ")))
}

/// Widths of the columns that machines have in common.
struct ColumnWidths {
    name: usize,
    vmid: usize,
    host: usize,
    what: usize,
}

impl ColumnWidths {
    /// A machine's line without its reason.
    fn line(&self) -> usize {
        "+ machine   ".len() + self.name + self.vmid + self.host + self.what + 3 * 2
    }

    /// From rows of machines alone: images, volumes and held rows are sentences, which would push every column aside.
    fn of(rows: &[PlanRow]) -> Self {
        let machines = || rows.iter().filter(|row| is_columns(row));
        let widest = |length: &dyn Fn(&PlanRow) -> usize| machines().map(length).max().unwrap_or_default();
        Self {
            name: widest(&|row| row.name.chars().count()),
            vmid: widest(&|row| row.vm.as_ref().map_or(0, |vm| vm.vmid.to_string().len() + 3)),
            host: widest(&|row| row.vm.as_ref().map_or(0, |vm| vm.host.chars().count())),
            what: widest(&|row| row.what.chars().count()),
        }
    }
}

fn is_columns(row: &PlanRow) -> bool {
    row.noun == "machine" && row.sign != RowSign::Held
}

/// Whether there are several machines and all have this reason.
fn is_common(why: &str, rows: &[PlanRow]) -> bool {
    let mut machines = rows.iter().filter(|row| is_columns(row));
    machines.clone().count() > 1 && machines.all(|row| row.why == why)
}

/// Breaks at blanks. Runs of blanks inside a line are kept, because they separate columns.
fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut prefix = 0;
    while prefix + rest.chars().count() > width {
        // One more than fits: the blank may be right behind the last column.
        let end = rest
            .char_indices()
            .nth(width.saturating_sub(prefix) + 1)
            .map_or(rest.len(), |(at, _)| at);
        let begin = rest.len() - rest.trim_start().len();
        let Some(at) = rest[..end].rfind(' ').filter(|at| *at > begin) else {
            break;
        };
        let _ = writeln!(out, "{:prefix$}{}", "", rest[..at].trim_end());
        rest = rest[at..].trim_start();
        prefix = indent;
    }
    let _ = writeln!(out, "{:prefix$}{rest}", "");
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use mainstay_plan::{Drift, Subject, VmRef};
    use uuid::Uuid;

    use super::*;

    fn row(sign: RowSign, noun: &'static str, name: &str, what: &str, why: &str) -> PlanRow {
        PlanRow {
            sign,
            noun,
            name: name.into(),
            vm: None,
            what: what.into(),
            why: why.into(),
            line: None,
        }
    }

    fn machine(sign: RowSign, name: &str, (vmid, host): (u32, &str), what: &str, why: &str) -> PlanRow {
        PlanRow {
            vm: Some(VmRef {
                host: host.into(),
                vmid,
                uuid: Uuid::nil(),
            }),
            line: (sign == RowSign::Create && why == "new cluster").then_some(if vmid < 3000 { 6 } else { 7 }),
            ..row(sign, "machine", name, what, why)
        }
    }

    fn new_cluster() -> Vec<PlanRow> {
        let new =
            |name, at, address: &str| machine(RowSign::Create, name, at, &format!("4 cpu  8 GiB  {address}"), "new cluster");
        vec![
            row(
                RowSign::Create,
                "image",
                "talos-1.14.1 (376567988ad3)",
                "pve1:local, pve2:local, pve3:local",
                "missing there",
            ),
            new("prod-cp-1", (2001, "pve1"), "10.10.0.11"),
            new("prod-cp-2", (2002, "pve2"), "10.10.0.12"),
            new("prod-w-1", (3001, "pve1"), "10.10.0.21"),
            row(
                RowSign::Create,
                "etcd",
                "prod-cp-1",
                "bootstraps here",
                "no control plane has etcd data",
            ),
        ]
    }

    fn table(rows: &[PlanRow], width: usize) -> String {
        let page = PlanPage {
            datacenter: "pve.lan",
            hosts: 3,
            file: "cluster.yaml",
            width,
        };
        page.table(rows)
    }

    #[test]
    fn a_new_cluster_at_120_columns() {
        expect![[r#"
            + image     talos-1.14.1 (376567988ad3)  pve1:local, pve2:local, pve3:local  missing there
            + machine   prod-cp-1  vm 2001  pve1  4 cpu  8 GiB  10.10.0.11  new cluster   cluster.yaml:6
            + machine   prod-cp-2  vm 2002  pve2  4 cpu  8 GiB  10.10.0.12  new cluster   cluster.yaml:6
            + machine   prod-w-1   vm 3001  pve1  4 cpu  8 GiB  10.10.0.21  new cluster   cluster.yaml:7
            + etcd      prod-cp-1  bootstraps here  no control plane has etcd data
        "#]]
        .assert_eq(&table(&new_cluster(), 120));
    }

    #[test]
    fn a_new_cluster_at_80_columns() {
        expect![[r#"
            + image     talos-1.14.1 (376567988ad3)  pve1:local, pve2:local, pve3:local
                missing there
            + machine   prod-cp-1  vm 2001  pve1  4 cpu  8 GiB  10.10.0.11  new cluster
            + machine   prod-cp-2  vm 2002  pve2  4 cpu  8 GiB  10.10.0.12  new cluster
            + machine   prod-w-1   vm 3001  pve1  4 cpu  8 GiB  10.10.0.21  new cluster
            + etcd      prod-cp-1  bootstraps here  no control plane has etcd data
        "#]]
        .assert_eq(&table(&new_cluster(), 80));
    }

    #[test]
    fn a_reason_that_all_machines_share_is_left_out_where_there_is_no_room() {
        let narrow = table(&new_cluster(), 74);
        assert!(narrow.contains("10.10.0.11\n+ machine   prod-cp-2"), "{narrow}");
        assert!(!narrow.contains("new cluster"), "{narrow}");
    }

    #[test]
    fn changes_and_held_rows() {
        let held = "held: etcd would have 1 of 3 healthy members while it restarts and needs 2 (not healthy: prod-cp-2)";
        let rows = [
            machine(
                RowSign::Create,
                "prod-w-2",
                (3002, "pve2"),
                "4 cpu  8 GiB  10.10.0.22",
                "not found in the datacenter",
            ),
            machine(
                RowSign::Change,
                "prod-w-1",
                (3001, "pve1"),
                "memory 4 GiB -> 8 GiB, reboot",
                "changed outside",
            ),
            row(RowSign::Held, "change", "prod-cp-1", held, ""),
        ];
        expect![[r#"
            + machine   prod-w-2  vm 3002  pve2  4 cpu  8 GiB  10.10.0.22       not found in the datacenter
            ~ machine   prod-w-1  vm 3001  pve1  memory 4 GiB -> 8 GiB, reboot  changed outside
            . change    prod-cp-1  held: etcd would have 1 of 3 healthy members while it restarts and needs 2
                (not healthy: prod-cp-2)
        "#]]
        .assert_eq(&table(&rows, 100));
    }

    #[test]
    fn a_settled_cluster_with_drift_and_a_note() {
        let mut plan = Plan {
            cluster: "prod".into(),
            drift: vec![Drift {
                subject: Subject::Machine("prod-w-1".into()),
                what: "memory is 4 GiB, was set to 8 GiB".into(),
            }],
            notes: vec!["local is thin-provisioned".into()],
            ..Plan::default()
        };
        plan.unchanged.machines = 5;
        let page = PlanPage {
            datacenter: "pve.lan",
            hosts: 3,
            file: "cluster.yaml",
            width: 80,
        };
        expect![[r#"
            prod: datacenter pve.lan (3 hosts)

            changed outside mainstay
              prod-w-1   memory is 4 GiB, was set to 8 GiB

            note: local is thin-provisioned

            Nothing to do: 5 unchanged.
        "#]]
        .assert_eq(&page.text(&plan));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [40, 60, 80, 100, 200] {
            let text = table(&new_cluster(), width);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
            assert!(widest <= width, "{widest} > {width}\n{text}");
        }
    }
}
