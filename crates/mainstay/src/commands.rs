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

use crate::args::{Cli, Command};
use crate::error::CommandError;
use crate::output::Output;
use crate::process_env::ProcessEnv;
use crate::session::Session;

/// Carries out what was asked for. `Ok` is exit code 0.
pub async fn run(cli: Cli, process_env: ProcessEnv, output: Output) -> Result<(), CommandError> {
    let file = cli.global.file.clone();
    let open = |process_env| Session::open(&file, process_env);
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
        Command::Kubeconfig(args) => access::kubeconfig(&open(process_env)?, &args, output),
        Command::Talosconfig(args) => talosconfig::run(&open(process_env)?, &args, output),
        Command::Sshconfig(args) => sshconfig::run(&open(process_env)?, &args, output).await,
        Command::Config(args) => config::run(&open(process_env)?, &args, output),
        Command::Secrets(args) => secrets::run(&open(process_env)?, &args, output),
        Command::Logs(args) => logs::run(&open(process_env)?, &args, output).await,
        Command::Schema { events } => pages::schema(events, output),
        Command::Demo(args) => demo::run(&file, &args, output).await,
        Command::Sim(args) => sim::run(&args, output).await,
        Command::Completions { shell } => pages::completions(shell, output),
        Command::Man { markdown: true, .. } => pages::markdown(output),
        Command::Man { out, .. } => pages::man(out.as_deref(), output),
    }
}
