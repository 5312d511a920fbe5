//! Questions on the terminal. Answers that are secrets are not shown while they are typed.

use std::io::{BufRead, Write};

use mainstay_net::Secret;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::oneshot;

use crate::error::CommandError;
use crate::output::Output;
use crate::signals::Signals;

/// How often a question is asked again after an answer that cannot be used.
const ATTEMPTS: u32 = 3;

/// Asks a person. Signals are caught, so that a hidden answer never leaves the terminal without echo.
pub struct Questions {
    signals: Signals,
    can_ask: bool,
}

impl Questions {
    pub fn new(output: Output) -> Self {
        Self {
            signals: Signals::listen(),
            can_ask: output.can_ask(),
        }
    }

    /// A line of text; an empty one is the default. `flag` says how to answer without a terminal.
    pub async fn text(&mut self, question: &str, default: Option<&str>, flag: &str) -> Result<String, CommandError> {
        self.need_terminal(question, flag)?;
        let shown = default.map_or_else(|| format!("{question}:"), |default| format!("{question} [{default}]:"));
        let answer = self.line(&shown).await?;
        match (answer.is_empty(), default) {
            (false, _) => Ok(answer),
            (true, Some(default)) => Ok(default.to_owned()),
            (true, None) => Err(CommandError::usage(format!("no answer to: {question}")).help("nothing was changed")),
        }
    }

    /// A line of text that `read` understands; the answer to a wrong one is why, and the question again.
    pub async fn choice<T>(
        &mut self,
        question: &str,
        default: &str,
        flag: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, CommandError> {
        for _ in 0..ATTEMPTS {
            let answer = self.text(question, Some(default), flag).await?;
            match read(&answer) {
                Ok(value) => return Ok(value),
                Err(why) => drop(writeln!(std::io::stderr(), "  {why}")),
            }
        }
        Err(CommandError::usage(format!("no usable answer to: {question}")).help("nothing was changed"))
    }

    pub async fn secret(&mut self, question: &str, flag: &str) -> Result<Secret<String>, CommandError> {
        self.need_terminal(question, flag)?;
        let hidden = Hidden::start();
        let answer = self.line(&format!("{question} (not shown):")).await;
        drop(hidden);
        // The line break of the answer was not shown either.
        let _ = writeln!(std::io::stderr());
        answer.map(Secret::new)
    }

    /// `true` for y or yes.
    pub async fn confirm(&mut self, question: &str, flag: &str) -> Result<bool, CommandError> {
        self.need_terminal(question, flag)?;
        let answer = self.line(&format!("{question} [y/N]")).await?;
        Ok(matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    pub fn can_ask(&self) -> bool {
        self.can_ask
    }

    fn need_terminal(&self, question: &str, flag: &str) -> Result<(), CommandError> {
        if self.can_ask {
            return Ok(());
        }
        Err(
            CommandError::refused(format!("cannot ask \"{question}\": stdin or stderr is not a terminal"))
                .help(flag)
                .help("nothing was changed"),
        )
    }

    /// Read on a thread of its own, since only that leaves signals to be handled meanwhile.
    async fn line(&mut self, shown: &str) -> Result<String, CommandError> {
        let mut err = std::io::stderr();
        let _ = write!(err, "{shown} ").and_then(|()| err.flush());
        let (sender, answer) = oneshot::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = std::io::stdin().lock().read_line(&mut line);
            let _ = sender.send(read.ok().filter(|length| *length > 0).map(|_| line));
        });
        let stopped = || CommandError::refused("the question was not answered").help("nothing more was changed");
        tokio::select! {
            biased;
            () = self.signals.next() => Err(stopped()),
            line = answer => match line {
                Ok(Some(line)) => Ok(line.trim().to_owned()),
                _ => Err(stopped()),
            },
        }
    }
}

/// The terminal without echo, until this is dropped.
struct Hidden(Option<Termios>);

impl Hidden {
    fn start() -> Self {
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut silent = before.clone();
            silent.local_modes.remove(LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &silent);
        }
        Self(before)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}
