//! mainstay: one YAML file and a Proxmox VE API become a production Kubernetes cluster.

mod args;
mod commands;
mod interrupts;
mod output;
mod problem;
mod session;
mod surroundings;
mod view;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::output::Output;
use crate::surroundings::Surroundings;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let around = Surroundings::read();
    let output = Output::new(&cli.global, around.no_color, around.ci);
    let file = cli.global.file.display().to_string();
    // One thread, as in every simulated run: what was tested is what runs.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            output.tell(format!("error: no runtime: {error}"));
            return ExitCode::from(70);
        }
    };
    match runtime.block_on(commands::run(cli, around, output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            view::problem::tell(output, &problem, &file);
            ExitCode::from(problem.exit_code())
        }
    }
}
