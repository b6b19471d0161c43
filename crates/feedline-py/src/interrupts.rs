//! Exceptions that signal handlers raise (Ctrl-C, alarms), kept from striking in the middle of our own Python code.
//!
//! Python runs signal handlers between any two instructions of the main thread. While an iterator makes a batch, each
//! handler is wrapped: it runs at once, but what it raises is kept, and raised where nothing is half done. That is
//! while the iterator waits, or when its call returns. If the first is still kept after a second, another one is raised at
//! once: a person who presses Ctrl-C again does not want to wait for code that hangs.
#![allow(
    unsafe_code,
    reason = "what the system does with a signal is asked through its C interface"
)]

use feedline_core::sys::clock;
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pyo3::create_exception!(
    feedline._native,
    Interrupted,
    PyBaseException,
    "Unwinds our own code to the iterator, which then raises what a signal handler has raised."
);

/// The number behind that of the last signal.
const SIGNALS: c_int = 65;
/// How long an exception is kept before another one is raised at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// For every this many batches it is looked which signals have handlers.
const LOOK_EVERY: u32 = 16;

/// Of the main thread: no other one runs handlers.
struct Deferral {
    /// How many iterators of the main thread are making a batch, one inside the other.
    depth: usize,
    /// The handlers that are wrapped, by the number of their signal.
    wrapped: Vec<(c_int, Py<PyAny>)>,
    /// What a handler has raised, and was kept; since when.
    raised: Option<(PyErr, Instant)>,
    /// Whether a function of the user's is called, in which nothing is kept.
    is_immediate: bool,
    /// What a handler has raised in such a function.
    last: Option<Py<PyBaseException>>,
    /// The signals that had handlers when it was last looked, and how many batches were begun.
    handled: Vec<c_int>,
    begun: u32,
}

static DEFERRAL: Mutex<Deferral> = Mutex::new(Deferral {
    depth: 0,
    wrapped: Vec::new(),
    raised: None,
    is_immediate: false,
    last: None,
    handled: Vec::new(),
    begun: 0,
});

/// Held for moments only: no Python code runs meanwhile.
fn state() -> MutexGuard<'static, Deferral> {
    DEFERRAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Functions of Python that are asked for with every batch.
struct Functions {
    /// Those of the C module: they know nothing of Python's enums, and are faster.
    getsignal: Py<PyAny>,
    signal: Py<PyAny>,
    main_thread: Py<PyAny>,
    current_thread: Py<PyAny>,
    /// What stands in the place of each handler.
    wrapper: Py<PyAny>,
    /// The C function by which Python learns of signals, as an address.
    trampoline: Option<usize>,
}

static FUNCTIONS: PyOnceLock<Functions> = PyOnceLock::new();

fn functions(py: Python<'_>) -> PyResult<&Functions> {
    FUNCTIONS.get_or_try_init(py, || {
        let module = py.import("_signal")?;
        let threading = py.import("threading")?;
        let mut functions = Functions {
            getsignal: module.getattr("getsignal")?.unbind(),
            signal: module.getattr("signal")?.unbind(),
            main_thread: threading.getattr("main_thread")?.unbind(),
            current_thread: threading.getattr("current_thread")?.unbind(),
            wrapper: pyo3::wrap_pyfunction!(run_handler, py)?.into_any().unbind(),
            trampoline: None,
        };
        functions.trampoline = find_trampoline(py, &functions)?;
        Ok(functions)
    })
}

/// What the system does when a signal comes.
fn action(number: c_int) -> Option<libc::sigaction> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks, and the answer has room.
    let result = unsafe { libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed, and filled by the call where it succeeded.
    (result == 0).then(|| unsafe { action.assume_init() })
}

/// Sets a handler and takes it away again, of a signal that nobody uses, to see which function the system calls then.
fn find_trampoline(py: Python<'_>, functions: &Functions) -> PyResult<Option<usize>> {
    for number in (1..SIGNALS).rev() {
        let Some(before) = action(number) else { continue };
        if before.sa_sigaction != libc::SIG_DFL {
            continue;
        }
        if functions.signal.call1(py, (number, &functions.wrapper)).is_err() {
            continue;
        }
        let during = action(number);
        functions.signal.call1(py, (number, libc::SIG_DFL))?;
        return Ok(during.map(|during| during.sa_sigaction));
    }
    Ok(None)
}

impl Functions {
    fn is_main(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.current_thread.call0(py)?.is(&self.main_thread.call0(py)?))
    }

    /// The signals that have handlers of Python. To ask for all of them takes longer than all the rest, and programs set
    /// their handlers before they iterate: it is done for the first batch of an iterator, and then now and then.
    fn handled(&self, py: Python<'_>, is_first: bool) -> PyResult<Vec<c_int>> {
        {
            let mut state = state();
            state.begun = state.begun.wrapping_add(1);
            if !is_first && !state.begun.is_multiple_of(LOOK_EVERY) {
                return Ok(state.handled.clone());
            }
        }
        let mut handled = Vec::new();
        for number in 1..SIGNALS {
            if self.getsignal.call1(py, (number,))?.bind(py).is_callable() {
                handled.push(number);
            }
        }
        state().handled.clone_from(&handled);
        Ok(handled)
    }

    /// Wraps all handlers of Python. Signals that some library handles by itself stay as they are.
    fn wrap(&self, py: Python<'_>, is_first: bool) -> PyResult<()> {
        for number in self.handled(py, is_first)? {
            let handler = self.getsignal.call1(py, (number,))?;
            if handler.is_none(py) || handler.is(&self.wrapper) || !handler.bind(py).is_callable() {
                continue;
            }
            let Some(before) = action(number) else { continue };
            if Some(before.sa_sigaction) != self.trampoline {
                continue;
            }
            // Listed first: a signal may come as soon as the wrapper is there.
            state().wrapped.push((number, handler));
            if let Err(error) = self.set(py, number, &self.wrapper, &before) {
                // A handler has just raised: nothing was begun yet.
                release(py)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives all signals their own handlers back, but for those whose handler was changed meanwhile.
    fn unwrap(&self, py: Python<'_>, wrapped: Vec<(c_int, Py<PyAny>)>) {
        for (number, handler) in wrapped {
            let Some(before) = action(number) else { continue };
            // Setting a handler first runs those of signals that have come: what they raise is kept as any other.
            while self.getsignal.call1(py, (number,)).is_ok_and(|it| it.is(&self.wrapper)) {
                if let Err(error) = self.set(py, number, &handler, &before) {
                    keep(py, error);
                }
            }
        }
    }

    /// Sets a handler. What the system is told beside it (whether calls are begun again) stays as it was.
    fn set(
        &self,
        py: Python<'_>,
        number: c_int,
        handler: &Py<PyAny>,
        before: &libc::sigaction,
    ) -> PyResult<()> {
        self.signal.call1(py, (number, handler))?;
        if before.sa_flags & libc::SA_RESTART != 0 {
            // SAFETY: what the system had for this signal a moment ago, the function included.
            unsafe { libc::sigaction(number, before, std::ptr::null_mut()) };
        }
        Ok(())
    }
}

/// Keeps what a handler has raised; what is kept already stays, and the other is shown as errors in finalizers are.
fn keep(py: Python<'_>, error: PyErr) {
    let refused = {
        let mut state = state();
        if state.raised.is_some() {
            Some(error)
        } else {
            state.raised = Some((error, clock::now()));
            None
        }
    };
    if let Some(error) = refused {
        error.write_unraisable(py, None);
    }
}

/// Runs the handler that was set for a signal, and keeps what it raises.
#[pyfunction]
fn run_handler(py: Python<'_>, number: c_int, frame: Py<PyAny>) -> PyResult<()> {
    let handler = {
        let state = state();
        state.wrapped.iter().find(|(known, _)| *known == number).map(|(_, it)| it.clone_ref(py))
    };
    let Some(handler) = handler else { return Ok(()) };
    let Err(error) = handler.call1(py, (number, frame)) else { return Ok(()) };
    let value = error.value(py).clone().unbind();
    let mut to_raise = Some(error);
    let (replaced, is_immediate) = {
        let mut state = state();
        let is_late = state.raised.as_ref().is_some_and(|(_, since)| since.elapsed() > PATIENCE);
        let is_immediate = is_late || (state.is_immediate && state.depth == 0);
        if !is_immediate && state.raised.is_none() {
            state.raised = to_raise.take().map(|error| (error, clock::now()));
        }
        // Not where it is of no use: it would keep alive all that its traceback knows.
        let last = if is_immediate { Some(value) } else { None };
        (std::mem::replace(&mut state.last, last), is_immediate)
    };
    drop(replaced);
    match to_raise {
        Some(error) if is_immediate => Err(error),
        // One exception is kept already: this one says nothing more.
        Some(_) | None => Ok(()),
    }
}

/// While this exists, what signal handlers raise is kept. Nothing happens in other threads than the main one.
pub(crate) struct Deferred {
    is_main: bool,
}

impl Deferred {
    /// Begins, with the first batch of an iterator or a later one; raises what a handler raises before that.
    pub(crate) fn begin(py: Python<'_>, is_first: bool) -> PyResult<Deferred> {
        let functions = functions(py)?;
        if !functions.is_main(py)? {
            return Ok(Deferred { is_main: false });
        }
        let is_outermost = {
            let state = state();
            state.depth == 0 && !state.is_immediate
        };
        if is_outermost {
            functions.wrap(py, is_first)?;
        }
        state().depth += 1;
        Ok(Deferred { is_main: true })
    }

    /// Ends; raises what was kept.
    pub(crate) fn end(self, py: Python<'_>) -> PyResult<()> {
        if !self.is_main {
            return Ok(());
        }
        let (is_outermost, is_last) = {
            let mut state = state();
            state.depth = state.depth.saturating_sub(1);
            (state.depth == 0, state.depth == 0 && !state.is_immediate)
        };
        if !is_outermost {
            return Ok(());
        }
        if is_last {
            release(py)?;
        }
        let (raised, last) = {
            let mut state = state();
            (state.raised.take(), state.last.take())
        };
        drop(last);
        raised.map_or(Ok(()), |(error, _)| Err(error))
    }
}

/// Gives all signals their own handlers back. They stay listed meanwhile, since one may be running.
fn release(py: Python<'_>) -> PyResult<()> {
    let functions = functions(py)?;
    let wrapped = {
        let state = state();
        state.wrapped.iter().map(|(number, it)| (*number, it.clone_ref(py))).collect()
    };
    functions.unwrap(py, wrapped);
    let listed = std::mem::take(&mut state().wrapped);
    drop(listed);
    Ok(())
}

/// For waits: lets signal handlers run, and raises what they raise. Here nothing is half done.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    let is_kept = {
        let state = state();
        state.depth == 1 && state.raised.is_some()
    };
    if is_kept && functions(py)?.is_main(py)? {
        return Err(Interrupted::new_err(()));
    }
    Ok(())
}

/// For waits of our Python code: raises what a signal handler has raised. Nothing may be half done.
#[pyfunction]
pub(crate) fn check_interrupts(py: Python<'_>) -> PyResult<()> {
    check(py)
}

/// Calls a function of the user's, in which signal handlers raise at once. If that ends it, what they raised is kept,
/// and `Interrupted` is raised instead: the function has not failed, it is to be called again.
#[pyfunction]
#[pyo3(signature = (function, *arguments))]
pub(crate) fn call_interruptibly(
    py: Python<'_>,
    function: &Bound<'_, PyAny>,
    arguments: &Bound<'_, PyTuple>,
) -> PyResult<Py<PyAny>> {
    if state().depth != 1 || !functions(py)?.is_main(py)? {
        return function.call1(arguments).map(Bound::unbind);
    }
    check(py)?;
    {
        let mut state = state();
        (state.depth, state.is_immediate) = (0, true);
    }
    let result = function.call1(arguments).map(Bound::unbind);
    let last = {
        let mut state = state();
        (state.depth, state.is_immediate) = (1, false);
        state.last.take()
    };
    match result {
        Err(error) if last.is_some_and(|last| last.is(error.value(py))) => {
            state().raised = Some((error, clock::now()));
            Err(Interrupted::new_err(()))
        }
        Ok(_) | Err(_) => result,
    }
}

/// In a process that was forked while handlers were wrapped: they are what they were.
#[pyfunction]
pub(crate) fn restore_handlers(py: Python<'_>) -> PyResult<()> {
    {
        let mut state = state();
        (state.depth, state.is_immediate) = (0, false);
    }
    release(py)?;
    let kept = {
        let mut state = state();
        (state.raised.take(), state.last.take())
    };
    drop(kept);
    Ok(())
}
