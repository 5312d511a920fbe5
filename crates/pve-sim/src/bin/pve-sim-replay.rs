//! Replays a folder of recorded scenarios against the simulator.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use pve_sim::conformance::{Folder, Outcome, play};

struct Options {
    dir: PathBuf,
    only: Vec<String>,
    verbose: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        dir: PathBuf::new(),
        only: Vec::new(),
        verbose: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--dir" => options.dir = words.next().ok_or("--dir needs a folder")?.into(),
            "--only" => options.only.push(words.next().ok_or("--only needs a name")?),
            "-v" => options.verbose = true,
            other => return Err(format!("unknown option {other}")),
        }
    }
    if options.dir.as_os_str().is_empty() {
        Err("--dir DIR is required".into())
    } else {
        Ok(options)
    }
}

fn tell(out: &mut impl Write, outcome: &Outcome, verbose: bool) -> io::Result<()> {
    let different = outcome.different.len();
    let mark = if different == 0 { "ok  " } else { "DIFF" };
    writeln!(
        out,
        "{mark} {}: {} equal, {different} different",
        outcome.name,
        outcome.stable - different
    )?;
    for step in &outcome.different {
        writeln!(out, "   step {} {}", step.step, step.call)?;
        let shown = if verbose { step.why.len() } else { 4 };
        for line in step.why.iter().take(shown) {
            writeln!(out, "      {line}")?;
        }
        if step.why.len() > shown {
            writeln!(out, "      … {} more", step.why.len() - shown)?;
        }
    }
    Ok(())
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let options = options()?;
    let folder = Folder::read(&options.dir)?;
    let mut out = io::stdout().lock();
    let (mut stable, mut equal) = (0, 0);
    for scenario in &folder.scenarios {
        let name = scenario["name"].as_str().unwrap_or_default();
        if !options.only.is_empty() && !options.only.iter().any(|o| o == name) {
            continue;
        }
        let outcome = play(&folder, scenario);
        stable += outcome.stable;
        equal += outcome.stable - outcome.different.len();
        tell(&mut out, &outcome, options.verbose)?;
    }
    writeln!(out, "{equal} of {stable} stable steps equal")?;
    Ok(equal == stable)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::from(2)
        }
    }
}
