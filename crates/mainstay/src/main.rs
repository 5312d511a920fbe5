//! mainstay: one YAML file and a Proxmox VE API become a production Kubernetes cluster.

mod args;
mod commands;
mod error;
mod exit;
mod output;
mod process_env;
mod run;
mod run_log;
mod session;
mod signals;
mod text;
mod view;
mod wire;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::output::Output;
use crate::process_env::ProcessEnv;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let process_env = ProcessEnv::read();
    let output = Output::new(&cli.global, &process_env);
    let file = cli.global.file.display().to_string();
    // One thread, as in every simulated run: what was tested is what runs.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            output.status(format!("error: cannot start the async runtime: {error}"));
            return ExitCode::from(exit::BUG);
        }
    };
    match runtime.block_on(commands::run(cli, process_env, output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            view::error::show(output, &error, &file);
            ExitCode::from(exit::code(&error))
        }
    }
}
