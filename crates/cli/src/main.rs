//! The command `forebay`. All of it is in the library.

fn main() -> std::process::ExitCode {
    forebay_cli::main().into()
}
