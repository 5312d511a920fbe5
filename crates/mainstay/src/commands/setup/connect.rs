//! The connection for `setup`: endpoint, certificate and the administrator's login. Nothing of the login is kept.

use std::time::Duration;

use mainstay_net::{Env, Fingerprint, Secret, Target, Trust, presented_fingerprint};
use pve_api::{Class, Client, ClientOptions, Endpoint, Login, cluster};

use super::super::ask::Questions;
use crate::args::SetupArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::process_env::{ProcessEnv, read_secret};

const LOOK: Duration = Duration::from_secs(10);

/// The fingerprint that is pinned from now on: the given one, or the presented one after a yes.
pub async fn pin(
    env: &Env,
    target: &Target,
    args: &SetupArgs,
    ask: &mut Questions,
    output: Output,
) -> Result<Fingerprint, CommandError> {
    if let Some(given) = &args.fingerprint {
        return given
            .parse()
            .map_err(|_| CommandError::usage(format!("`{given}` is not a SHA-256 fingerprint")));
    }
    let seen = presented_fingerprint(env.dialer.clone(), target, env.wall, LOOK).await;
    let seen = seen.map_err(|error| CommandError::new(format!("{target} presents no certificate")).caused_by(error))?;
    output.status(format!("{target} presents the certificate\n  {seen}"));
    output.status(format!("compare it on {}: pvenode cert info", target.host));
    // The password goes to this server: `--yes` alone does not say that it is the right one.
    let flag = "pass --fingerprint with the one that `pvenode cert info` shows";
    if ask.confirm("Is this the right certificate?", flag).await? {
        return Ok(seen);
    }
    Err(CommandError::refused("the certificate was not confirmed").help("nothing was sent, nothing was changed"))
}

/// Logs in as an administrator. A code is asked for only if the user has a second factor.
pub async fn log_in(
    env: &Env,
    target: &Target,
    trust: &Trust,
    args: &SetupArgs,
    process_env: &ProcessEnv,
    ask: &mut Questions,
) -> Result<Client, CommandError> {
    let user = match args.user.clone().or_else(|| process_env.username.clone()) {
        Some(user) => user,
        None => ask.text("Administrator", Some("root@pam"), "pass --user").await?,
    };
    let password = match (&args.password_file, process_env.password()?) {
        (Some(file), _) => read_secret(file)?,
        (None, Some(password)) => password,
        (None, None) => {
            ask.secret(&format!("Password of {user}"), "pass --password-file; - is stdin")
                .await?
        }
    };
    let connect = |code: Option<Secret<String>>| {
        let endpoint = Endpoint {
            target: target.clone(),
            trust: trust.clone(),
            host: None,
        };
        let login = Login::Password {
            user: user.clone(),
            password: password.clone(),
            code,
        };
        Client::new(env, vec![endpoint], login, ClientOptions::default())
            .map_err(|error| CommandError::new("the certificate settings are not valid").caused_by(error))
    };
    let first = connect(None)?;
    match first.call(cluster::version()).await {
        Ok(_) => return Ok(first),
        Err(error) if error.class() == Some(&Class::SecondFactor) => {}
        Err(error) => {
            return Err(not_accepted(
                error,
                &format!("the password of {user}"),
                "check user, realm and password",
            ));
        }
    }
    let code = match (&args.totp_file, process_env.otp()?) {
        (Some(file), _) => read_secret(file)?,
        (None, Some(code)) => code,
        (None, None) => {
            ask.secret(
                &format!("Code of the second factor of {user}"),
                "pass --totp-file, or set PROXMOX_VE_OTP",
            )
            .await?
        }
    };
    let second = connect(Some(code))?;
    match second.call(cluster::version()).await {
        Ok(_) => Ok(second),
        Err(error) => Err(not_accepted(
            error,
            &format!("the code of {user}"),
            "a code is valid for about a minute and for one login: wait for the next one",
        )),
    }
}

fn not_accepted(error: pve_api::Error, what: &str, help: &str) -> CommandError {
    if error.class() == Some(&Class::Unauthenticated) {
        return CommandError::new(format!("Proxmox VE does not accept {what}"))
            .help(help)
            .help("nothing was changed");
    }
    error.into()
}
