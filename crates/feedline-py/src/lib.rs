//! Feedline for Python: conversions only. Every wait releases the GIL and can be ended by Ctrl-C.

mod arrays;
mod batch_engine;
mod batch_iterator;
mod call_engine;
mod dlpack;
mod errors;
mod faults;
mod instructions;
mod interrupts;
mod lists;
mod loader;
mod memory;
mod processes;
mod records;
mod connection;

use pyo3::prelude::*;

use loader::{Epoch, Loader, Source};

/// The native part of Feedline. Use the package `feedline`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::batch_engine::{Action, BadSample, BatchEngine, Fill, Verdict, keyed_bits};
    #[pymodule_export]
    use super::batch_iterator::BatchIterator;
    #[pymodule_export]
    use super::call_engine::CallEngine;
    #[pymodule_export]
    use super::connection::{Walk, WorkerConnection, die_with_parent, go_first};
    #[pymodule_export]
    use super::dlpack::{ArrayMemory, Tensor};
    #[pymodule_export]
    use super::faults::{Breaker, Ledger, Policy};
    #[pymodule_export]
    use super::instructions::{Deliver, End, Finish, Forget, Part, Stop};
    #[pymodule_export]
    use super::interrupts::{call_interruptibly, check_interrupts, restore_handlers};
    #[pymodule_export]
    use super::lists::BytesList;
    #[pymodule_export]
    use super::memory::{Lease, OriginalBuffer, ReceivedBuffer, Slot, Span};
    #[pymodule_export]
    use super::processes::{Processes, TaskBuffers, TaskResult};
    #[pymodule_export]
    use super::records::example_schema;
    #[pymodule_export]
    use super::{Epoch, Loader, Source};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("ForkReturned", module.py().get_type::<connection::ForkReturned>())?;
        module.add("CutOff", module.py().get_type::<connection::CutOff>())?;
        module.add("Interrupted", module.py().get_type::<interrupts::Interrupted>())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    /// Checks the settings of a pipeline over a source.
    #[pyfunction]
    fn check(source: &Source, config: &str) -> PyResult<()> {
        source.check(config)
    }

    /// Raises if a path is not a local one.
    #[pyfunction]
    fn check_local(path: &str) -> PyResult<()> {
        if std::path::Path::new(path).exists() {
            return Ok(());
        }
        feedline_core::source::paths::check_local(path).map_err(errors::raise)
    }

    /// Checks the settings of worker processes.
    #[pyfunction]
    fn check_workers(config: &str) -> PyResult<()> {
        feedline_core::config::Workers::parse(config).map(drop).map_err(errors::raise)
    }

    /// The kinds of errors: name, code, example, hint.
    #[pyfunction]
    fn kinds() -> Vec<(&'static str, &'static str, &'static str, &'static str)> {
        errors::kinds()
    }

    /// The samples listed in a quarantine file or a folder of them.
    #[pyfunction]
    fn excluded(py: Python<'_>, path: std::path::PathBuf) -> PyResult<Bound<'_, PyAny>> {
        faults::excluded(py, path)
    }

    /// The calls listed in a quarantine file or a folder of them.
    #[pyfunction]
    fn excluded_calls(py: Python<'_>, path: std::path::PathBuf) -> PyResult<Bound<'_, PyAny>> {
        faults::excluded_calls(py, path)
    }

    /// The lines of a quarantine file or a folder of them, the first one of each sample.
    #[pyfunction]
    fn quarantined(py: Python<'_>, path: std::path::PathBuf) -> PyResult<Bound<'_, PyAny>> {
        faults::quarantined(py, path)
    }

    /// Runs the command line; returns the exit code.
    #[pyfunction]
    fn run(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> i32 {
        py.detach(|| feedline_cli::run(arguments))
    }
}
