//! Schemas, completions and manual pages.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::error::CommandError;
use crate::output::Output;
use crate::wire;

pub fn schema(events: bool, output: Output) -> Result<(), CommandError> {
    if events {
        output.print_raw(wire::SCHEMA);
    } else {
        output.print_raw(mainstay_spec::schema::schema_text());
    }
    Ok(())
}

pub fn completions(shell: clap_complete::Shell, output: Output) -> Result<(), CommandError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mainstay", &mut text);
    output.print_raw(String::from_utf8_lossy(&text));
    Ok(())
}

pub fn man(out: Option<&Path>, output: Output) -> Result<(), CommandError> {
    let problem = |error: std::io::Error| CommandError::new("cannot write the manual pages").caused_by(error);
    if let Some(folder) = out {
        std::fs::create_dir_all(folder).map_err(problem)?;
        clap_mangen::generate_to(Cli::command(), folder).map_err(problem)?;
        output.status(format!("wrote {}", folder.display()));
        return Ok(());
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(problem)?;
    output.print_raw(String::from_utf8_lossy(&text));
    Ok(())
}
