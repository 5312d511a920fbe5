//! Images: on every storage from which a machine is filled, once, whole.

use std::collections::BTreeMap;

use crate::cluster::Course;
use crate::observed::{ImageFile, Observed, Seen, StorageAt};
use crate::plan::{Draft, Hold};
use crate::step::{Action, ImageSource, StepId, Subject};

/// Images that this plan has looked after already, by storage; a shared one once for all hosts.
#[derive(Debug, Default)]
pub(crate) struct Images {
    schematic: Option<StepId>,
    /// The step that brings the image, none where it is already, or why it cannot be told.
    steps: BTreeMap<StorageAt, Result<Option<StepId>, String>>,
}

impl Course<'_, '_> {
    /// The image for a machine on `host`, and the step that must end first.
    pub fn image(&mut self, host: &str, storage: &str) -> Result<(ImageSource, Option<StepId>), String> {
        let source = ImageSource {
            storage: storage.to_owned(),
            file: self.wish.image.file.clone(),
        };
        let key = once_for_all(self.survey.observed, host, storage);
        if let Some(known) = self.images.steps.get(&key) {
            return known.clone().map(|step| (source, step));
        }
        let at = StorageAt {
            host: host.to_owned(),
            storage: storage.to_owned(),
        };
        let step = self.look(&at);
        self.images.steps.insert(key, step.clone());
        step.map(|step| (source, step))
    }

    fn look(&mut self, at: &StorageAt) -> Result<Option<StepId>, String> {
        match self.survey.observed.images.get(at) {
            Some(Seen::Yes(files)) => Ok(self.fetch(at, files)),
            Some(Seen::No) => Ok(self.fetch(at, &[])),
            Some(Seen::Unknown(why)) => Err(format!("the images on {at} could not be listed: {why}")),
            None => Err(format!("the images on {at} were not listed")),
        }
    }

    /// What brings the image to a storage that holds `files`, if it is not there as it should be.
    fn fetch(&mut self, at: &StorageAt, files: &[ImageFile]) -> Option<StepId> {
        let image = &self.wish.image;
        let there = files.iter().find(|there| there.file == image.file);
        if there.is_some_and(|there| image.size.is_none_or(|size| size == there.size)) {
            return None;
        }
        let subject = Subject::Image(at.clone());
        let discarded = there.map(|there| {
            let action = Action::ImageDiscard {
                at: at.clone(),
                file: there.file.clone(),
            };
            let why = format!(
                "{} of {} bytes: a download that broke off",
                there.size,
                image.size.unwrap_or_default()
            );
            self.draft.step(subject.clone(), action).because(why).add()
        });
        let registered = self.register();
        let action = Action::ImageFetch {
            at: at.clone(),
            image: image.clone(),
        };
        Some(
            self.draft
                .step(subject, action)
                .because("missing there")
                .needs([registered])
                .needs(discarded)
                .add(),
        )
    }

    fn register(&mut self) -> StepId {
        if let Some(step) = self.images.schematic {
            return step;
        }
        let action = Action::SchematicRegister {
            schematic: self.wish.image.schematic.clone(),
        };
        let step = self
            .draft
            .step(Subject::Schematic, action)
            .because("the factory builds what it was told about")
            .add();
        self.images.schematic = Some(step);
        step
    }
}

/// Images that are where they belong and are not touched.
pub(crate) fn count(observed: &Observed, file: &str) -> usize {
    observed
        .images
        .values()
        .filter(|files| files.yes().is_some_and(|files| files.iter().any(|there| there.file == file)))
        .count()
}

/// Takes images away, once per storage.
pub(crate) fn delete(observed: &Observed, files: &[String], draft: &mut Draft) {
    let mut done: Vec<(StorageAt, &String)> = Vec::new();
    for (at, there) in &observed.images {
        if let Some(why) = there.unknown() {
            draft.hold(
                Subject::Image(at.clone()),
                "remove",
                Hold::for_now(format!("its images could not be listed: {why}")),
            );
        }
        for file in files.iter().filter(|file| {
            there
                .yes()
                .is_some_and(|there| there.iter().any(|image| image.file == **file))
        }) {
            let once = (once_for_all(observed, &at.host, &at.storage), file);
            if !done.contains(&once) {
                done.push(once);
                let action = Action::ImageDelete {
                    at: at.clone(),
                    file: file.clone(),
                };
                draft.step(Subject::Image(at.clone()), action).because("not kept").add();
            }
        }
    }
}

/// A shared storage is the same one from every host.
pub(crate) fn once_for_all(observed: &Observed, host: &str, storage: &str) -> StorageAt {
    let there = observed
        .hosts
        .get(host)
        .and_then(|host| host.storages.yes())
        .and_then(|storages| storages.get(storage));
    let shared = there.is_some_and(|storage| storage.shared);
    StorageAt {
        host: if shared { String::new() } else { host.to_owned() },
        storage: storage.to_owned(),
    }
}
