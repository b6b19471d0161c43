//! Feedline's command line.

/// Runs a command; returns the exit code.
pub fn run(arguments: Vec<String>) -> i32 {
    let _ = arguments;
    0
}
