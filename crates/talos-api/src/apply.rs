//! Sending a machine config.

use std::time::Duration;

use mainstay_net::Secret;
use talos_proto::machine::apply_configuration_request::Mode as Wire;
use talos_proto::machine::{ApplyConfiguration, ApplyConfigurationRequest};

use crate::error::{Error, Outcome};
use crate::limits::APPLY;
use crate::link::Link;
use crate::redact::without_secrets;

/// How a config is to take effect. There is no "always reboot": 1.14 refuses it, and a reboot is a call of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At once where it can be, with a reboot where not. From 1.14 on never with a reboot.
    Auto,
    /// At once, or not at all.
    NoReboot,
    /// At the next reboot.
    Staged,
    /// At once, and taken back after this time. Only for configured machines: in maintenance mode it leaves a half-configured one.
    TryFor(Duration),
}

impl Mode {
    fn wire(self) -> Wire {
        match self {
            Self::Auto => Wire::Auto,
            Self::NoReboot => Wire::NoReboot,
            Self::Staged => Wire::Staged,
            Self::TryFor(_) => Wire::Try,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub enum Applied {
    /// The machine took it.
    Taken { effect: Effect, warnings: Vec<String> },
    /// The answer was lost, as a reboot, a new address or a restarting API loses it. Look at the machine before sending anything again.
    Maybe(Error),
}

/// When the config takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does already.
    Now,
    /// The machine reboots for it.
    Reboots,
    /// At the next reboot.
    Staged,
    /// For a while.
    Tried,
    /// Maintenance mode up to 1.12 does not say: the machine goes on booting, or installs and reboots.
    Unsaid,
}

impl Link {
    pub(crate) async fn apply(&self, config: &Secret<String>, mode: Mode, in_maintenance: bool) -> Result<Applied, Error> {
        let pending = self.call("ApplyConfiguration", APPLY);
        let request = request(config, mode, false);
        let sent = async {
            let answer = pending
                .answer(self.machine().apply_configuration(pending.request(request)))
                .await?;
            pending.only(answer.messages)
        };
        match sent.await {
            Ok(message) => Ok(taken(message, in_maintenance)),
            Err(error) if error.outcome() == Outcome::Unknown => Ok(Applied::Maybe(error)),
            Err(error) => Err(error),
        }
    }

    /// Has the machine judge a config without taking it.
    pub(crate) async fn judge(&self, config: &Secret<String>) -> Result<Vec<String>, Error> {
        let pending = self.call("ApplyConfiguration", APPLY);
        let request = request(config, Mode::Auto, true);
        let answer = pending
            .answer(self.machine().apply_configuration(pending.request(request)))
            .await?;
        Ok(shown(pending.only(answer.messages)?.warnings))
    }
}

fn request(config: &Secret<String>, mode: Mode, dry_run: bool) -> ApplyConfigurationRequest {
    let try_mode_timeout = match mode {
        Mode::TryFor(time) => prost_types::Duration::try_from(time).ok(),
        _ => None,
    };
    ApplyConfigurationRequest {
        data: config.expose().as_bytes().to_vec(),
        mode: mode.wire().into(),
        dry_run,
        try_mode_timeout,
    }
}

fn taken(message: ApplyConfiguration, in_maintenance: bool) -> Applied {
    let effect = match message.mode() {
        // Zero is also what a machine says that says nothing.
        Wire::Reboot if in_maintenance && message.mode_details.is_empty() => Effect::Unsaid,
        Wire::Reboot => Effect::Reboots,
        Wire::Auto | Wire::NoReboot => Effect::Now,
        Wire::Staged => Effect::Staged,
        Wire::Try => Effect::Tried,
    };
    Applied::Taken {
        effect,
        warnings: shown(message.warnings),
    }
}

fn shown(warnings: Vec<String>) -> Vec<String> {
    warnings.iter().map(|warning| without_secrets(warning)).collect()
}
