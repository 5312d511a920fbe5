//! One file per command.

mod access;
mod addresses;
mod adopt;
mod ask;
mod config;
mod demo;
mod doctor;
mod down;
mod init;
mod logs;
mod pages;
mod plan;
mod secrets;
mod setup;
mod sim;
mod sshconfig;
mod status;
mod talosconfig;
mod trust;
mod up;

use crate::args::{Cli, Command, SecretsArgs};
use crate::error::CommandError;
use crate::output::Output;
use crate::process_env::ProcessEnv;
use crate::session::Session;

/// Carries out what was asked for. `Ok` is exit code 0.
pub async fn run(cli: Cli, process_env: ProcessEnv, output: Output) -> Result<(), CommandError> {
    let file = cli.global.file.clone();
    let open = |process_env| Session::open(&file, process_env);
    let offline = |process_env| Session::open_offline(&file, process_env);
    if output.json {
        refuse_json(&cli.command)?;
    }
    match cli.command {
        Command::Init(args) => init::run(&file, args, process_env, output).await,
        Command::Setup(args) => setup::run(&file, &args, process_env, output).await,
        Command::Up(args) => up::run(&open(process_env)?, &args, output).await,
        Command::Plan(args) => plan::run(&open(process_env)?, &args, output).await,
        Command::Down(args) => down::run(&open(process_env)?, &args, output).await,
        Command::Adopt(args) => adopt::run(&open(process_env)?, &args, output).await,
        Command::Status(args) => status::run(&open(process_env)?, &args, output).await,
        Command::Doctor => doctor::run(&open(process_env)?, output).await,
        Command::Grant(args) => doctor::grant(&open(process_env)?, &args, output).await,
        Command::Trust(args) => trust::run(&file, &args, process_env, output).await,
        Command::Kubeconfig(args) => access::kubeconfig(&offline(process_env)?, &args, output),
        Command::Talosconfig(args) => talosconfig::run(&offline(process_env)?, &args, output),
        Command::Sshconfig(args) => sshconfig::run(&open(process_env)?, &args, output).await,
        Command::Config(args) => config::run(&offline(process_env)?, &args, output),
        Command::Secrets(args) => secrets::run(&offline(process_env)?, &args, output),
        Command::Logs(args) => logs::run(&offline(process_env)?, &args, output).await,
        Command::Schema { events } => pages::schema(events, output),
        Command::Demo(args) => demo::run(&file, &args, output).await,
        Command::Sim(args) => sim::run(&args, output).await,
        Command::Completions { shell } => pages::completions(shell, output),
        Command::Man { markdown: true, .. } => pages::markdown(output),
        Command::Man { out, .. } => pages::man(out.as_deref(), output),
    }
}

/// `--json` is for every command. One whose result has a form of its own says so instead of printing that form.
fn refuse_json(command: &Command) -> Result<(), CommandError> {
    let (name, form) = match command {
        Command::Init(_) => ("init", "writes a file"),
        Command::Setup(_) => ("setup", "asks questions and writes files"),
        Command::Kubeconfig(_) => ("kubeconfig", "prints a kubeconfig"),
        Command::Talosconfig(_) => ("talosconfig", "prints a talosconfig"),
        Command::Sshconfig(_) => ("sshconfig", "prints what ssh needs"),
        Command::Config(_) => ("config", "prints machine configs"),
        Command::Secrets(SecretsArgs::Import { .. }) => ("secrets import", "writes a file"),
        Command::Completions { .. } => ("completions", "prints a script for a shell"),
        Command::Man { .. } => ("man", "prints a manual page"),
        Command::Up(_)
        | Command::Plan(_)
        | Command::Down(_)
        | Command::Adopt(_)
        | Command::Status(_)
        | Command::Doctor
        | Command::Grant(_)
        | Command::Trust(_)
        | Command::Secrets(SecretsArgs::Show)
        | Command::Logs(_)
        | Command::Schema { .. }
        | Command::Demo(_)
        | Command::Sim(_) => return Ok(()),
    };
    Err(CommandError::usage(format!("`{name}` has no JSON output"))
        .why(format!("it {form}"))
        .help("run it without --json"))
}
