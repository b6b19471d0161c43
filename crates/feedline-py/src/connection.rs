//! A worker's end as a Python object.
#![allow(unsafe_code, reason = "descriptors and buffers come from Python")]

use feedline_core::sys::process::{self, OwnerProcess};
use feedline_core::sys::socket::Socket;
use feedline_core::worker::blackbox::Activity;
use feedline_core::worker::connection::{self, Received, Sent};
use feedline_core::worker::wire::FrameKind;
use pyo3::exceptions::{PyBaseException, PyBrokenPipeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{ReceivedBuffer, Slot, slices, views};

/// What the trainer has said.
type ReceivedTask<'py> = (u8, u64, Option<u64>, Bound<'py, PyBytes>, Bound<'py, PyList>);

/// What a worker may answer, in the order of its numbers in Python.
const ANSWERS: [FrameKind; 7] = [
    FrameKind::Ready,
    FrameKind::StartFailed,
    FrameKind::Result,
    FrameKind::Raised,
    FrameKind::Exhausted,
    FrameKind::Survived,
    FrameKind::Faulty,
];

/// What a worker may be at, in the order of its numbers in Python.
const DOINGS: [Activity; 6] = [
    Activity::Starting,
    Activity::Waiting,
    Activity::Fetching,
    Activity::Collating,
    Activity::Answering,
    Activity::Pausing,
];

pyo3::create_exception!(
    feedline._native,
    ForkReturned,
    PyBaseException,
    "Ends a process that was forked inside a worker and came back from the user's code: it is not the worker."
);

pyo3::create_exception!(
    feedline._native,
    CutOff,
    PyBaseException,
    "Ends a worker whose connection to the trainer was closed by code in it."
);

/// One worker process: tasks come in, answers go out. In a child that the user's code has forked, nothing of it works:
/// socket and arena are the worker's.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct WorkerConnection {
    connection: Mutex<connection::WorkerConnection>,
    home: OwnerProcess,
}

impl WorkerConnection {
    /// Refused in a forked child. There the lock may be held by a thread that does not exist.
    fn lock(&self) -> PyResult<MutexGuard<'_, connection::WorkerConnection>> {
        if self.home.is_left() {
            return Err(ForkReturned::new_err(()));
        }
        Ok(self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As above, after a piece of the user's code: refused if that has closed the connection.
    fn lock_after_code(&self) -> PyResult<MutexGuard<'_, connection::WorkerConnection>> {
        let mut connection = self.lock()?;
        reached(connection.check_connection())?;
        Ok(connection)
    }

    fn sent(&self, py: Python<'_>, mut sent: Sent) -> PyResult<()> {
        loop {
            match sent {
                Sent::All => return Ok(()),
                Sent::Ended => return Err(PyBrokenPipeError::new_err("the trainer is gone")),
                Sent::CutOff => return Err(CutOff::new_err(())),
                Sent::Interrupted => py.check_signals()?,
            }
            sent = py.detach(|| Ok::<_, PyErr>(self.lock()?.go_on()))?;
        }
    }
}

#[pymethods]
impl WorkerConnection {
    /// Takes over the descriptors that the zygote passed on: socket, arena, boxes, and perhaps the inbox.
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
        // SAFETY: the zygote received them for this worker, and nobody else closes them.
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

    /// Whether this process is not the worker, but a child that was forked in it.
    #[getter]
    fn is_left(&self) -> bool {
        self.home.is_left()
    }

    /// Waits for an order: (0 task, 1 resume, 2 stop or 3 trial; task; the position of the one sample that is
    /// tried; body; the buffers beside it). None when the trainer is gone.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<ReceivedTask<'py>>> {
        loop {
            let received = py.detach(|| Ok::<_, PyErr>(self.lock()?.receive()))?;
            let order = match received {
                Received::ReceivedTask(order) => order,
                Received::Ended => return Ok(None),
                Received::CutOff => return Err(CutOff::new_err(())),
                Received::Interrupted => {
                    py.check_signals()?;
                    continue;
                }
            };
            let kind = match order.kind {
                FrameKind::Task => 0,
                FrameKind::Resume => 1,
                FrameKind::Stop => 2,
                FrameKind::Trial => 3,
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
            for letter in order.buffers {
                buffers.append(Bound::new(py, ReceivedBuffer::new(letter))?)?;
            }
            let body = PyBytes::new(py, &order.body);
            return Ok(Some((kind, order.task, order.position, body, buffers)));
        }
    }

    /// Memory of the arena, or None if it has no such room. A forked child has none: it may make batches, of its own.
    fn take(&self, py: Python<'_>, bytes: usize) -> Option<Slot> {
        py.detach(|| self.lock().ok()?.take(bytes)).map(Slot)
    }

    /// Finds places for the buffers of an answer; `send` follows when the batch was let go.
    fn pack(
        &self,
        py: Python<'_>,
        kind: usize,
        task: u64,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let kind = *ANSWERS
            .get(kind)
            .ok_or_else(|| PyValueError::new_err(format!("there is no answer {kind}")))?;
        let views = views(&buffers)?;
        // SAFETY: the views are held, and the worker's own thread is here, which changes no batch.
        let slices = unsafe { slices(&views) }?;
        py.detach(|| {
            self.lock()?.pack(kind, task, &slices);
            Ok(())
        })
    }

    /// Sends what was packed.
    fn send(&self, py: Python<'_>) -> PyResult<()> {
        let sent = py.detach(|| Ok::<_, PyErr>(self.lock()?.send()))?;
        self.sent(py, sent)
    }

    /// Notes which task begins.
    fn begin(&self, task: u64) -> PyResult<()> {
        self.lock()?.begin(task);
        Ok(())
    }

    /// Notes that the samples of the batch are made; `samples` of them, if it is not all that were
    /// reached.
    #[pyo3(signature = (samples=None))]
    fn made(&self, samples: Option<u32>) -> PyResult<()> {
        let mut connection = self.lock_after_code()?;
        connection.made();
        if let Some(samples) = samples {
            connection.set_samples(samples);
        }
        Ok(())
    }

    /// Tells the trainer something at once, which answers nothing.
    fn notify(&self, py: Python<'_>, text: &[u8]) -> PyResult<()> {
        let sent = py.detach(|| Ok::<_, PyErr>(self.lock()?.notify(text)))?;
        self.sent(py, sent)
    }

    /// Notes what the worker is at.
    fn enter(&self, activity: usize) -> PyResult<()> {
        let activity = *DOINGS
            .get(activity)
            .ok_or_else(|| PyValueError::new_err(format!("there is no stage {activity}")))?;
        self.lock_after_code()?.enter(activity);
        Ok(())
    }

    /// Notes the resident memory, now and then.
    fn weigh(&self) -> PyResult<()> {
        self.lock()?.weigh();
        Ok(())
    }

    /// An iterator over a list that notes in the box how far it has come.
    fn walk(slf: Bound<'_, Self>, list: Bound<'_, PyList>) -> Walk {
        Walk { connection: slf.unbind(), list: list.unbind(), position: AtomicUsize::new(0) }
    }

    /// Notes at which sample of the batch the worker is.
    fn reach(&self, position: u64) -> PyResult<()> {
        reached(self.lock()?.reach(position))
    }

    /// Notes that the worker is at all samples of the batch at once.
    fn reach_all(&self) -> PyResult<()> {
        self.lock()?.reach_all();
        Ok(())
    }

    /// Keeps what a replacement needs to go on after a task.
    fn journal(&self, task: u64, bytes: &[u8]) -> PyResult<bool> {
        Ok(self.lock()?.journal(task, bytes))
    }

    /// What the predecessor kept when a task began.
    fn recall<'py>(&self, py: Python<'py>, task: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.lock()?.recall(task).map(|bytes| PyBytes::new(py, &bytes)))
    }
}

fn reached(is_connected: bool) -> PyResult<()> {
    if is_connected { Ok(()) } else { Err(CutOff::new_err(())) }
}

/// Goes through the samples of a batch.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Walk {
    connection: Py<WorkerConnection>,
    list: Py<PyList>,
    position: AtomicUsize,
}

#[pymethods]
impl Walk {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let position = self.position.fetch_add(1, Ordering::Relaxed);
        let Ok(item) = self.list.bind(py).get_item(position) else { return Ok(None) };
        reached(self.connection.get().lock()?.reach(position as u64))?;
        Ok(Some(item))
    }

    /// The position of the item that was given last.
    #[getter]
    fn position(&self) -> usize {
        self.position.load(Ordering::Relaxed).saturating_sub(1)
    }
}

/// Has this process killed when its parent ends; False if that has happened already.
#[pyfunction]
pub(crate) fn die_with_parent(parent: u32) -> bool {
    process::die_with_parent(parent)
}

/// Makes this process the kernel's first choice when memory runs out.
#[pyfunction]
pub(crate) fn go_first() {
    process::go_first();
}
