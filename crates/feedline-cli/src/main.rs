//! The program `feedline`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = feedline_cli::run(std::env::args_os());
    ExitCode::from(u8::try_from(code).unwrap_or(2))
}
