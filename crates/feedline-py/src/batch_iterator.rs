//! The base class of all iterators over batches: a batch belongs to the epoch until the call that
//! delivers it returns, and one thread at a time produces a batch.

use feedline_core::sys::process::OwnerProcess;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::interrupts::{self, Deferred, Interrupted};

/// How often a thread that waits for another checks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// An iterator whose subclass defines `_produce()`, which returns a batch, and `_confirm`: None, or
/// a function to call when the batch is delivered. That function must be native, so that no signal
/// handler can raise in it.
#[pyclass(module = "feedline._native", subclass, frozen)]
pub(crate) struct BatchIterator {
    state: Mutex<State>,
    is_free: Condvar,
    home: OwnerProcess,
}

struct State {
    /// What was produced and not delivered yet: a batch with its function, or an exception.
    held: Option<PyResult<(Py<PyAny>, Py<PyAny>)>>,
    /// The thread that produces now.
    producer: Option<ThreadId>,
    /// Whether the first batch was begun.
    has_begun: bool,
}

impl BatchIterator {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread produces.
    fn take_turn(&self, py: Python<'_>) -> PyResult<()> {
        let me = thread::current().id();
        {
            // Nearly always: then the GIL need not be given away.
            let mut state = self.state();
            if state.producer.is_none() {
                state.producer = Some(me);
                return Ok(());
            }
        }
        loop {
            let is_mine = py.detach(|| {
                let mut state = self.state();
                if state.producer.is_some_and(|producer| producer != me) {
                    let waited = self.is_free.wait_timeout(state, SIGNAL_CHECK_INTERVAL);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                match state.producer {
                    Some(producer) if producer == me => None,
                    Some(_) => Some(false),
                    None => {
                        state.producer = Some(me);
                        Some(true)
                    }
                }
            });
            match is_mine {
                Some(true) => return Ok(()),
                Some(false) => interrupts::check(py)?,
                None => {
                    let message =
                        "this iterator is already producing a batch: next() was called inside it";
                    return Err(PyRuntimeError::new_err(message));
                }
            }
        }
    }

    fn end_turn(&self) {
        self.state().producer = None;
        self.is_free.notify_one();
    }

    fn produce(&self, slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let is_first = !std::mem::replace(&mut self.state().has_begun, true);
        let deferred = Deferred::begin(py, is_first)?;
        let produced = slf.call_method0("_produce").and_then(|batch| {
            let confirm = slf.getattr("_confirm")?;
            Ok((batch.unbind(), confirm.unbind()))
        });
        let is_interrupted =
            produced.as_ref().is_err_and(|error| error.is_instance_of::<Interrupted>(py));
        if !is_interrupted {
            self.state().held = Some(produced);
        }
        deferred.end(py)
    }

    fn deliver(&self, slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        while self.state().held.is_none() {
            self.produce(slf)?;
        }
        // After this check, no signal handler runs before the caller has the batch.
        py.check_signals()?;
        let held = self.state().held.take();
        let (batch, confirm) = held.expect("produced above, and it is this thread's turn")?;
        if !confirm.is_none(py) {
            confirm.call0(py)?;
        }
        Ok(batch)
    }
}

#[pymethods]
impl BatchIterator {
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(
        _arguments: &Bound<'_, PyTuple>,
        _keywords: Option<&Bound<'_, PyDict>>,
    ) -> BatchIterator {
        BatchIterator {
            state: Mutex::new(State { held: None, producer: None, has_begun: false }),
            is_free: Condvar::new(),
            home: OwnerProcess::here(),
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let this = slf.get();
        if this.home.is_forked() {
            // The lock may be held by a thread that does not exist here. `_produce` raises the
            // error.
            return slf.call_method0("_produce").map(Bound::unbind);
        }
        this.take_turn(slf.py())?;
        let delivered = this.deliver(slf);
        this.end_turn();
        delivered
    }
}
