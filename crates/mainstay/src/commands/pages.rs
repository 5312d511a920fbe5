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

/// Every command on one page, made from the same declarations as `--help`.
pub fn markdown(output: Output) -> Result<(), CommandError> {
    let mut program = Cli::command();
    program.build();
    let mut text = String::from(
        "# Commands\n\nEvery command and option, as `mainstay --help` tells them (`mainstay man --markdown` prints this page). What the exit codes mean is \
         in [a page of their own](exit-codes.md).\n\n## Options of every command\n\n",
    );
    text.push_str(&options(&program, false));
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        section(&mut text, &format!("mainstay {}", command.get_name()), command);
    }
    output.print_raw(text);
    Ok(())
}

fn section(text: &mut String, name: &str, command: &clap::Command) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut usage = command.clone().render_usage().to_string();
    usage = usage.trim_start_matches("Usage: ").trim().to_owned();
    text.push_str(&format!("\n## `{name}`\n\n{about}.\n\n    {usage}\n"));
    let options = options(command, true);
    if !options.is_empty() {
        text.push_str(&format!("\n{options}"));
    }
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        section(text, &format!("{name} {}", inner.get_name()), inner);
    }
}

/// A table of the command's arguments: its own, or those that every command has.
fn options(command: &clap::Command, own: bool) -> String {
    let listed = command.get_arguments().filter(|argument| {
        let is_builtin = ["help", "version"].contains(&argument.get_id().as_str());
        !argument.is_hide_set() && argument.is_global_set() != own && !is_builtin
    });
    let row = |argument: &clap::Arg| {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let defaults: Vec<String> = argument
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy().into_owned())
            .collect();
        let is_flag = !argument.get_action().takes_values();
        let default = if defaults.is_empty() || is_flag {
            String::new()
        } else {
            format!(" (default: `{}`)", defaults.join(" "))
        };
        let name = argument.to_string().replace('|', "\\|");
        let short = argument.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
        format!("| {short}`{name}` | {help}{default} |\n")
    };
    let rows: String = listed.map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    format!("| option | what it does |\n|---|---|\n{rows}")
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
