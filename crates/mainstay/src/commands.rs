//! One file per command.

mod access;
mod config;
mod demo;
mod doctor;
mod down;
mod init;
mod pages;
mod plan;
mod secrets;
mod sim;
mod status;
mod trust;
mod up;

pub use doctor::lack;

use crate::args::{Cli, Command};
use crate::output::Output;
use crate::problem::Problem;
use crate::session::Session;
use crate::surroundings::Surroundings;

/// Carries out what was asked for. `Ok` is exit code 0.
pub async fn run(cli: Cli, around: Surroundings, output: Output) -> Result<(), Problem> {
    let file = cli.global.file.clone();
    let open = |around| Session::open(&file, around);
    match cli.command {
        Command::Init(args) => init::run(&file, args, around, output).await,
        Command::Up(args) => up::run(&open(around)?, &args, output).await,
        Command::Plan(args) => plan::run(&open(around)?, &args, output).await,
        Command::Down(args) => down::run(&open(around)?, &args, output).await,
        Command::Status(args) => status::run(&open(around)?, &args, output).await,
        Command::Doctor => doctor::run(&open(around)?, output).await,
        Command::Grant(args) => doctor::grant(&open(around)?, &args, output).await,
        Command::Trust(args) => trust::run(&file, &args, around, output).await,
        Command::Kubeconfig(args) => access::kubeconfig(&open(around)?, &args, output),
        Command::Talosconfig(args) => access::talosconfig(&open(around)?, &args, output),
        Command::Config(args) => config::run(&open(around)?, &args, output),
        Command::Secrets(args) => secrets::run(&open(around)?, &args, output),
        Command::Schema => pages::schema(output),
        Command::Demo(args) => demo::run(&file, &args, output).await,
        Command::Sim(args) => sim::run(&args, output).await,
        Command::Completions { shell } => pages::completions(shell, output),
        Command::Man { out } => pages::man(out.as_deref(), output),
    }
}
