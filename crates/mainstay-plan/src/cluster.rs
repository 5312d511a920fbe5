//! The plan for a cluster that is wanted: machines first, then Talos in them, then etcd, then nodes, then what must go.

use std::collections::{BTreeMap, BTreeSet};

use crate::desired::{Wanted, Wish};
use crate::image::{self, Images};
use crate::place::{self, Places};
use crate::plan::{Draft, Unchanged};
use crate::refuse;
use crate::remove;
use crate::shape::Difference;
use crate::step::{Apply, StepId, Subject};
use crate::survey::{Owned, Survey};

/// A plan under way.
pub(crate) struct Course<'s, 'a> {
    pub survey: &'s Survey<'a>,
    pub wish: &'a Wish,
    pub draft: Draft,
    pub places: Places,
    pub images: Images,
    /// The last step on the VM of each machine that runs and stays up: its marks, its disks, what it takes live.
    pub touched: BTreeMap<&'a str, StepId>,
    /// Machines that run and must restart or take a new config.
    pub turns: Vec<Turn<'a>>,
}

/// A VM after the steps that were planned for it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Brought {
    /// Nothing is done about it in this plan.
    Held,
    /// It runs after this step, or already. `fresh`: its disk is new, so it holds nothing.
    Runs { after: Option<StepId>, fresh: bool },
}

/// A running machine whose change concerns the others: they go one after another.
pub(crate) struct Turn<'a> {
    pub wanted: &'a Wanted,
    pub owned: Owned<'a>,
    pub difference: Option<Difference>,
    pub config: Option<ConfigChange>,
    /// Its etcd left the cluster, and joins again only at a restart.
    pub left: bool,
    pub after: Option<StepId>,
}

#[derive(Debug, Clone)]
pub(crate) struct ConfigChange {
    pub how: Apply,
    pub text: String,
}

pub(crate) fn plan<'a>(survey: &Survey<'a>, wish: &'a Wish, mut draft: Draft) -> Draft {
    refuse::conflicts(survey, wish, &mut draft);
    let places = place::places(survey, wish, &mut draft);
    if !draft.plan.refusals.is_empty() {
        return draft;
    }
    let mut course = Course {
        survey,
        wish,
        draft,
        places,
        images: Images::default(),
        touched: BTreeMap::new(),
        turns: Vec::new(),
    };
    let brought: BTreeMap<&str, Brought> = wish
        .machines
        .iter()
        .map(|wanted| (wanted.name(), course.bring(wanted)))
        .collect();
    let last = course.talos(&brought);
    remove::unwanted(&mut course, &last);
    course.count();
    course.draft
}

impl Course<'_, '_> {
    fn count(&mut self) {
        let plan = &self.draft.plan;
        let subjects = plan
            .steps
            .iter()
            .map(|step| &step.subject)
            .chain(plan.held.iter().map(|held| &held.subject));
        let busy: BTreeSet<&str> = subjects
            .filter_map(|subject| {
                if let Subject::Machine(name) = subject {
                    Some(name.as_str())
                } else {
                    None
                }
            })
            .collect();
        let machines = self
            .wish
            .machines
            .iter()
            .filter(|wanted| !busy.contains(wanted.name()))
            .count();
        let images = image::count(self.survey.observed, &self.wish.image.file);
        self.draft.plan.unchanged = Unchanged { machines, images };
    }
}
