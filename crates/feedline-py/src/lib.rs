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
mod pool_events;
mod packed;
mod position;
mod processes;
mod records;
mod sample_seeds;
mod tuner;
mod connection;

use pyo3::prelude::*;

use loader::{Epoch, Loader, NoBatch, Source};

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
    use super::connection::{
        Request, RequestKind, ResultKind, Walk, WorkerActivity, WorkerConnection, die_with_parent,
        go_first,
    };
    #[pymodule_export]
    use super::dlpack::{ArrayMemory, Tensor};
    #[pymodule_export]
    use super::errors::ErrorKind;
    #[pymodule_export]
    use super::faults::{Breaker, CoreEvent, Ledger, Policy, Rule, SourceAccess};
    #[pymodule_export]
    use super::instructions::{Deliver, End, Finish, Forget, Part, Stop};
    #[pymodule_export]
    use super::interrupts::{call_interruptibly, check_interrupts, restore_handlers};
    #[pymodule_export]
    use super::lists::BytesList;
    #[pymodule_export]
    use super::memory::{Lease, OriginalBuffer, ReceivedBuffer, Slot, Span};
    #[pymodule_export]
    use super::packed::{PackedIterator, PackedList, PackedMemory, pack_items, pack_pairs};
    #[pymodule_export]
    use super::pool_events::{
        Activity, CapacityChanged, GaveUp, PoolFailed, StartZygote, WorkerDied, WorkerNote,
        WorkerRenewed, WorkerStalled, ZygoteLate,
    };
    #[pymodule_export]
    use super::processes::{Presence, Processes, TaskBuffers, TaskResult};
    #[pymodule_export]
    use super::records::example_schema;
    #[pymodule_export]
    use super::sample_seeds::SampleSeeds;
    #[pymodule_export]
    use super::tuner::{Tuner, TuningChange};
    #[pymodule_export]
    use super::{Epoch, Loader, NoBatch, Source};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("ForkReturned", module.py().get_type::<connection::ForkReturned>())?;
        module.add("Disconnected", module.py().get_type::<connection::Disconnected>())?;
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

    /// The number of threads or processes that can compute at once on this machine.
    #[pyfunction]
    fn processors() -> usize {
        feedline_core::sys::limits::processors()
    }

    /// What this machine allows this process, as JSON.
    #[pyfunction]
    fn machine(py: Python<'_>) -> String {
        py.detach(|| {
            let machine = feedline_core::sys::limits::Machine::here();
            let usable = serde_json::json!({
                "processors": feedline_core::sys::limits::processors(),
                "memory": machine.memory.usable().map(|(bytes, _)| bytes),
                "tasks": machine.tasks.room().map(|room| room.left),
            });
            serde_json::json!({"machine": machine, "usable": usable}).to_string()
        })
    }

    /// What `feedline doctor` says about paths or a message, about a process, or about this machine: text and JSON.
    /// `around` is JSON with what only Python knows.
    #[pyfunction]
    fn diagnose(
        py: Python<'_>,
        subject: Vec<std::path::PathBuf>,
        pid: Option<u32>,
        around: &str,
    ) -> PyResult<(String, String)> {
        let around = serde_json::from_str(around).unwrap_or_default();
        let report = py.detach(|| feedline_cli::doctor::report(&subject, pid, &around));
        let report = report.map_err(errors::raise)?;
        Ok((report.text, report.json.to_string()))
    }

    /// Gives back what the loaders of this process hold without need: descriptors, warm memory, cached samples.
    #[pyfunction]
    fn give_back_idle(py: Python<'_>) {
        py.detach(feedline_core::loader::give_back_idle);
    }

    /// Raises the soft limit of open files to the hard limit. Returns the limit before and after, or None if
    /// it did not change.
    #[pyfunction]
    fn raise_open_files() -> Option<(u64, u64)> {
        let raised = feedline_core::sys::limits::raise_open_files();
        raised.is_raised().then_some((raised.from, raised.to))
    }

    /// Checks the settings of worker processes.
    #[pyfunction]
    fn check_workers(config: &str) -> PyResult<()> {
        feedline_core::config::Workers::parse(config).map(drop).map_err(errors::raise)
    }

    /// The memory that this process may still use, in bytes.
    #[pyfunction]
    fn available_memory() -> u64 {
        feedline_core::sys::limits::available_memory()
    }

    /// All bytes that this process may ever use: those of the machine, of its memory cgroups or of its address space.
    #[pyfunction]
    fn allowed_memory() -> u64 {
        feedline_core::sys::limits::allowed_memory()
    }

    /// All kinds of errors.
    #[pyfunction]
    fn error_kinds() -> Vec<ErrorKind> {
        errors::error_kinds()
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
