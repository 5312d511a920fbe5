//! What the program says about itself: schema, completions, manual pages.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::output::Output;
use crate::problem::Problem;

pub fn schema(output: Output) -> Result<(), Problem> {
    output.raw(mainstay_spec::schema::schema_text());
    Ok(())
}

pub fn completions(shell: clap_complete::Shell, output: Output) -> Result<(), Problem> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mainstay", &mut text);
    output.raw(String::from_utf8_lossy(&text));
    Ok(())
}

pub fn man(out: Option<&Path>, output: Output) -> Result<(), Problem> {
    let problem = |error: std::io::Error| Problem::plain("the manual pages cannot be written").caused_by(error);
    if let Some(folder) = out {
        std::fs::create_dir_all(folder).map_err(problem)?;
        clap_mangen::generate_to(Cli::command(), folder).map_err(problem)?;
        output.tell(format!("wrote {}", folder.display()));
        return Ok(());
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(problem)?;
    output.raw(String::from_utf8_lossy(&text));
    Ok(())
}
