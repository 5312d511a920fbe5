//! A machine in maintenance mode, which has no config yet. It answers every client and cannot prove its identity, so few calls are made
//! and no secret is sent before its UUID is checked.

use mainstay_net::{Connector, Env, Fingerprint, Secret, Target, Trust, presented_fingerprint};
use talos_proto::storage::Disk;
use uuid::Uuid;

use crate::apply::{Applied, Mode};
use crate::error::{Call, Class, Error};
use crate::limits::{CONNECT, READ};
use crate::link::Link;
use crate::release::Release;
use crate::resource::{MachineStatus, Resource, Spec, SystemInformation};

/// A machine that answers in maintenance mode: perhaps ours, perhaps a foreign one on its address.
///
/// Only reads are possible. [`Maintenance::prove`] makes it a [`Proven`], which takes a config.
#[derive(Clone)]
pub struct Maintenance {
    link: Link,
    seen: Fingerprint,
}

/// A machine in maintenance mode that has shown to be the one we made.
#[derive(Clone)]
pub struct Proven(Maintenance);

impl Maintenance {
    /// Connects to the machine that answers at `at` and pins it: later calls of this value go to no other machine.
    ///
    /// The certificate is self-signed and new at every boot, so it says nothing about the machine's identity. It is pinned for
    /// the life of this value: the config goes to the machine that was asked for its UUID, or nowhere.
    pub async fn meet(env: &Env, at: &Target) -> Result<Self, Error> {
        let call = Call {
            name: "maintenance",
            at: at.clone(),
        };
        let met = presented_fingerprint(env.dialer.clone(), at, env.wall, CONNECT).await;
        let seen = met.map_err(|dial| Error::NotSent {
            call,
            source: dial.into(),
        })?;
        let connector = Connector::new(env.dialer.clone(), &Trust::Pin(seen), env.wall, CONNECT);
        let connector = connector.map_err(|source| Error::Credentials { at: at.clone(), source })?;
        Ok(Self {
            link: Link::new(at, connector)?,
            seen,
        })
    }

    /// What was pinned, in the form of certificates elsewhere.
    pub fn fingerprint(&self) -> Fingerprint {
        self.seen
    }

    /// The release, where maintenance mode tells it: from 1.13 on.
    pub async fn release(&self) -> Result<Option<Release>, Error> {
        match self.link.release().await {
            Ok(release) => Ok(Some(release)),
            Err(error) if error.class() == Some(Class::Unconfigured) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn status(&self) -> Result<Option<MachineStatus>, Error> {
        Ok(self.get::<MachineStatus>(MachineStatus::ID).await?.map(|found| found.spec))
    }

    pub async fn disks(&self) -> Result<Vec<Disk>, Error> {
        let pending = self.link.call("Disks", READ);
        let answer = pending.answer(self.link.storage().disks(pending.request(()))).await?;
        Ok(pending.only(answer.messages)?.disks)
    }

    pub async fn get<S: Spec>(&self, id: &str) -> Result<Option<Resource<S>>, Error> {
        self.link.get(id).await
    }

    pub async fn list<S: Spec>(&self) -> Result<Vec<Resource<S>>, Error> {
        self.link.list().await
    }

    /// Checks that this is the machine whose firmware was given `expected`. A stranger is told nothing.
    pub async fn prove(self, expected: Uuid) -> Result<Proven, Error> {
        let found = self.get::<SystemInformation>(SystemInformation::ID).await?;
        let seen = found.map(|found| found.spec.uuid).unwrap_or_default();
        if Uuid::parse_str(&seen).is_ok_and(|seen| seen == expected) {
            return Ok(Proven(self));
        }
        let seen = if seen.is_empty() {
            "a machine that does not say which".to_owned()
        } else {
            seen
        };
        Err(Error::Stranger {
            at: self.link.at().clone(),
            expected,
            seen,
        })
    }
}

impl Proven {
    /// The machine as reader.
    pub fn machine(&self) -> &Maintenance {
        &self.0
    }

    /// Sends the whole config. The machine then leaves maintenance mode: this value is of no use any more.
    pub async fn apply(self, config: &Secret<String>) -> Result<Applied, Error> {
        self.0.link.apply(config, Mode::Auto, true).await
    }

    /// Has the machine judge a config, against its disks too, without taking it.
    pub async fn judge(&self, config: &Secret<String>) -> Result<Vec<String>, Error> {
        self.0.link.judge(config).await
    }
}
