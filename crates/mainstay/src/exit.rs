//! Exit codes. The only place that knows them.

use crate::error::CommandError;
use crate::wire::ErrorKind;

/// `plan --check` found something to do.
pub const WORK_FOUND: u8 = 3;
/// The page that was just shown says that something is wrong: `status`, `doctor`.
pub const UNHEALTHY: u8 = FAILED;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const REFUSED: u8 = 4;
pub const HELD: u8 = 5;
/// `EX_SOFTWARE` of sysexits.h.
pub const BUG: u8 = 70;
/// 128 + SIGINT, as shells report it.
const INTERRUPTED: u8 = 130;

/// The list for `--help`.
pub const HELP: &str = "Exit codes: 0 done or settled, 1 failed, 2 wrong arguments or cluster.yaml, 3 `plan --check` found work, 4 refused, 5 held, \
     70 a bug of mainstay, 130 interrupted.\nTry it without hardware: mainstay demo";

/// Several errors: the largest code wins, so that a refusal is not hidden by a failure.
pub fn code(error: &CommandError) -> u8 {
    if let CommandError::ExitOnly(code) = error {
        return *code;
    }
    let errors = error.events("");
    errors.iter().map(|error| of_kind(error.kind)).max().unwrap_or(FAILED)
}

fn of_kind(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Usage | ErrorKind::Spec => USAGE,
        ErrorKind::Refused | ErrorKind::Declined => REFUSED,
        ErrorKind::Held => HELD,
        ErrorKind::Bug => BUG,
        ErrorKind::Interrupted => INTERRUPTED,
        ErrorKind::Denied
        | ErrorKind::Conflict
        | ErrorKind::Unreachable
        | ErrorKind::Failed
        | ErrorKind::Unsettled
        | ErrorKind::Changed => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_is_in_the_help_text() {
        for code in [0, FAILED, USAGE, WORK_FOUND, REFUSED, HELD, BUG, INTERRUPTED] {
            let named = HELP.split([' ', '\n', ':']).any(|word| word == code.to_string());
            assert!(named, "{code} is missing in: {HELP}");
        }
    }
}
