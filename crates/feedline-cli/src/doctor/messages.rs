//! What messages of the system, of Python, torch and NCCL mean, and how to tell. One table.

use serde_json::{Value, json};

use super::print::wrapped;

/// A message that users meet.
#[derive(Debug)]
pub(crate) struct Message {
    /// Its short name.
    pub(crate) name: &'static str,
    /// Texts by which it is known, in lowercase: all parts of one of them must occur.
    known_by: &'static [&'static [&'static str]],
    /// What it means.
    pub(crate) meaning: &'static str,
    /// How to find out whether that is so here, and which of several causes it is.
    pub(crate) tell: &'static [&'static str],
    /// What to do.
    pub(crate) fix: &'static str,
    /// A real message, as an example and for the test.
    #[cfg_attr(not(test), expect(dead_code, reason = "examples are for the tests"))]
    examples: &'static [&'static str],
}

const KILLED: &str = "out of memory: killed by the kernel (SIGKILL, 137)";

/// The first entry that is known by a part of a text.
pub(crate) fn find(text: &str) -> Option<&'static Message> {
    let text = text.to_lowercase();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_known = |message: &&Message| {
        message.known_by.iter().any(|parts| parts.iter().all(|part| has(&text, part)))
    };
    let is_killed = |message: &&Message| message.name == KILLED && has(&text, "killed");
    // A shell says only "Killed"; other messages have the word too, and say by what.
    MESSAGES.iter().find(is_known).or_else(|| MESSAGES.iter().find(is_killed))
}

/// Whether a text has a part that does not continue as a longer number or word.
fn has(text: &str, part: &str) -> bool {
    let is_word = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    text.match_indices(part).any(|(at, found)| {
        let (first, last) = (found.chars().next(), found.chars().last());
        let before = text[..at].chars().next_back();
        let after = text[at + found.len()..].chars().next();
        let continues = |one, other| is_word(one) && is_word(other);
        !continues(before, first) && !continues(last, after)
    })
}

impl Message {
    /// The explanation as lines for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut lines = wrapped(self.meaning, "means", 7);
        for (number, tell) in self.tell.iter().enumerate() {
            lines.extend(wrapped(tell, if number == 0 { "tell" } else { "" }, 7));
        }
        lines.extend(wrapped(self.fix, "fix", 7));
        format!("{}\n{}", self.name, lines.join("\n"))
    }

    /// The explanation for programs.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "subject": "message",
            "name": self.name,
            "meaning": self.meaning,
            "tell": self.tell,
            "fix": self.fix,
        })
    }
}

/// More specific messages are before more general ones.
const MESSAGES: &[Message] = &[
    Message {
        name: "ancillary data: a descriptor could not be received",
        known_by: &[&["received 0 items of ancdata"], &["ancdata"]],
        meaning: "torch sent a tensor from a worker as an open file, and the receiving process had no free \
                  descriptor for it. It is EMFILE under another name.",
        tell: &[
            "feedline doctor --pid PID shows how many descriptors of which kind the trainer has open.",
            "Batches that are kept in a list each hold a descriptor for each of their tensors.",
        ],
        fix: "ulimit -n 65536 before the start, and copy the tensors that you keep with clone(). \
              feedline.torch.DataLoader needs no descriptor for a tensor.",
        examples: &["RuntimeError: received 0 items of ancdata"],
    },
    Message {
        name: "an HDF5 file is locked (EAGAIN)",
        known_by: &[&["unable to lock file"], &["unable to synchronously open file", "lock"]],
        meaning: "Another process has the HDF5 file open for writing, so the lock of the file is refused. It has \
                  nothing to do with limits.",
        tell: &["fuser -v FILE or lsof FILE names the process that has it open."],
        fix: "Open the file with h5py.File(path, \"r\") in every worker; on file systems without locks, \
              export HDF5_USE_FILE_LOCKING=FALSE.",
        examples: &[
            "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11, error message \
             = 'Resource temporarily unavailable')",
        ],
    },
    Message {
        name: "can't start new thread (EAGAIN)",
        known_by: &[
            &["can't start new thread"],
            &["pthread_create failed"],
            &["thread creation failed"],
            &["pthread_create", "resource temporarily unavailable"],
            &["unable to create new native thread"],
            &["rlimit_nproc"],
            &["failed to spawn thread"],
        ],
        meaning: "The system refused a thread: the user, the pids cgroup or the machine has as many processes \
                  and threads as it may have. Open files have nothing to do with it. Sometimes it is address \
                  space for the stack of the thread.",
        tell: &[
            "feedline doctor shows how many more can be started, and which limit is met first.",
            "ps -eLf | wc -l counts the threads of the machine; pids.current is that of the cgroup.",
        ],
        fix: "Fewer workers, OMP_NUM_THREADS=1 (each worker starts its own threads), ulimit -u, or \
              docker run --pids-limit 4096.",
        examples: &[
            "RuntimeError: can't start new thread",
            "libgomp: Thread creation failed: Resource temporarily unavailable",
            "OpenBLAS blas_thread_init: pthread_create failed for thread 5 of 64: Resource temporarily \
             unavailable",
        ],
    },
    Message {
        name: "EAGAIN (11): Resource temporarily unavailable",
        known_by: &[
            &["resource temporarily unavailable"],
            &["eagain"],
            &["blockingioerror"],
            &["errno 11"],
            &["os error 11"],
            &["cannot fork"],
        ],
        meaning: "From fork or pthread_create: a limit on processes and threads, of the user, of the pids \
                  cgroup or of the machine. From read, write, send or accept: the descriptor is non-blocking \
                  and has no data yet, which is not an error. It never means that open files are used up: \
                  that is EMFILE (24).",
        tell: &[
            "Look at the call in the traceback: os.fork, start_new_thread or Popen is a limit; read, recv or \
             flock is a non-blocking descriptor.",
            "feedline doctor shows how many more processes and threads can be started.",
        ],
        fix: "For a limit: fewer workers, OMP_NUM_THREADS=1, ulimit -u 8192, docker run --pids-limit 4096. \
              ulimit -n does not help.",
        examples: &[
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
            "bash: fork: retry: Resource temporarily unavailable",
            "OSError: [Errno 11] Resource temporarily unavailable",
            "Resource temporarily unavailable (os error 11)",
        ],
    },
    Message {
        name: "ENFILE (23): Too many open files in system",
        known_by: &[
            &["too many open files in system"],
            &["enfile"],
            &["errno 23"],
            &["os error 23"],
            &["file table overflow"],
        ],
        meaning: "All processes of the machine together have as many files open as the kernel allows \
                  (fs.file-max). The limit of your process is another one.",
        tell: &[
            "cat /proc/sys/fs/file-nr: the first number is in use, the third is the limit.",
            "for p in /proc/[0-9]*; do echo $(ls $p/fd | wc -l) $p; done | sort -n | tail finds who has them.",
        ],
        fix: "End the process that leaks, or as root: sysctl -w fs.file-max=2000000.",
        examples: &[
            "OSError: [Errno 23] Too many open files in system: '/data/a.jpg'",
            "Too many open files in system (os error 23)",
        ],
    },
    Message {
        name: "EMFILE (24): Too many open files",
        known_by: &[&["too many open files"], &["emfile"], &["errno 24"], &["os error 24"]],
        meaning: "This process has as many descriptors open as it may have: files, sockets, pipes, and one for \
                  each tensor that torch's workers have sent and that is still alive.",
        tell: &[
            "feedline doctor --pid PID counts the descriptors by kind and names the paths most often open.",
            "A number that grows with each batch is a leak: a data set that opens files and does not close \
             them, or batches that are kept.",
        ],
        fix: "Close the files, or ulimit -n 65536 (ulimit -Hn shows how far). Feedline raises the soft limit \
              to the hard one by itself.",
        examples: &[
            "OSError: [Errno 24] Too many open files: '/data/train/0001.jpg'",
            "RuntimeError: unable to open shared memory object </torch_4411_9> in read-write mode: Too many \
             open files (24)",
        ],
    },
    Message {
        name: "EBADF (9): Bad file descriptor",
        known_by: &[&["bad file descriptor"], &["ebadf"], &["errno 9"], &["os error 9"]],
        meaning: "A descriptor was used after it was closed. In loaders, mostly a handle that was opened before \
                  the fork and closed by another process or thread, or code that closes a number twice.",
        tell: &[
            "Does the data set open a file in __init__ (h5py, lmdb, zipfile, tarfile)? Workers then share it.",
            "It appears with num_workers=0 too: then the program closes the handle itself.",
        ],
        fix: "Open the file in the worker, at the first __getitem__ or in worker_init_fn, never before the fork.",
        examples: &["OSError: [Errno 9] Bad file descriptor"],
    },
    Message {
        name: "a full /dev/shm (SIGBUS or ENOSPC)",
        known_by: &[
            &["bus error"],
            &["sigbus"],
            &["signal 7"],
            &["exit code 135"],
            &["out of shared memory"],
            &["no space left on device", "shm"],
            &["no space left on device", "torch_"],
            &["no space left on device", "shared memory"],
            &["no space left on device", "shared_memory"],
            &["no space left on device", "semlock"],
        ],
        meaning: "Shared memory is full. The system promises the space when a segment is made and finds out \
                  when a page is written: the writer is then killed by SIGBUS. A file that shrinks while it is \
                  mapped does the same.",
        tell: &[
            "df -h /dev/shm: containers have 64 MB unless told otherwise.",
            "ls -lS /dev/shm shows segments that killed processes left behind (torch_*, psm_*).",
        ],
        fix: "docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with medium: Memory at \
              /dev/shm. feedline.torch.DataLoader does not use /dev/shm.",
        examples: &[
            "RuntimeError: DataLoader worker (pid 4411) is killed by signal: Bus error. It is possible that \
             dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
            "RuntimeError: unable to write to file </torch_4411_2>: No space left on device (28)",
            "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1234'",
            "Bus error (core dumped)",
        ],
    },
    Message {
        name: "inotify watches are used up",
        known_by: &[&["inotify"]],
        meaning: "The limit of watched files or of watchers is used up, mostly by editors and file watchers. \
                  The message speaks of space or of open files, but neither a disk nor descriptors are full.",
        tell: &["sysctl fs.inotify shows the limits max_user_watches and max_user_instances."],
        fix: "As root: sysctl -w fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=1024.",
        examples: &["OSError: [Errno 28] inotify watch limit reached"],
    },
    Message {
        name: "ENOSPC (28): No space left on device",
        known_by: &[
            &["no space left on device"],
            &["enospc"],
            &["errno 28"],
            &["os error 28"],
            &["disk quota exceeded"],
            &["edquot"],
        ],
        meaning: "A file system is full, or has no inodes left, or you have used up your quota. If the path is \
                  in /dev/shm, it is shared memory.",
        tell: &["df -h PATH, df -i PATH (inodes), quota -s."],
        fix: "Free space, or set TMPDIR and FEEDLINE_CACHE to a larger file system.",
        examples: &[
            "OSError: [Errno 28] No space left on device: '/tmp/pymp-1/x'",
            "OSError: [Errno 122] Disk quota exceeded",
        ],
    },
    Message {
        name: "a shared memory object could not be opened",
        known_by: &[&["unable to open shared memory object"]],
        meaning: "torch could not make or open a segment in /dev/shm. Older versions do not say why: mostly the \
                  descriptors of the process are used up (EMFILE), sometimes /dev/shm is full or not writable.",
        tell: &[
            "feedline doctor --pid PID counts the descriptors; df -h /dev/shm shows how full it is.",
        ],
        fix: "ulimit -n 65536; docker run --shm-size=8g. feedline.torch.DataLoader needs neither.",
        examples: &[
            "RuntimeError: unable to open shared memory object </torch_2276740_2849291446> in read-write mode",
        ],
    },
    Message {
        name: "CUDA out of memory",
        known_by: &[
            &["cuda out of memory"],
            &["cuda error: out of memory"],
            &["torch.outofmemoryerror"],
        ],
        meaning: "The memory of the GPU is used up. The loader has no part in it, unless workers hold tensors \
                  on the GPU.",
        tell: &["nvidia-smi lists the processes on the GPU; workers should not be among them."],
        fix: "A smaller batch, and keep workers on the CPU.",
        examples: &[
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "RuntimeError: CUDA error: out of memory",
        ],
    },
    Message {
        name: KILLED,
        known_by: &[
            &["exit code 137"],
            &["exited with code 137"],
            &["exit status 137"],
            &["exitcode: -9"],
            &["exit code -9"],
            &["code 137"],
            &["sigkill"],
            &["signal 9"],
            &["signal: killed"],
            &["oomkilled"],
            &["oom-kill"],
            &["oom_kill"],
            &["oom killer"],
            &["out of memory: killed process"],
        ],
        meaning: "A process was killed by SIGKILL (128 + 9 = 137). Nearly always the kernel killed it because \
                  the machine or its memory cgroup was full; otherwise a scheduler or a person did.",
        tell: &[
            "memory.events of the cgroup counts oom_kill; dmesg | grep -i oom names the process if it was \
             the kernel.",
            "Neither counts: look for a time limit of the scheduler.",
            "feedline doctor shows the memory that is left, and for how many workers it is enough.",
        ],
        fix: "Fewer workers, a smaller batch or prefetch_factor, or a larger limit of memory. Lists and dicts \
              in a data set are copied into every worker: use arrays.",
        examples: &[
            "RuntimeError: DataLoader worker (pid 4411) is killed by signal: Killed.",
            "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=77.0.",
            "Last State: Terminated  Reason: OOMKilled  Exit Code: 137",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: exitcode: -9 (pid: 4411)",
        ],
    },
    Message {
        name: "unable to mmap: mappings or memory are used up",
        known_by: &[&["unable to mmap"], &["mmap failed"], &["cannot map"]],
        meaning: "A process has as many memory mappings as it may have (vm.max_map_count, 65530), or as much \
                  address space, or memory is full. torch maps each tensor that is shared.",
        tell: &[
            "wc -l /proc/PID/maps near 65530: mappings. ulimit -v that is not unlimited: address space.",
            "Neither: free -h and the memory cgroup.",
        ],
        fix: "Keep fewer batches, or as root: sysctl -w vm.max_map_count=1048576.",
        examples: &[
            "RuntimeError: unable to mmap 1024 bytes from file <filename not specified>: Cannot allocate \
             memory (12)",
        ],
    },
    Message {
        name: "ENOMEM (12): Cannot allocate memory",
        known_by: &[
            &["cannot allocate memory"],
            &["can't allocate memory"],
            &["unable to allocate"],
            &["enomem"],
            &["errno 12"],
            &["os error 12"],
            &["memoryerror"],
            &["bad_alloc"],
            &["defaultcpuallocator"],
        ],
        meaning: "The system refused memory: a limit on address space (ulimit -v), strict overcommit, or an \
                  array that is larger than the machine. From fork: the process is too large to be promised \
                  twice.",
        tell: &[
            "ulimit -v and cat /proc/sys/vm/overcommit_memory (2 is strict); feedline doctor shows both.",
            "Is the size in the message plausible? A wrong shape or dtype asks for absurd amounts.",
        ],
        fix: "Fewer workers or smaller batches; ulimit -v unlimited; as root: sysctl -w vm.overcommit_memory=0.",
        examples: &[
            "OSError: [Errno 12] Cannot allocate memory",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate \
             memory: you tried to allocate 38535168 bytes.",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.2 GiB for an array",
            "terminate called after throwing an instance of 'std::bad_alloc'",
        ],
    },
    Message {
        name: "NCCL watchdog timeout",
        known_by: &[
            &["watchdog", "timeout"],
            &["watchdog", "timed out"],
            &["collective operation timeout"],
            &["nccl", "timed out"],
            &["nccl", "timeout"],
        ],
        meaning: "A rank waited ten minutes (the default) for another rank. The rank that complains is not the \
                  one that is stuck: another one hangs, often in its data loader, or has ended, or had fewer \
                  batches.",
        tell: &[
            "py-spy dump --pid PID on every rank: the one that is not in the collective is the cause.",
            "feedline doctor --pid PID on it shows workers that wait for a device (D) or are stopped (T).",
            "Uneven numbers of batches: print len(loader) on every rank; use drop_last=True.",
        ],
        fix: "deadline=120 in feedline.torch.DataLoader ends a worker that hangs, long before NCCL gives up.",
        examples: &[
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1281, OpType=ALLREDUCE, \
             Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
            "Some NCCL operations have failed or timed out.",
        ],
    },
    Message {
        name: "DataLoader timed out",
        known_by: &[&["dataloader timed out"], &["dataloader", "timed out after"]],
        meaning: "No worker gave a batch within the timeout that the loader was given. A worker hangs, or waits \
                  for slow storage, or for a lock that was held during the fork.",
        tell: &[
            "py-spy dump --pid PID of the workers shows where they are.",
            "feedline doctor --pid PID shows their states: D waits for a device, S with a futex for a lock.",
        ],
        fix: "deadline= of feedline.torch.DataLoader ends the one worker that hangs, names its sample and goes on.",
        examples: &["RuntimeError: DataLoader timed out after 30 seconds"],
    },
    Message {
        name: "CUDA in a forked process",
        known_by: &[
            &["cannot re-initialize cuda in forked subprocess"],
            &["initialization error", "cuda"],
        ],
        meaning: "A worker was forked from a process that uses CUDA, and touches CUDA itself. CUDA does not \
                  survive a fork.",
        tell: &[
            "Does the data set or collate_fn move tensors to the GPU, or ask torch.cuda for something?",
        ],
        fix: "Move tensors to the GPU in the training loop, or use multiprocessing_context=\"forkserver\".",
        examples: &[
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, \
             you must use the 'spawn' start method",
        ],
    },
    Message {
        name: "a crash in C code (SIGSEGV, 139)",
        known_by: &[
            &["segmentation fault"],
            &["sigsegv"],
            &["signal 11"],
            &["exit code 139"],
            &["code 139"],
            &["exitcode: -11"],
            &["illegal instruction"],
            &["sigill"],
            &["exit code 132"],
        ],
        meaning: "C code in the process used memory that it does not have: a decoder with a corrupt file, a \
                  library that is used after a fork, or two libraries with different OpenMP runtimes.",
        tell: &[
            "python -X faulthandler train.py prints the Python stack of the crash.",
            "feedline verify PATH decodes every file and names those that are corrupt.",
        ],
        fix: "feedline.torch.DataLoader restarts the worker and names the sample; its file can then be removed.",
        examples: &[
            "RuntimeError: DataLoader worker (pid 4411) is killed by signal: Segmentation fault.",
            "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)",
        ],
    },
    Message {
        name: "a program ended itself (SIGABRT, 134)",
        known_by: &[
            &["aborted"],
            &["sigabrt"],
            &["signal 6"],
            &["exit code 134"],
            &["code 134"],
            &["exitcode: -6"],
        ],
        meaning: "C++ code gave up: an exception that nobody caught, a failed assertion, or a corrupt heap. The \
                  line before it on stderr says what.",
        tell: &["Look for \"terminate called\" or \"Assertion\" on stderr, before the message."],
        fix: "Treat the line before it as the message: feedline doctor \"that line\".",
        examples: &["RuntimeError: DataLoader worker (pid 4411) is killed by signal: Aborted."],
    },
    Message {
        name: "ended from outside (SIGTERM, 143)",
        known_by: &[
            &["signal: terminated"],
            &["sigterm"],
            &["signal 15"],
            &["exit code 143"],
            &["code 143"],
            &["exitcode: -15"],
            &["due to time limit"],
            &["sigxcpu"],
        ],
        meaning: "Something asked the process to end: a scheduler at its time limit, a preempted machine, \
                  torchrun after another rank failed, or a limit on processor time (ulimit -t).",
        tell: &["Look for the first error of all ranks; the log of the scheduler has the reason."],
        fix: "Save loader.state_dict() with the model regularly; a loader that loads it continues at the same batch.",
        examples: &[
            "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "RuntimeError: DataLoader worker (pid 4411) is killed by signal: Terminated.",
        ],
    },
    Message {
        name: "a DataLoader worker ended",
        known_by: &[
            &["dataloader worker", "exited unexpectedly"],
            &["dataloader worker", "killed by signal"],
            &["pin memory thread exited unexpectedly"],
        ],
        meaning: "A worker of torch's loader ended, and torch does not say why. Mostly it was killed for memory \
                  (signal 9), died of a full /dev/shm (signal 7), or crashed in a decoder (signal 11).",
        tell: &[
            "The exit code: echo $? or the signal in the message. 137 is memory, 135 /dev/shm, 139 a crash.",
            "num_workers=0 shows an exception that the worker could not report.",
        ],
        fix: "feedline.torch.DataLoader restarts the worker, makes its batch again and says why it died.",
        examples: &[
            "RuntimeError: DataLoader worker (pid(s) 4411, 4412) exited unexpectedly",
            "RuntimeError: Pin memory thread exited unexpectedly",
        ],
    },
    Message {
        name: "started without if __name__ == \"__main__\"",
        known_by: &[&["finished its bootstrapping phase"], &["freeze_support"]],
        meaning: "With spawn or forkserver, each worker imports your script. The script starts workers while it \
                  is imported, so they would start workers without end.",
        tell: &[
            "The line of the traceback that creates the loader or iterates over it is at the top level.",
        ],
        fix: "Put the code that starts the training below: if __name__ == \"__main__\":",
        examples: &[
            "RuntimeError: An attempt has been made to start a new process before the current process has \
             finished its bootstrapping phase.",
        ],
    },
    Message {
        name: "an object cannot be pickled",
        known_by: &[
            &["can't pickle"],
            &["cannot pickle"],
            &["can't get local object"],
            &["picklingerror"],
        ],
        meaning: "With spawn or forkserver, the data set is sent to the workers, and a part of it cannot be sent: \
                  an open file, a lock, a lambda or a function in a function.",
        tell: &["Feedline's own message names the attribute: see feedline explain FL104."],
        fix: "Open files in the worker, use functions of a module instead of lambdas, or use fork.",
        examples: &[
            "TypeError: cannot pickle '_io.BufferedReader' object",
            "AttributeError: Can't get local object 'main.<locals>.<lambda>'",
        ],
    },
    Message {
        name: "a fork while threads run",
        known_by: &[
            &["use of fork() may lead to deadlocks"],
            &["multi-threaded", "fork"],
            &["fork() was called"],
        ],
        meaning: "A process with several threads forks. A lock that another thread holds at that moment stays \
                  locked in the child, which then hangs, sometimes, and always at another place.",
        tell: &[
            "py-spy dump --pid PID of a worker that hangs shows it in a lock, malloc, or a logging call.",
            "feedline doctor --pid PID shows how many threads the trainer has.",
        ],
        fix: "Create the loader before threads start, or use multiprocessing_context=\"forkserver\".",
        examples: &[
            "DeprecationWarning: This process (pid=4411) is multi-threaded, use of fork() may lead to deadlocks \
             in the child.",
            "RuntimeWarning: os.fork() was called. os.fork() is incompatible with multithreaded code, and JAX is \
             multithreaded, so this will likely lead to a deadlock.",
        ],
    },
    Message {
        name: "leaked semaphores or shared memory",
        known_by: &[&["leaked semaphore"], &["leaked shared_memory"], &["resource_tracker"]],
        meaning: "A process ended without cleaning up, and Python's resource tracker did it. It is a symptom: \
                  something killed the process before.",
        tell: &["Look for the first error, above this line; an exit code of 137 is an OOM kill."],
        fix: "None needed for this line itself.",
        examples: &[
            "resource_tracker: There appear to be 12 leaked semaphore objects to clean up at shutdown",
        ],
    },
    Message {
        name: "the other process is gone (EPIPE, ECONNRESET, EOF)",
        known_by: &[
            &["broken pipe"],
            &["brokenpipeerror"],
            &["connection reset by peer"],
            &["connectionreseterror"],
            &["connectionrefusederror"],
            &["connection refused", "multiprocessing"],
            &["eoferror"],
            &["errno 32"],
            &["errno 104"],
            &["errno 111"],
            &["no such file or directory", "pymp-"],
        ],
        meaning: "The process at the other end of a pipe or socket has ended. It is a symptom: find out why that \
                  process ended. With torch, also a tensor that is received after its worker has ended.",
        tell: &["Look at the exit code of the workers: 137 is memory, 135 /dev/shm, 139 a crash."],
        fix: "Find the first error of the other process. Keep workers alive until their tensors are received.",
        examples: &[
            "BrokenPipeError: [Errno 32] Broken pipe",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/pymp-k3v/listener-x'",
        ],
    },
    Message {
        name: "a network file system lost the file (ESTALE, EIO, ENOTCONN)",
        known_by: &[
            &["stale file handle"],
            &["estale"],
            &["errno 116"],
            &["input/output error"],
            &["errno 5"],
            &["os error 5"],
            &["transport endpoint is not connected"],
            &["errno 107"],
            &["remote i/o error"],
            &["errno 121"],
            &["host is down"],
        ],
        meaning: "Storage failed while a file was read: an NFS server that replaced the file, a FUSE mount whose \
                  process died, or a disk with bad blocks.",
        tell: &[
            "ls on the folder: if it fails too, the mount is gone. dmesg shows errors of disks and of NFS.",
            "feedline doctor PATH shows the file system and how long reads take.",
        ],
        fix: "FaultPolicy(retry=3, patience=300) retries, and waits for a mount that comes back.",
        examples: &[
            "OSError: [Errno 116] Stale file handle: '/mnt/data/a.jpg'",
            "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/gcs'",
            "OSError: [Errno 5] Input/output error",
        ],
    },
    Message {
        name: "different lengths or shapes in a batch",
        known_by: &[
            &["stack expects each tensor to be equal size"],
            &["trying to resize storage that is not resizable"],
            &["default_collate: batch must contain"],
        ],
        meaning: "The samples of a batch do not have the same shape or type, or a sample is None. It is a fault \
                  of the data, not of the machine.",
        tell: &["Feedline's message names the sample: see feedline explain FL206."],
        fix: "Crop or pad to one shape, give a collate_fn, or skip such samples with FaultPolicy(\"skip\").",
        examples: &[
            "RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and \
             [1, 224, 224] at entry 5",
            "RuntimeError: Trying to resize storage that is not resizable",
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::super::print::{COLUMNS, LINES};
    use super::*;

    #[test]
    fn each_entry_is_reached_by_its_real_messages() {
        for message in MESSAGES {
            assert!(!message.examples.is_empty(), "{} has no example", message.name);
            for example in message.examples {
                let found = find(example).unwrap_or_else(|| panic!("{example}"));
                assert_eq!(found.name, message.name, "{example}");
            }
        }
    }

    #[test]
    fn each_text_of_an_entry_finds_an_entry() {
        for message in MESSAGES {
            for parts in message.known_by {
                let text = parts.join(" ... ");
                assert_eq!(text, text.to_lowercase(), "texts are compared in lowercase");
                assert!(find(&text).is_some(), "{text}");
            }
        }
    }

    #[test]
    fn an_explanation_fits_on_a_screen() {
        for message in MESSAGES {
            let text = message.text();
            assert!(text.lines().count() <= LINES, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        }
    }

    #[test]
    fn errno_names_and_numbers_are_not_confused() {
        for (text, name) in [
            ("EMFILE", Some("EMFILE (24): Too many open files")),
            ("ENFILE", Some("ENFILE (23): Too many open files in system")),
            ("[Errno 9] Bad", Some("EBADF (9): Bad file descriptor")),
            ("[Errno 95] Operation not supported", None),
            ("exit code 137", Some(KILLED)),
            ("exit code 1", None),
            ("Killed", Some(KILLED)),
            (
                "error: Resource  temporarily\n unavailable",
                Some("EAGAIN (11): Resource temporarily unavailable"),
            ),
            ("something else", None),
            ("data/train", None),
            ("", None),
        ] {
            assert_eq!(find(text).map(|message| message.name), name, "{text}");
        }
    }

    #[test]
    fn the_explanations_as_users_see_them() {
        let texts: Vec<_> = MESSAGES.iter().map(Message::text).collect();
        insta::assert_snapshot!(texts.join("\n\n"));
    }
}
