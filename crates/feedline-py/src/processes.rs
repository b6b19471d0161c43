//! The trainer's end of a worker pool as a Python object.
#![allow(unsafe_code, reason = "descriptors come from Python")]

use feedline_core::config::Workers;
use feedline_core::loader::workers;
use feedline_core::sys::socket::Socket;
use feedline_core::worker::certificate::CodeFolders;
use feedline_core::worker::inbox;
use feedline_core::worker::processes::{self, PoolEvent};
use feedline_core::worker::result::TaskResult as CoreTaskResult;
use feedline_core::worker::wire::FrameKind;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::errors::raise;
use crate::interrupts;
use crate::memory::{Lease, slices, views};
use crate::pool_events::{self, Activity};

/// The process of a worker: its id, once it is known, and whether it has started.
#[pyclass(module = "feedline._native", frozen, get_all)]
pub(crate) struct Presence {
    pid: Option<u32>,
    is_ready: bool,
}

/// A supervised pool of worker processes.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct Processes(processes::Processes);

impl Processes {
    /// Raises in a fork, where the locks may be held by threads that do not exist.
    pub(crate) fn here(&self) -> PyResult<&processes::Processes> {
        if self.0.is_forked() {
            return Err(PyRuntimeError::new_err("these workers belong to another process"));
        }
        Ok(&self.0)
    }

    /// A handle that ends a wait for these workers.
    pub(crate) fn waker(&self) -> PyResult<processes::Waker> {
        Ok(self.here()?.waker())
    }
}

#[pymethods]
impl Processes {
    #[new]
    #[pyo3(signature = (config, package, libraries))]
    fn new(
        py: Python<'_>,
        config: &str,
        package: String,
        libraries: Vec<String>,
    ) -> PyResult<Processes> {
        let settings = Workers::parse(config).map_err(raise)?;
        let folders = CodeFolders { package, libraries };
        py.detach(|| workers::start(&settings, folders)).map(Processes).map_err(raise)
    }

    /// Ends the current wait in `next`, or the next one.
    fn wake(&self) -> PyResult<()> {
        self.waker()?.wake();
        Ok(())
    }

    /// Registers a zygote that was just started, or that is ready already.
    fn zygote_started(&self, descriptor: RawFd, pid: u32, is_ready: bool) -> PyResult<()> {
        // SAFETY: the descriptor was detached from its Python object for us.
        let socket = unsafe { Socket::take(descriptor) }?;
        let here = self.here()?;
        if is_ready {
            here.zygote_ready(socket, pid)?
        } else {
            here.zygote_started(socket, pid)?
        }
        Ok(())
    }

    /// Reports that no zygote could be started.
    fn zygote_refused(&self) -> PyResult<()> {
        self.here()?.zygote_refused();
        Ok(())
    }

    /// Puts buffers where workers can map them, for tasks. Returns None if there is no inbox.
    fn load(
        &self,
        py: Python<'_>,
        buffers: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Option<TaskBuffers>> {
        let here = self.here()?;
        let views = views(&buffers)?;
        // SAFETY: the views are held, and the trainer's own thread runs here and changes no batch.
        let slices = unsafe { slices(&views) }?;
        Ok(py.detach(|| here.load(&slices)).map(TaskBuffers))
    }

    /// The bytes of the inbox that are in use or warm, and the number of slots in use.
    #[getter]
    fn inbox_used(&self) -> PyResult<(u64, usize)> {
        Ok(self.here()?.inbox_used())
    }

    /// Submits a task, for one worker or for any free worker.
    #[pyo3(signature = (task, body, worker_id, is_resume, task_buffers=None))]
    fn submit(
        &self,
        task: u64,
        body: &[u8],
        worker_id: Option<u32>,
        is_resume: bool,
        task_buffers: Option<&TaskBuffers>,
    ) -> PyResult<()> {
        let kind = if is_resume { FrameKind::Resume } else { FrameKind::Task };
        let task_buffers = task_buffers.map(|task_buffers| Arc::clone(&task_buffers.0));
        self.here()?.submit(task, kind, worker_id, body.to_vec(), task_buffers);
        Ok(())
    }

    /// Retires a worker that is no longer needed in this epoch.
    fn retire(&self, worker_id: u32) -> PyResult<()> {
        self.here()?.retire(worker_id);
        Ok(())
    }

    /// Makes a worker take tasks again that has retired.
    fn restore(&self, worker_id: u32) -> PyResult<()> {
        self.here()?.restore(worker_id);
        Ok(())
    }

    /// Lets at most this many workers have tasks at once. With `ends_others`, because memory is short, the processes
    /// of the others end.
    fn limit_workers(&self, at_once: u32, ends_others: bool) -> PyResult<()> {
        self.here()?.limit_workers(at_once, ends_others);
        Ok(())
    }

    /// The next event, as one of the classes of `pool_events`; None after `timeout` seconds, or when `wake` was
    /// called.
    #[pyo3(signature = (oldest, timeout=None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        oldest: u64,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let here = self.here()?;
        let mut left =
            timeout.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        loop {
            let slice = left
                .map_or(interrupts::CHECK_INTERVAL, |left| left.min(interrupts::CHECK_INTERVAL));
            let before = feedline_core::sys::clock::now();
            let event = py.detach(|| here.next(oldest, slice));
            if let PoolEvent::Woken = event {
                return Ok(None);
            }
            if let Some(object) = pool_events::object(py, event)? {
                return Ok(Some(object));
            }
            interrupts::check(py)?;
            if let Some(left) = &mut left {
                let passed = feedline_core::sys::clock::now() - before;
                *left = left.saturating_sub(passed);
                if left.is_zero() {
                    return Ok(None);
                }
            }
        }
    }

    /// The process id of a worker, None before it was forked, and whether it takes tasks. Returns
    /// None if the worker has no process.
    fn presence(&self, worker_id: u32) -> PyResult<Option<Presence>> {
        let presence = self.here()?.presence(worker_id);
        Ok(presence.map(|status| Presence { pid: status.pid, is_ready: status.is_ready }))
    }

    /// What a worker is doing.
    fn activity(&self, worker_id: u32) -> PyResult<Option<Activity>> {
        Ok(self.here()?.last_snapshot(worker_id).map(Activity::new))
    }

    /// Ends all workers; returns the zygote's descriptor, if there is a zygote.
    fn close(&self, py: Python<'_>) -> PyResult<Option<RawFd>> {
        let here = self.here()?;
        let socket = py.detach(|| here.close());
        let descriptor = socket.and_then(Socket::into_descriptor);
        Ok(descriptor.map(IntoRawFd::into_raw_fd))
    }
}

/// The buffers of tasks. Workers can map them as long as this object lives.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct TaskBuffers(Arc<inbox::TaskBuffers>);

/// The result of a task, which can be opened once.
#[pyclass(module = "feedline._native", frozen)]
pub(crate) struct TaskResult {
    #[pyo3(get)]
    task: u64,
    #[pyo3(get)]
    worker_id: u32,
    /// "result", "faulty", "raised" or "exhausted".
    #[pyo3(get)]
    kind: &'static str,
    /// The number of samples in it.
    #[pyo3(get)]
    samples: u32,
    /// The offset of the slowest sample, and the seconds it took.
    #[pyo3(get)]
    slowest: (u32, f64),
    result: Mutex<Option<CoreTaskResult>>,
}

impl TaskResult {
    pub(crate) fn new(result: CoreTaskResult) -> TaskResult {
        let kind = match result.kind {
            FrameKind::Raised => "raised",
            FrameKind::Faulty => "faulty",
            FrameKind::Exhausted => "exhausted",
            FrameKind::Result
            | FrameKind::Ready
            | FrameKind::StartFailed
            | FrameKind::Task
            | FrameKind::Resume
            | FrameKind::Trial
            | FrameKind::Survived
            | FrameKind::Note
            | FrameKind::Stop => "result",
        };
        let timing = result.timing;
        TaskResult {
            task: result.task,
            worker_id: result.worker_id,
            kind,
            samples: timing.samples,
            slowest: (timing.slowest, timing.nanoseconds as f64 / 1e9),
            result: Mutex::new(Some(result)),
        }
    }
}

#[pymethods]
impl TaskResult {
    /// The buffers; the first is the pickle.
    fn open<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let result = self.result.lock().ok().and_then(|mut result| result.take());
        let result =
            result.ok_or_else(|| PyRuntimeError::new_err("this result was opened already"))?;
        let buffers =
            result.open().ok_or_else(|| PyMemoryError::new_err("out of memory for a batch"))?;
        let list = PyList::empty(py);
        for buffer in buffers {
            list.append(Bound::new(py, Lease::new(buffer))?)?;
        }
        Ok(list)
    }
}
