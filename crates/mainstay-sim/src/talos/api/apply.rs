//! ApplyConfiguration: judge a config, say what will happen, make it happen.

use std::sync::Arc;
use std::time::Duration;

use talos_proto::machine::apply_configuration_request::Mode;
use talos_proto::machine::{ApplyConfiguration, ApplyConfigurationRequest, ApplyConfigurationResponse};
use tonic::{Request, Status};

use super::machine::lose_answer;
use super::{Answer, Api};
use crate::talos::boot;
use crate::talos::config::{Config, live_applicable, unified};
use crate::talos::node::{Ending, Node};
use crate::talos::rbac::{Role, Roles};
use crate::talos::resources;
use crate::talos::sequence::{self, Order};
use crate::witness::Deed;

const IN_PROGRESS: &str = "another apply configuration is already in progress";
const REBOOTING: &str =
    "configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot";
const NOT_LIVE: &str = "this config change can't be applied in immediate mode";
const WITHOUT_REBOOT: &str = "Applied configuration without a reboot";
const WITH_REBOOT: &str = "Applied configuration with a reboot";
const STAGED: &str = "Staged configuration to be applied after the next reboot";

/// Only one apply at a time.
struct Turn<'a>(&'a Node);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().applying = false;
    }
}

struct Decision {
    mode: Mode,
    details: String,
}

impl Api {
    pub(super) async fn apply(&self, request: Request<ApplyConfigurationRequest>) -> Answer<ApplyConfigurationResponse> {
        let roles = request.extensions().get::<Roles>().cloned().unwrap_or_default();
        let request = request.into_inner();
        let node = &self.0;
        let configured = node.config().is_some();
        if configured && !roles.has(Role::Admin) {
            return Err(Status::permission_denied("not authorized"));
        }
        let _turn = take_turn(node)?;
        let old_style = node.minor() <= 12 && !configured;
        node.site.tell(node, Deed::Config);
        let config = decode(node, &request.data, old_style)?;
        if configured && !config.is_complete() {
            return Err(Status::invalid_argument(
                "the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine config instead?",
            ));
        }
        let warnings = boot::judge(node, &config).map_err(|text| invalid(text, old_style))?;
        let decision = if configured {
            decide(node, &config, &request)?
        } else {
            decide_in_maintenance(node, &request)?
        };
        let mut answer = ApplyConfiguration {
            metadata: None,
            warnings,
            mode: decision.mode.into(),
            mode_details: decision.details.clone(),
        };
        if old_style {
            (answer.mode, answer.mode_details) = (0, String::new());
        }
        if request.dry_run {
            answer.mode_details = dry_run(node, &config, &decision);
            return Ok(tonic::Response::new(ApplyConfigurationResponse { messages: vec![answer] }));
        }
        // Long enough for a second apply to find this one in progress.
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.carry_out(Arc::new(config), decision.mode, &request).await;
        if self.loses(|faults| &mut faults.lose_apply_answers) {
            return lose_answer(node).await;
        }
        Ok(tonic::Response::new(ApplyConfigurationResponse { messages: vec![answer] }))
    }

    async fn carry_out(&self, config: Arc<Config>, mode: Mode, request: &ApplyConfigurationRequest) {
        let node = &self.0;
        let configured = node.config().is_some();
        if mode != Mode::Try {
            node.lock().tries += 1;
            node.lock().tried_over = None;
        }
        if mode != Mode::Try && config.is_complete() {
            boot::persist(node, &config);
            node.resources.write(
                &resources::MACHINE_CONFIG,
                "persistent",
                resources::machine_config(&config.text),
            );
        }
        match mode {
            Mode::Staged => {}
            Mode::Reboot => {
                node.lock().reboot_by_apply = true;
                sequence::begin(
                    node,
                    Order {
                        force: true,
                        ..Order::reboot(String::new(), Ending::Reboot)
                    },
                );
            }
            Mode::Auto | Mode::NoReboot if configured => boot::activate(node, &config).await,
            Mode::Try if configured => self.try_out(config, request).await,
            // In maintenance an incomplete config is taken and changes nothing; a complete one ends it.
            _ if config.is_complete() => {
                node.lock().config = Some(config);
                node.beat();
                if mode == Mode::Try {
                    revert_in_maintenance(node, timeout(request));
                }
            }
            _ => {}
        }
    }

    /// Active without being stored; the timer brings the old one back.
    async fn try_out(&self, config: Arc<Config>, request: &ApplyConfigurationRequest) {
        let node = &self.0;
        let (old, turn) = {
            let mut state = node.lock();
            state.tries += 1;
            let old = state.tried_over.clone().or_else(|| state.config.clone());
            state.tried_over.clone_from(&old);
            (old, state.tries)
        };
        boot::activate(node, &config).await;
        let (own, wait) = (Arc::clone(node), timeout(request));
        node.spawn(async move {
            tokio::time::sleep(wait).await;
            let latest = own.lock().tries == turn;
            if latest && let Some(old) = old {
                own.lock().tried_over = None;
                boot::activate(&own, &old).await;
            }
        });
    }
}

/// A TRY in maintenance boots the node; at the revert its API stops and never comes back, while the rest goes on.
fn revert_in_maintenance(node: &Arc<Node>, wait: Duration) {
    let own = Arc::clone(node);
    node.spawn(async move {
        tokio::time::sleep(wait).await;
        own.api.close();
    });
}

fn timeout(request: &ApplyConfigurationRequest) -> Duration {
    let asked = request
        .try_mode_timeout
        .as_ref()
        .and_then(|timeout| Duration::try_from(*timeout).ok());
    asked.filter(|timeout| !timeout.is_zero()).unwrap_or(Duration::from_secs(60))
}

fn take_turn(node: &Node) -> Result<Turn<'_>, Status> {
    // The guards came with late patches of 1.12 and 1.13.
    let guarded = match (node.image.version.minor, node.image.version.patch) {
        (..12, _) => false,
        (12, patch) => patch >= 11,
        (13, patch) => patch >= 9,
        _ => true,
    };
    let mut state = node.lock();
    if guarded && state.reboot_by_apply {
        return Err(Status::failed_precondition(REBOOTING));
    }
    if guarded && state.applying {
        return Err(Status::failed_precondition(IN_PROGRESS));
    }
    state.applying = true;
    drop(state);
    Ok(Turn(node))
}

fn decode(node: &Node, data: &[u8], old_style: bool) -> Result<Config, Status> {
    Config::decode(data, node.minor()).map_err(|error| {
        if old_style {
            Status::unknown(format!("failed to parse config: {error}"))
        } else {
            Status::invalid_argument(error.0)
        }
    })
}

fn invalid(text: String, old_style: bool) -> Status {
    Status::invalid_argument(if old_style {
        format!("configuration validation failed: {text}")
    } else {
        text
    })
}

fn decide_in_maintenance(node: &Node, request: &ApplyConfigurationRequest) -> Result<Decision, Status> {
    let refused = |word: &str| {
        Status::unimplemented(format!(
            "apply configuration --mode='{word}' is not supported in maintenance mode"
        ))
    };
    match request.mode() {
        Mode::NoReboot if node.minor() <= 12 => Err(refused("no-reboot")),
        Mode::Staged if node.minor() <= 12 => Err(refused("staged")),
        Mode::Staged => Ok(Decision {
            mode: Mode::Staged,
            details: STAGED.to_owned(),
        }),
        Mode::Try if node.minor() >= 13 => Ok(Decision {
            mode: Mode::Try,
            details: try_details(request),
        }),
        _ => Ok(Decision {
            mode: Mode::NoReboot,
            details: WITHOUT_REBOOT.to_owned(),
        }),
    }
}

fn try_details(request: &ApplyConfigurationRequest) -> String {
    let seconds = timeout(request).as_secs();
    let text = if seconds >= 60 {
        format!("{}m{}s", seconds / 60, seconds % 60)
    } else {
        format!("{seconds}s")
    };
    let dry = if request.dry_run {
        String::new()
    } else {
        format!("\nThe config is applied in 'try' mode and will be automatically reverted back in {text}")
    };
    format!("{WITHOUT_REBOOT}{dry}")
}

fn decide(node: &Node, config: &Config, request: &ApplyConfigurationRequest) -> Result<Decision, Status> {
    let old = node.config();
    let live = old.as_ref().is_some_and(|old| live_applicable(old, config));
    let reason = || {
        format!(
            "{NOT_LIVE}\ndiff:\n{}",
            old.as_ref().map_or_else(String::new, |old| unified(&old.text, &config.text))
        )
    };
    let newest = node.minor() >= 14;
    match request.mode() {
        Mode::Reboot if newest => Err(Status::unimplemented(
            "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead",
        )),
        Mode::Reboot => Ok(Decision {
            mode: Mode::Reboot,
            details: WITH_REBOOT.to_owned(),
        }),
        Mode::Staged => Ok(Decision {
            mode: Mode::Staged,
            details: STAGED.to_owned(),
        }),
        Mode::Auto if live || newest => Ok(Decision {
            mode: Mode::NoReboot,
            details: WITHOUT_REBOOT.to_owned(),
        }),
        Mode::Auto => {
            let details = if request.dry_run {
                WITH_REBOOT.to_owned()
            } else {
                format!("{WITH_REBOOT}: {}", reason())
            };
            Ok(Decision {
                mode: Mode::Reboot,
                details,
            })
        }
        Mode::NoReboot | Mode::Try if !live && !newest => Err(Status::invalid_argument(reason())),
        Mode::NoReboot => Ok(Decision {
            mode: Mode::NoReboot,
            details: WITHOUT_REBOOT.to_owned(),
        }),
        Mode::Try => Ok(Decision {
            mode: Mode::Try,
            details: try_details(request),
        }),
    }
}

fn dry_run(node: &Node, config: &Config, decision: &Decision) -> String {
    let old = node.config().map(|config| config.text.clone()).unwrap_or_default();
    let diff = unified(&old, &config.text);
    let diff = if diff.is_empty() { "No changes.".to_owned() } else { diff };
    format!(
        "Dry run summary:\n{} (skipped in dry-run).\nConfig diff:\n\n{diff}",
        decision.details
    )
}
