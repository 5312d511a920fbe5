//! Images: on every storage from which a machine is filled, once, whole.

use std::collections::{BTreeMap, BTreeSet};

use crate::action::Action;
use crate::builder::PlanBuilder;
use crate::context::{Context, Inputs};
use crate::desired::{Image, SchematicRef};
use crate::mark::{Mark, TAG};
use crate::observed::{ImageFile, Observed, Publisher, Seen, StorageAt, Vm};
use crate::plan::{HoldReason, Refusal, RefusalKind};
use crate::step::{StepId, Subject};
use crate::versions::Versions;

/// The image storages that this plan uses. What to do about one is decided when a machine first needs it, so that a storage from which
/// no machine is filled gets no image.
#[derive(Debug)]
pub(crate) struct ImageTable<'a> {
    observed: &'a Observed,
    /// Schematics that this plan registers, by id.
    registered: BTreeMap<String, StepId>,
    /// By storage (a shared one once for all hosts) and file: the step that brings it, none where it is already, or why it is unknown.
    decided: BTreeMap<(StorageAt, String), Result<Option<StepId>, String>>,
}

impl<'a> ImageTable<'a> {
    pub fn inspect(ctx: Context<'a>) -> Self {
        Self {
            observed: ctx.observed,
            registered: BTreeMap::new(),
            decided: BTreeMap::new(),
        }
    }

    /// The step after which a storage has the image; none if it has it already.
    pub fn on(&mut self, at: &StorageAt, image: &Image, plan: &mut PlanBuilder) -> Result<Option<StepId>, HoldReason> {
        let key = (storage_key(self.observed, &at.host, &at.storage), image.file.clone());
        if let Some(known) = self.decided.get(&key) {
            return known.clone().map_err(HoldReason::from);
        }
        let step = match self.observed.images.get(at) {
            Some(Seen::Yes(files)) => self.fetch(at, image, files, plan),
            Some(Seen::No) => self.fetch(at, image, &[], plan),
            Some(Seen::Unknown(why)) => Err(format!("the images on {at} could not be listed: {why}")),
            None => Err(format!("the images on {at} were not listed")),
        };
        self.decided.insert(key, step.clone());
        step.map_err(HoldReason::from)
    }

    /// What brings the image to a storage that holds `files`, if it is not there as it should be.
    fn fetch(
        &mut self,
        at: &StorageAt,
        image: &Image,
        files: &[ImageFile],
        plan: &mut PlanBuilder,
    ) -> Result<Option<StepId>, String> {
        let found = files.iter().find(|found| found.file == image.file);
        let expected = image.size.or_else(|| self.observed.publisher.size());
        if found.is_some_and(|found| expected.is_none_or(|size| size == found.size)) {
            return Ok(None);
        }
        let subject = Subject::Image(at.clone());
        let discarded = match found {
            Some(found) => Some(discard(at, found, expected.unwrap_or_default(), plan)?),
            None => None,
        };
        let registered = image.schematic.as_ref().map(|schematic| self.register(schematic, plan));
        let action = Action::ImageFetch {
            at: at.clone(),
            image: image.clone(),
        };
        let step = plan.step(subject, action).because("missing there");
        Ok(Some(step.needs(registered).needs(discarded).add()))
    }

    /// Has the factory know this schematic, once in a plan.
    pub fn register(&mut self, schematic: &SchematicRef, plan: &mut PlanBuilder) -> StepId {
        if let Some(step) = self.registered.get(&schematic.id) {
            return *step;
        }
        let action = Action::SchematicRegister {
            schematic: schematic.clone(),
        };
        let step = plan
            .step(Subject::Schematic, action)
            .because("the Image Factory builds registered schematics only")
            .add();
        self.registered.insert(schematic.id.clone(), step);
        step
    }
}

/// PVE never overwrites a file, so one that is not whole goes first, if the token may delete it.
fn discard(at: &StorageAt, found: &ImageFile, expected: u64, plan: &mut PlanBuilder) -> Result<StepId, String> {
    let why = format!("{} of {expected} bytes: an interrupted download", found.size);
    if !found.may_delete {
        return Err(format!(
            "{} on {at} has {why}, and the token lacks Datastore.Allocate on /storage/{} to delete it: pvesm free {}:import/{}",
            found.file, at.storage, at.storage, found.file
        ));
    }
    let action = Action::ImageDiscard {
        at: at.clone(),
        file: found.file.clone(),
    };
    Ok(plan.step(Subject::Image(at.clone()), action).because(why).add())
}

/// What the publisher says about the image counts where the plan uses the image.
pub(crate) fn judge_publisher(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let fetches = plan.uses(|action| matches!(action, Action::ImageFetch { .. }));
    let imports = plan.uses(|action| matches!(action, Action::MachineFill(fill) if fill.system.is_some()));
    match &ctx.observed.publisher {
        Publisher::Lacks { what, help } if fetches => plan.refuse(Refusal {
            kind: RefusalKind::Insufficient,
            subject: Subject::Cluster,
            what: what.clone(),
            why: "the image of the machines cannot be built.".to_owned(),
            help: help.iter().cloned().collect(),
            at: None,
        }),
        Publisher::Silent(why) if fetches => {
            plan.note(format!("the publisher of the image does not answer yet: {why}"));
        }
        Publisher::Silent(why) if imports => plan.note(format!(
            "the images are there, but whether they are whole is unknown: their publisher does not answer: {why}"
        )),
        _ => {}
    }
}

/// Images that are where they belong and are not touched.
pub(crate) fn count(ctx: Context<'_>) -> usize {
    let wanted: BTreeSet<&str> = ctx
        .cluster
        .machines
        .iter()
        .map(|machine| machine.image.file.as_str())
        .collect();
    let listed = ctx.observed.images.values().filter_map(Seen::yes).flatten();
    listed.filter(|found| wanted.contains(found.file.as_str())).count()
}

/// Whether a machine of these versions may have been made of this file.
pub(crate) type MayBeMadeOf = fn(&Versions, &str) -> bool;

/// Deletes image files, once per storage.
pub(crate) fn delete(inputs: Inputs<'_>, files: &[String], may_be_made_of: MayBeMadeOf, plan: &mut PlanBuilder) {
    let mut done: Vec<(StorageAt, &String)> = Vec::new();
    for (at, found) in &inputs.observed.images {
        let subject = Subject::Image(at.clone());
        if let Some(why) = found.unknown() {
            let reason = HoldReason::transient(format!("its images could not be listed: {why}"));
            plan.hold(subject.clone(), "remove", reason);
        }
        let has = |file: &&String| {
            found
                .yes()
                .is_some_and(|found| found.iter().any(|image| image.file == **file))
        };
        for file in files.iter().filter(has) {
            let key = (storage_key(inputs.observed, &at.host, &at.storage), file);
            if done.contains(&key) {
                continue;
            }
            done.push(key);
            if let Some(user) = other_user(inputs, file, may_be_made_of) {
                let reason = HoldReason::accepted(format!("{file} is kept: {user}"));
                plan.hold(subject.clone(), "remove", reason);
                continue;
            }
            let may_delete = found
                .yes()
                .into_iter()
                .flatten()
                .any(|image| image.file == *file && image.may_delete);
            if !may_delete {
                let reason = format!(
                    "the token lacks Datastore.Allocate on /storage/{}: pvesm free {}:import/{file}",
                    at.storage, at.storage
                );
                plan.hold(subject.clone(), "remove", reason);
                continue;
            }
            let action = Action::ImageDelete {
                at: at.clone(),
                file: file.clone(),
            };
            plan.step(subject.clone(), action).because("not kept").add();
        }
    }
}

/// A machine of another cluster that was made of this image, or may have been: its next machine is made of it, too.
fn other_user(inputs: Inputs<'_>, file: &str, may_be_made_of: MayBeMadeOf) -> Option<String> {
    let marked = inputs.owned.all.values().filter(|vm| vm.tags.contains(TAG));
    let user = |vm: &Vm| match &vm.config {
        Seen::Unknown(why) => Some(format!("whether VM {} was made of it is unknown: {why}", vm.vmid)),
        Seen::No => None,
        Seen::Yes(config) => {
            let mark = Mark::parse(&config.description).filter(|mark| mark.cluster_id != inputs.desired.id())?;
            let uses = mark.versions.as_ref().is_none_or(|versions| may_be_made_of(versions, file));
            uses.then(|| format!("VM {} of cluster {} may be made of it", vm.vmid, mark.cluster))
        }
    };
    marked.filter_map(user).next()
}

/// A shared storage is the same one from every host.
pub(crate) fn storage_key(observed: &Observed, host: &str, storage: &str) -> StorageAt {
    let found = observed
        .hosts
        .get(host)
        .and_then(|host| host.storages.yes())
        .and_then(|storages| storages.get(storage));
    let shared = found.is_some_and(|storage| storage.shared);
    StorageAt {
        host: if shared { String::new() } else { host.to_owned() },
        storage: storage.to_owned(),
    }
}
