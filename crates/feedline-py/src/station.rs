//! A worker's end as a Python object.
#![allow(unsafe_code, reason = "descriptors and buffers come from Python")]

use feedline_core::sys::process::{self, Home};
use feedline_core::sys::socket::Socket;
use feedline_core::worker::blackbox::Doing;
use feedline_core::worker::station::{self, Received, Sent};
use feedline_core::worker::wire::Said;
use pyo3::exceptions::{PyBaseException, PyBrokenPipeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{Letter, Slot, slices, views};

/// What the trainer has said.
type Order<'py> = (u8, u64, Option<u64>, Bound<'py, PyBytes>, Bound<'py, PyList>);

/// What a worker may answer, in the order of its numbers in Python.
const ANSWERS: [Said; 7] = [
    Said::Ready,
    Said::StartFailed,
    Said::Result,
    Said::Raised,
    Said::Exhausted,
    Said::Survived,
    Said::Faulty,
];

/// What a worker may be at, in the order of its numbers in Python.
const DOINGS: [Doing; 6] = [
    Doing::Starting,
    Doing::Waiting,
    Doing::Fetching,
    Doing::Collating,
    Doing::Answering,
    Doing::Pausing,
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
pub(crate) struct Station {
    station: Mutex<station::Station>,
    home: Home,
}

impl Station {
    /// Refused in a forked child. There the lock may be held by a thread that does not exist.
    fn lock(&self) -> PyResult<MutexGuard<'_, station::Station>> {
        if self.home.is_left() {
            return Err(ForkReturned::new_err(()));
        }
        Ok(self.station.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As above, after a piece of the user's code: refused if that has closed the connection.
    fn lock_after_code(&self) -> PyResult<MutexGuard<'_, station::Station>> {
        let mut station = self.lock()?;
        reached(station.check_connection())?;
        Ok(station)
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
impl Station {
    /// Takes over the descriptors that the zygote passed on: socket, arena, boxes, and perhaps the inbox.
    #[new]
    #[pyo3(signature = (post, generation, posts, descriptors, inbox=None))]
    fn new(
        post: u32,
        generation: u32,
        posts: u32,
        descriptors: (RawFd, RawFd, RawFd),
        inbox: Option<RawFd>,
    ) -> PyResult<Station> {
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
        let station = station::Station::open(post, generation, posts, socket, arena, boxes, inbox)?;
        Ok(Station { station: Mutex::new(station), home: Home::here() })
    }

    /// Whether this process is not the worker, but a child that was forked in it.
    #[getter]
    fn is_left(&self) -> bool {
        self.home.is_left()
    }

    /// Waits for an order: (0 task, 1 resume, 2 stop or 3 trial; task; the position of the one sample that is
    /// tried; body; the buffers beside it). None when the trainer is gone.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Order<'py>>> {
        loop {
            let received = py.detach(|| Ok::<_, PyErr>(self.lock()?.receive()))?;
            let order = match received {
                Received::Order(order) => order,
                Received::Ended => return Ok(None),
                Received::CutOff => return Err(CutOff::new_err(())),
                Received::Interrupted => {
                    py.check_signals()?;
                    continue;
                }
            };
            let said = match order.said {
                Said::Task => 0,
                Said::Resume => 1,
                Said::Stop => 2,
                Said::Trial => 3,
                Said::Ready
                | Said::StartFailed
                | Said::Result
                | Said::Faulty
                | Said::Raised
                | Said::Exhausted
                | Said::Survived
                | Said::Note => return Ok(None),
            };
            let letters = PyList::empty(py);
            for letter in order.letters {
                letters.append(Bound::new(py, Letter::new(letter))?)?;
            }
            let body = PyBytes::new(py, &order.body);
            return Ok(Some((said, order.task, order.position, body, letters)));
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
        said: usize,
        task: u64,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let said = *ANSWERS
            .get(said)
            .ok_or_else(|| PyValueError::new_err(format!("there is no answer {said}")))?;
        let views = views(&buffers)?;
        // SAFETY: the views are held, and the worker's own thread is here, which changes no batch.
        let slices = unsafe { slices(&views) }?;
        py.detach(|| {
            self.lock()?.pack(said, task, &slices);
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
        let mut station = self.lock_after_code()?;
        station.made();
        if let Some(samples) = samples {
            station.set_samples(samples);
        }
        Ok(())
    }

    /// Tells the trainer something at once, which answers nothing.
    fn tell(&self, py: Python<'_>, text: &[u8]) -> PyResult<()> {
        let sent = py.detach(|| Ok::<_, PyErr>(self.lock()?.tell(text)))?;
        self.sent(py, sent)
    }

    /// Notes what the worker is at.
    fn enter(&self, doing: usize) -> PyResult<()> {
        let doing = *DOINGS
            .get(doing)
            .ok_or_else(|| PyValueError::new_err(format!("there is no stage {doing}")))?;
        self.lock_after_code()?.enter(doing);
        Ok(())
    }

    /// Notes the resident memory, now and then.
    fn weigh(&self) -> PyResult<()> {
        self.lock()?.weigh();
        Ok(())
    }

    /// An iterator over a list that notes in the box how far it has come.
    fn walk(slf: Bound<'_, Self>, list: Bound<'_, PyList>) -> Walk {
        Walk { station: slf.unbind(), list: list.unbind(), position: AtomicUsize::new(0) }
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
    station: Py<Station>,
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
        reached(self.station.get().lock()?.reach(position as u64))?;
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
