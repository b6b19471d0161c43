//! A worker's end of the connection as a Python object.
#![allow(unsafe_code, reason = "descriptors and buffers come from Python")]

use feedline_core::sys::process::{self, OwnerProcess};
use feedline_core::sys::socket::Socket;
use feedline_core::worker::blackbox::Activity;
use feedline_core::worker::connection::{self, Received, Sent};
use feedline_core::worker::wire::FrameKind;
use pyo3::exceptions::{PyBaseException, PyBrokenPipeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{ReceivedBuffer, Slot, slices, views};

/// What the trainer requests of a worker.
#[pyclass(module = "feedline._native", frozen, eq, eq_int)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Run a task.
    Task,
    /// Begin a new epoch.
    Resume,
    /// End.
    Stop,
    /// Load one sample of a task alone.
    Trial,
}

/// A request of the trainer. `offset` is that of the sample to load alone.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct Request {
    kind: RequestKind,
    task: u64,
    offset: Option<u64>,
    body: Py<PyBytes>,
    buffers: Py<PyList>,
}

/// What a worker answers.
#[pyclass(module = "feedline._native", frozen, eq, eq_int, from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultKind {
    Ready,
    StartFailed,
    Result,
    Raised,
    Exhausted,
    Survived,
    Faulty,
}

impl ResultKind {
    fn frame_kind(self) -> FrameKind {
        match self {
            ResultKind::Ready => FrameKind::Ready,
            ResultKind::StartFailed => FrameKind::StartFailed,
            ResultKind::Result => FrameKind::Result,
            ResultKind::Raised => FrameKind::Raised,
            ResultKind::Exhausted => FrameKind::Exhausted,
            ResultKind::Survived => FrameKind::Survived,
            ResultKind::Faulty => FrameKind::Faulty,
        }
    }
}

/// What a worker is doing.
#[pyclass(module = "feedline._native", frozen, eq, eq_int, from_py_object)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerActivity {
    Starting,
    Waiting,
    Fetching,
    Collating,
    Answering,
    Pausing,
}

impl WorkerActivity {
    fn activity(self) -> Activity {
        match self {
            WorkerActivity::Starting => Activity::Starting,
            WorkerActivity::Waiting => Activity::Waiting,
            WorkerActivity::Fetching => Activity::Fetching,
            WorkerActivity::Collating => Activity::Collating,
            WorkerActivity::Answering => Activity::Answering,
            WorkerActivity::Pausing => Activity::Pausing,
        }
    }
}

pyo3::create_exception!(
    feedline._native,
    ForkReturned,
    PyBaseException,
    "Ends a process that was forked inside a worker and returned from the user's code: it is not the worker."
);

pyo3::create_exception!(
    feedline._native,
    Disconnected,
    PyBaseException,
    "Ends a worker whose connection to the trainer was closed by code in it."
);

/// A worker's connection: it receives tasks and sends results. It does not work in a child that
/// user code has forked: socket and arena belong to the worker.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct WorkerConnection {
    connection: Mutex<connection::WorkerConnection>,
    home: OwnerProcess,
}

impl WorkerConnection {
    /// Raises in a forked child, where the lock may be held by a thread that does not exist.
    fn lock(&self) -> PyResult<MutexGuard<'_, connection::WorkerConnection>> {
        if self.home.is_forked() {
            return Err(ForkReturned::new_err(()));
        }
        Ok(self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Like `lock`, after a piece of user code: raises if that has closed the connection.
    fn lock_after_code(&self) -> PyResult<MutexGuard<'_, connection::WorkerConnection>> {
        let mut connection = self.lock()?;
        require_connected(connection.check_connection())?;
        Ok(connection)
    }

    fn sent(&self, py: Python<'_>, mut sent: Sent) -> PyResult<()> {
        loop {
            match sent {
                Sent::All => return Ok(()),
                Sent::Ended => return Err(PyBrokenPipeError::new_err("the trainer is gone")),
                Sent::Disconnected => return Err(Disconnected::new_err(())),
                Sent::Interrupted => py.check_signals()?,
            }
            sent = py.detach(|| Ok::<_, PyErr>(self.lock()?.resume_send()))?;
        }
    }
}

#[pymethods]
impl WorkerConnection {
    /// Takes over the descriptors that the zygote passed: socket, arena, boxes, and maybe the
    /// inbox.
    #[new]
    #[pyo3(signature = (worker_id, generation, worker_count, descriptors, inbox=None))]
    fn new(
        worker_id: u32,
        generation: u32,
        worker_count: u32,
        descriptors: (RawFd, RawFd, RawFd),
        inbox: Option<RawFd>,
    ) -> PyResult<WorkerConnection> {
        let (socket, arena, boxes) = descriptors;
        // SAFETY: the zygote received them for this worker, and no other code closes them.
        let (socket, arena, boxes, inbox) = unsafe {
            (
                Socket::take(socket)?,
                OwnedFd::from_raw_fd(arena),
                OwnedFd::from_raw_fd(boxes),
                inbox.map(|inbox| OwnedFd::from_raw_fd(inbox)),
            )
        };
        let connection = connection::WorkerConnection::open(
            worker_id,
            generation,
            worker_count,
            socket,
            arena,
            boxes,
            inbox,
        )?;
        Ok(WorkerConnection { connection: Mutex::new(connection), home: OwnerProcess::here() })
    }

    /// Whether this process is not the worker, but a child forked in it.
    #[getter]
    fn is_forked(&self) -> bool {
        self.home.is_forked()
    }

    /// Waits for a request. Returns None when the trainer is gone.
    fn receive(&self, py: Python<'_>) -> PyResult<Option<Request>> {
        loop {
            let received = py.detach(|| Ok::<_, PyErr>(self.lock()?.receive()))?;
            let request = match received {
                Received::Task(request) => request,
                Received::Ended => return Ok(None),
                Received::Disconnected => return Err(Disconnected::new_err(())),
                Received::Interrupted => {
                    py.check_signals()?;
                    continue;
                }
            };
            let kind = match request.kind {
                FrameKind::Task => RequestKind::Task,
                FrameKind::Resume => RequestKind::Resume,
                FrameKind::Stop => RequestKind::Stop,
                FrameKind::Trial => RequestKind::Trial,
                FrameKind::Ready
                | FrameKind::StartFailed
                | FrameKind::Result
                | FrameKind::Faulty
                | FrameKind::Raised
                | FrameKind::Exhausted
                | FrameKind::Survived
                | FrameKind::Note => return Ok(None),
            };
            let buffers = PyList::empty(py);
            for buffer in request.buffers {
                buffers.append(Bound::new(py, ReceivedBuffer::new(buffer))?)?;
            }
            return Ok(Some(Request {
                kind,
                task: request.task,
                offset: request.offset,
                body: PyBytes::new(py, &request.body).unbind(),
                buffers: buffers.unbind(),
            }));
        }
    }

    /// Memory of the arena, or None if it has no room. A forked child gets None: it builds batches
    /// in its own memory.
    fn take(&self, py: Python<'_>, bytes: usize) -> Option<Slot> {
        py.detach(|| self.lock().ok()?.take(bytes)).map(Slot)
    }

    /// Chooses locations for the buffers of a result. Release the batch, then call `send`.
    fn pack(
        &self,
        py: Python<'_>,
        kind: ResultKind,
        task: u64,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let views = views(&buffers)?;
        // SAFETY: the views are held, and the worker's own thread runs here and changes no batch.
        let slices = unsafe { slices(&views) }?;
        py.detach(|| {
            self.lock()?.pack(kind.frame_kind(), task, &slices);
            Ok(())
        })
    }

    /// Sends the packed result.
    fn send(&self, py: Python<'_>) -> PyResult<()> {
        let sent = py.detach(|| Ok::<_, PyErr>(self.lock()?.send()))?;
        self.sent(py, sent)
    }

    /// Notes which task begins.
    fn begin(&self, task: u64) -> PyResult<()> {
        self.lock()?.begin(task);
        Ok(())
    }

    /// Notes that the samples of the batch are loaded. `samples` is their number, if it differs
    /// from the number of samples begun.
    #[pyo3(signature = (samples=None))]
    fn made(&self, samples: Option<u32>) -> PyResult<()> {
        let mut connection = self.lock_after_code()?;
        connection.finish_samples();
        if let Some(samples) = samples {
            connection.set_samples(samples);
        }
        Ok(())
    }

    /// Sends the trainer a note at once, which is no result.
    fn notify(&self, py: Python<'_>, text: &[u8]) -> PyResult<()> {
        let sent = py.detach(|| Ok::<_, PyErr>(self.lock()?.notify(text)))?;
        self.sent(py, sent)
    }

    /// Notes what the worker is doing.
    fn enter(&self, activity: WorkerActivity) -> PyResult<()> {
        self.lock_after_code()?.enter(activity.activity());
        Ok(())
    }

    /// Notes resident memory and open descriptors, at most every 100 ms.
    fn weigh(&self) -> PyResult<()> {
        self.lock()?.note_usage();
        Ok(())
    }

    /// An iterator over a list that notes each offset in the black box.
    fn walk(slf: Bound<'_, Self>, list: Bound<'_, PyList>) -> Walk {
        Walk { connection: slf.unbind(), list: list.unbind(), offset: AtomicUsize::new(0) }
    }

    /// Notes which sample of the batch the worker begins.
    fn reach(&self, offset: u64) -> PyResult<()> {
        require_connected(self.lock()?.begin_sample(offset))
    }

    /// Notes that the worker loads all samples of the batch at once.
    fn reach_all(&self) -> PyResult<()> {
        self.lock()?.begin_all_samples();
        Ok(())
    }

    /// Writes what a replacement needs to continue after a task.
    fn journal(&self, task: u64, bytes: &[u8]) -> PyResult<bool> {
        Ok(self.lock()?.write_journal(task, bytes))
    }

    /// The state when a task began, from the journal of this worker or its predecessor.
    fn recall<'py>(&self, py: Python<'py>, task: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.lock()?.read_journal(task).map(|bytes| PyBytes::new(py, &bytes)))
    }
}

fn require_connected(is_connected: bool) -> PyResult<()> {
    if is_connected { Ok(()) } else { Err(Disconnected::new_err(())) }
}

/// Iterates over the samples of a batch.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Walk {
    connection: Py<WorkerConnection>,
    list: Py<PyList>,
    offset: AtomicUsize,
}

#[pymethods]
impl Walk {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let offset = self.offset.fetch_add(1, Ordering::Relaxed);
        let Ok(item) = self.list.bind(py).get_item(offset) else { return Ok(None) };
        require_connected(self.connection.get().lock()?.begin_sample(offset as u64))?;
        Ok(Some(item))
    }

    /// The offset of the item returned last.
    #[getter]
    fn offset(&self) -> usize {
        self.offset.load(Ordering::Relaxed).saturating_sub(1)
    }
}

/// Makes the kernel kill this process when its parent ends. Returns False if the parent has ended
/// already.
#[pyfunction]
pub(crate) fn die_with_parent(parent: u32) -> bool {
    process::die_with_parent(parent)
}

/// Makes this process the first choice of the OOM killer.
#[pyfunction]
pub(crate) fn go_first() {
    process::go_first();
}
