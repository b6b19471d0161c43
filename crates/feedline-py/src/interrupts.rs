//! Defers exceptions that signal handlers raise (Ctrl-C, alarms), so that they do not interrupt our
//! own Python code.
//!
//! Python runs signal handlers between any two instructions of the main thread. While an iterator
//! produces a batch, each handler is wrapped: it runs at once, but its exception is kept and raised
//! at a safe point: while the iterator waits, or when its call returns. If an exception is still
//! kept after one second, the next one is raised at once: a person who presses Ctrl-C again does
//! not want to wait for code that hangs.
#![allow(unsafe_code, reason = "the system's action for a signal is read through its C interface")]

use feedline_core::sys::clock;
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyTuple};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pyo3::create_exception!(
    feedline._native,
    Interrupted,
    PyBaseException,
    "Unwinds our own code to the iterator, which then raises the exception of a signal handler."
);

/// One more than the highest signal number.
const SIGNALS: c_int = 65;
/// How long an exception is kept before the next one is raised at once.
const MAX_DEFERRAL: Duration = Duration::from_secs(1);
/// How often the set of handled signals is refreshed, in batches.
const REFRESH_EVERY: u32 = 16;

/// The state of the main thread: no other one runs handlers.
struct Deferral {
    /// The number of nested iterators of the main thread that produce a batch.
    depth: usize,
    /// The wrapped handlers, by signal number.
    wrapped: Vec<(c_int, Py<PyAny>)>,
    /// The exception of a handler that is kept, and since when.
    raised: Option<(PyErr, Instant)>,
    /// Whether a user function runs, in which handlers raise at once.
    is_immediate: bool,
    /// The exception that a handler raised in such a function.
    last: Option<Py<PyBaseException>>,
    /// The signals that had handlers at the last refresh, and the number of batches begun.
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

/// The lock is held only briefly: no Python code runs meanwhile.
fn state() -> MutexGuard<'static, Deferral> {
    DEFERRAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Python functions that are needed for every batch.
struct Functions {
    /// Those of the C module: they do not create enums, and are faster.
    getsignal: Py<PyAny>,
    signal: Py<PyAny>,
    /// The function that replaces each handler.
    wrapper: Py<PyAny>,
    /// The address of the C function with which Python receives signals.
    trampoline: Option<usize>,
}

static FUNCTIONS: PyOnceLock<Functions> = PyOnceLock::new();

fn functions(py: Python<'_>) -> PyResult<&Functions> {
    FUNCTIONS.get_or_try_init(py, || {
        let module = py.import("_signal")?;
        let mut functions = Functions {
            getsignal: module.getattr("getsignal")?.unbind(),
            signal: module.getattr("signal")?.unbind(),
            wrapper: pyo3::wrap_pyfunction!(run_handler, py)?.into_any().unbind(),
            trampoline: None,
        };
        functions.trampoline = find_trampoline(py, &functions)?;
        let in_child =
            [("after_in_child", pyo3::wrap_pyfunction!(count_fork, py)?)].into_py_dict(py)?;
        py.import("os")?.call_method("register_at_fork", (), Some(&in_child))?;
        Ok(functions)
    })
}

/// The system's action for a signal.
fn action(number: c_int) -> Option<libc::sigaction> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: this only reads the action, into memory of the right size.
    let result = unsafe { libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed, and filled by the call if it succeeded.
    (result == 0).then(|| unsafe { action.assume_init() })
}

/// Sets and removes a handler of an unused signal, to see which C function Python installs.
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

/// How often this process and those that it descends from were forked, since `functions` was first called.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Python calls this in a forked child.
#[pyfunction]
fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

thread_local! {
    /// Whether this thread is Python's main thread, as it was after this many forks: in a forked child, it is the
    /// thread that forked.
    static IS_MAIN: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
}

/// Whether this is Python's main thread. To ask Python, or for the process id, takes longer than the rest of what is
/// done for a call of `call_interruptibly`.
fn is_main(py: Python<'_>) -> PyResult<bool> {
    // From here on forks are counted.
    functions(py)?;
    let forks = FORKS.load(Ordering::Relaxed);
    if let Some((asked_after, is_main)) = IS_MAIN.get()
        && asked_after == forks
    {
        return Ok(is_main);
    }
    let threading = py.import("threading")?;
    let is_main =
        threading.call_method0("current_thread")?.is(&threading.call_method0("main_thread")?);
    IS_MAIN.set(Some((forks, is_main)));
    Ok(is_main)
}

impl Functions {
    /// The signals with Python handlers. Asking for all of them takes longer than all the rest, and
    /// programs set their handlers before they iterate, so this happens for the first batch of an
    /// iterator and then every few batches.
    fn handled(&self, py: Python<'_>, is_first: bool) -> PyResult<Vec<c_int>> {
        {
            let mut state = state();
            state.begun = state.begun.wrapping_add(1);
            if !is_first && !state.begun.is_multiple_of(REFRESH_EVERY) {
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

    /// Wraps all Python handlers. Signals that a library handles by itself are not changed.
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
            // List it first: a signal may arrive as soon as the wrapper is set.
            state().wrapped.push((number, handler));
            if let Err(error) = self.set(py, number, &self.wrapper, &before) {
                // A handler has just raised, before any work was begun.
                release(py)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Restores all handlers, except those that were changed meanwhile.
    fn unwrap(&self, py: Python<'_>, wrapped: Vec<(c_int, Py<PyAny>)>) {
        for (number, handler) in wrapped {
            let Some(before) = action(number) else { continue };
            // Setting a handler first runs those of pending signals: their exceptions are kept like
            // any other.
            while self.getsignal.call1(py, (number,)).is_ok_and(|it| it.is(&self.wrapper)) {
                match self.set(py, number, &handler, &before) {
                    Ok(()) => break,
                    Err(error) => keep(py, error),
                }
            }
        }
    }

    /// Sets a handler. The SA_RESTART flag stays as it was.
    fn set(
        &self,
        py: Python<'_>,
        number: c_int,
        handler: &Py<PyAny>,
        before: &libc::sigaction,
    ) -> PyResult<()> {
        self.signal.call1(py, (number, handler))?;
        if before.sa_flags & libc::SA_RESTART != 0 {
            // SAFETY: this is what the system had for this signal a moment ago, including the
            // function.
            unsafe { libc::sigaction(number, before, std::ptr::null_mut()) };
        }
        Ok(())
    }
}

/// Keeps the exception of a handler. If one is kept already, the new one is reported as unraisable.
fn keep(py: Python<'_>, error: PyErr) {
    let unraisable = {
        let mut state = state();
        if state.raised.is_some() {
            Some(error)
        } else {
            state.raised = Some((error, clock::now()));
            None
        }
    };
    if let Some(error) = unraisable {
        error.write_unraisable(py, None);
    }
}

/// Runs the original handler of a signal, and keeps its exception.
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
        let is_late =
            state.raised.as_ref().is_some_and(|(_, since)| since.elapsed() > MAX_DEFERRAL);
        let is_immediate = is_late || (state.is_immediate && state.depth == 0);
        if !is_immediate && state.raised.is_none() {
            state.raised = to_raise.take().map(|error| (error, clock::now()));
        }
        // Keep it only if it is needed: its traceback keeps many objects alive.
        let last = if is_immediate { Some(value) } else { None };
        (std::mem::replace(&mut state.last, last), is_immediate)
    };
    drop(replaced);
    match to_raise {
        Some(error) if is_immediate => Err(error),
        // One exception is kept already: this one adds nothing.
        Some(_) | None => Ok(()),
    }
}

/// While this exists, exceptions of signal handlers are kept. It does nothing outside the main
/// thread.
pub(crate) struct Deferred {
    is_main: bool,
}

impl Deferred {
    /// Begins to keep exceptions, for the first batch of an iterator or a later one. Raises what a
    /// handler raises before that.
    pub(crate) fn begin(py: Python<'_>, is_first: bool) -> PyResult<Deferred> {
        let functions = functions(py)?;
        if !is_main(py)? {
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

    /// Ends; raises the kept exception.
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

/// Restores all handlers. They stay listed meanwhile, since one may be running.
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

/// How often a wait checks for Ctrl-C.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// For waits: runs signal handlers, and raises their exceptions. This must be a safe point.
pub(crate) fn check(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    let is_kept = {
        let state = state();
        state.depth == 1 && state.raised.is_some()
    };
    if is_kept && is_main(py)? {
        return Err(Interrupted::new_err(()));
    }
    Ok(())
}

/// For waits in our Python code: raises the exception of a signal handler. This must be a safe
/// point.
#[pyfunction]
pub(crate) fn check_interrupts(py: Python<'_>) -> PyResult<()> {
    check(py)
}

/// Calls a user function, in which signal handlers raise at once. If that ends the function, the
/// exception is kept and `Interrupted` is raised instead: the function has not failed and must be
/// called again.
#[pyfunction]
#[pyo3(signature = (function, *arguments))]
pub(crate) fn call_interruptibly(
    py: Python<'_>,
    function: &Bound<'_, PyAny>,
    arguments: &Bound<'_, PyTuple>,
) -> PyResult<Py<PyAny>> {
    if state().depth != 1 || !is_main(py)? {
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

/// Restores the handlers in a process that was forked while they were wrapped.
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
