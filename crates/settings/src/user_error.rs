//! The one kind of error that a user sees: a line that names the thing and the mend, and an exit status.

use std::fmt;

/// Exit status for bad input: nothing has run.
pub const EXIT_BAD_INPUT: u8 = 2;
/// Exit status for a program that was found and can't be executed, as a shell's.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit status for a program that was not found, as a shell's.
pub const EXIT_NOT_FOUND: u8 = 127;

/// Why the command does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserError {
    /// Exit status of the command.
    pub status: u8,
    line: String,
}

impl UserError {
    /// Bad input: `line` names the thing and the mend.
    pub fn bad_input(line: impl fmt::Display) -> Self {
        Self::with_status(EXIT_BAD_INPUT, line)
    }

    /// Refuses a program, with the exit status that a shell would return.
    pub fn with_status(status: u8, line: impl fmt::Display) -> Self {
        // A name with a newline in it must not make two lines of one.
        let line = line.to_string().replace(['\n', '\r'], " ");
        Self { status, line }
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for UserError {}
